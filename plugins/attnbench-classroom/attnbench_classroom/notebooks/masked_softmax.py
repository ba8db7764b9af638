"""Masked softmax and valid lengths.

Sequences in a batch are padded to one length. A mask hides the padding: its weights are exactly 0.
"""

# %%
import matplotlib.pyplot as plt
import torch

import attnbench
from attnbench_classroom.lesson import fresh, heat_maps, normals, over_seeds, share, weights

SCORES = torch.tensor([[[1.0, 2, 3, 4], [2, 1, 0, -1]], [[0, 1, 2, 3], [3, 2, 1, 0]]])


def masked(scores, lengths):
    """Weights of given scores: dot products with the unit vectors are the scores themselves."""
    keys = torch.eye(scores.shape[-1]).expand(len(scores), -1, -1)
    return weights(fresh("dot", 0, 4, 4), scores, keys, valid_lens=lengths)


# %% [markdown]
# ## Which weights does a length of 2, or 3, leave? (figure: the worked example)
#
# Lengths `[2, 3]` hide the last two keys of the first item and the last key of the second, from
# both queries. What is left is the softmax of what is left.

# %%
found = masked(SCORES, torch.tensor([2, 3]))
print([[round(value, 3) for value in row] for row in found.flatten(0, 1).tolist()])
hidden = sum(
    int((masked(*normals(seed, (2, 2, 4)), torch.tensor([2, 3]))[0, :, 2:] != 0).sum())
    for seed in range(200)
)
low, high = share(hidden, 800)
print(
    f"{hidden} of 800 hidden weights are not 0: 95 % interval of the share {low:.4f} to {high:.4f}."
)
heat_maps({"item 1, length 2": found[0], "item 2, length 3": found[1]})
torch.testing.assert_close(found[0, 0, :2], torch.tensor([1.0, 2.0]).softmax(-1))
assert high < 0.01

# %% [markdown]
# ## What is the difference between lengths `(B,)` and `(B, L)`? (exercise)
#
# One length an item holds for all of its queries; one a query lets each see another number of keys.

# %%
lengths = torch.tensor([[1, 3], [2, 4]])
found = masked(SCORES, lengths)
seen = (found > 0).sum(-1)
print(f"Keys seen: {seen.tolist()}")
right = sum(
    bool(((masked(*normals(seed, (2, 2, 4)), lengths) > 0).sum(-1) == lengths).all())
    for seed in range(400)
)
low, high = share(right, 400)
print(f"As many as the length says in {right} of 400 draws: 95 % interval {low:.3f} to {high:.3f}.")
heat_maps({"lengths 1 and 3": found[0], "lengths 2 and 4": found[1]})
assert low > 0.99

# %% [markdown]
# ## What does a mask of −1e6 do? (figure: three rows)
#
# Many texts write −1e6 over masked scores. A row without keys then looks at all padding equally,
# and once the scores that are left fall below −1e6, all weight lies on *masked* keys.

# %%
row = torch.tensor([3.0, 1.0, 0.0, -1.0])
visible = torch.tensor([True, True, False, False])


def filled(scores, allowed):
    return torch.where(allowed, scores, torch.tensor(-1e6)).softmax(-1)


lost, half = over_seeds(lambda seed: filled(normals(seed, (4,))[0] - 2e6, visible)[2:].sum().item())
print(f"Weight on masked keys when scores are near −2e6: {lost:.2f} ± {half:.2f}.")
rows = {
    "two keys left": filled(row, visible).unsqueeze(0),
    "none left": filled(row, visible & False).unsqueeze(0),
    "scores near −2e6": filled(row - 2e6, visible).unsqueeze(0),
    "a true mask, none left": masked(row.expand(1, 1, 4), torch.tensor([0]))[0],
}
for name, found in rows.items():
    print(f"{name}: weights {[round(value, 2) for value in found[0].tolist()]}")
heat_maps(rows, across=2)
assert lost - half > 0.99

# %% [markdown]
# ## Can what stands in the padding reach an output? (exercise: put NaN there)
#
# Not with a true mask; multiplying by a weight of 0 does not help, as 0 · NaN is NaN.

# %%
reached = {"attend": 0, "weights @ values": 0}
for seed in range(200):
    query, key, value = normals(seed, (1, 2, 4), (1, 5, 4), (1, 5, 4))
    value[:, 3:] = float("nan")
    module, length = fresh("scaled_dot", seed, 4, 4), torch.tensor([3])
    output = attnbench.attend(module, query, key, value, valid_lens=length)
    product = weights(module, query, key, valid_lens=length) @ value
    reached["attend"] += bool(output.isnan().any())
    reached["weights @ values"] += bool(product.isnan().any())
intervals = {name: share(count, 200) for name, count in reached.items()}
for name, (low, high) in intervals.items():
    print(f"{name}: NaN in {reached[name]} of 200 outputs, 95 % interval {low:.3f} to {high:.3f}.")
figure, axis = plt.subplots(figsize=(5, 2), layout="constrained")
axis.barh(list(reached), [count / 200 for count in reached.values()])
axis.set(xlabel="share of outputs with NaN", xlim=(0, 1))
assert intervals["attend"][1] < 0.02 < 0.98 < intervals["weights @ values"][0]
