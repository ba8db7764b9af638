"""Additive against scaled dot product attention.

Two scores for the same purpose: a small network, w_vᵀ tanh(W_q q + W_k k) (Bahdanau et al. 2015),
and a dot product divided by the root of the size (Vaswani et al. 2017).
"""

# %%
import torch

import attnbench
from attnbench_classroom.lesson import curves, fresh, heat_maps, normals, over_seeds, weights

SIZES = [1, 4, 16, 64, 256, 1024]


def both(seed):
    query, key = normals(seed, (1, 2, 20), (1, 10, 20))
    additive = fresh("additive", seed, 20, 20, hidden_size=8)
    scaled_dot = fresh("scaled_dot", seed, 20, 20)
    return weights(additive, query, key)[0], weights(scaled_dot, query, key)[0]


# %% [markdown]
# ## Do both give the same weights on the same keys? (figure: the heat maps; exercise)
#
# No. Additive attention has parameters of its own, and is another function of query and key.

# %%
gap, half = over_seeds(lambda seed: (both(seed)[0] - both(seed)[1]).abs().max().item())
print(f"The largest difference of two weights is {gap:.2f} ± {half:.2f}.")
additive, scaled_dot = both(0)
heat_maps({"additive": additive, "scaled dot": scaled_dot}, across=1)
assert gap - half > 0.1

# %% [markdown]
# ## When do they agree? (figure: equal keys, lengths 2 and 6)
#
# Where all keys are equal: every score of a row is then the same, whatever the function, and each
# visible key gets 1 / length. Textbooks' first heat map shows 1/2 and 1/6.

# %%
lengths = torch.tensor([2, 6])
query, key = normals(0, (2, 1, 20))[0], torch.ones(2, 10, 20)
alike = {
    name: weights(fresh(name, 0, 20, 20), query, key, valid_lens=lengths)[:, 0]
    for name in ("additive", "scaled_dot")
}


def gap_with_equal_keys(seed):
    query = normals(seed, (2, 1, 20))[0]
    one, other = (
        weights(fresh(name, seed, 20, 20), query, key, valid_lens=lengths) for name in alike
    )
    return (one - other).abs().max().item()


gap, half = over_seeds(gap_with_equal_keys)
print(f"Largest difference with equal keys: {gap:.1e} ± {half:.1e}.")
heat_maps(alike, rows="item", across=1)
for found in alike.values():
    torch.testing.assert_close(found[0, :2], torch.full((2,), 1 / 2))
    torch.testing.assert_close(found[1, :6], torch.full((6,), 1 / 6))
assert gap + half < 1e-6

# %% [markdown]
# ## Why divide by the root of d? (figure: variance of scores)
#
# A dot product of d standard normal features has variance d. Divided by the root of d it is 1.


# %%
def variance(name, size, seed):
    query, key = normals(seed, (64, size), (64, size))
    with torch.no_grad():
        return fresh(name, seed, size, size)(query, key).var().item()


found = {
    name: [over_seeds(lambda seed, n=name, d=size: variance(n, d, seed)) for size in SIZES]
    for name in ("dot", "scaled_dot", "additive")
}
for name, values in found.items():
    print(f"{name}: variance {values[-1][0]:.3g} ± {values[-1][1]:.2g} at d = {SIZES[-1]}.")
curves(SIZES, found, labels=("d", "variance of scores"), logarithmic="xy")
assert found["dot"][-1][0] > 900
assert abs(found["scaled_dot"][-1][0] - 1) < 0.1

# %% [markdown]
# ## What is a large variance bad for? (exercise: the gradient of the softmax)
#
# One weight is then near 1, and the Jacobian of the softmax, diag(w) − w wᵀ, near 0: a gradient
# that passes through it is small, and learning is slow.


# %%
def jacobian(name, size, seed):
    query, key = normals(seed, (16, 1, size), (16, 16, size))
    found = weights(fresh(name, seed, size, size), query, key).squeeze(-2)
    matrix = torch.diag_embed(found) - found.unsqueeze(-1) * found.unsqueeze(-2)
    return matrix.norm(dim=(-2, -1)).mean().item()


found = {
    name: [over_seeds(lambda seed, n=name, d=size: jacobian(n, d, seed)) for size in SIZES]
    for name in ("dot", "scaled_dot", "additive")
}
(without, half), (scaled, other) = found["dot"][-1], found["scaled_dot"][-1]
print(
    f"At d = 1024: {without:.2f} ± {half:.2f} without the scale, "
    f"{scaled:.2f} ± {other:.2f} with it."
)
curves(SIZES, found, labels=("d", "norm of the softmax's Jacobian"), logarithmic="x")
assert without + half < scaled - other

# %% [markdown]
# ## What does additive attention cost? (exercise: count its parameters)
#
# h(1 + 2d) parameters, where the dot product has none. `attnbench learn` measures what each learns,
# and at which cost: with 16 hidden units, additive attention is ahead at small d.

# %%
counts = {
    name: [(sum(p.numel() for p in fresh(name, 0, d, d).parameters()) + 1.0, 0.0) for d in SIZES]
    for name in ("additive", "scaled_dot")
}
print(
    {name: int(values[-1][0]) - 1 for name, values in counts.items()}, "± 0 parameters at d = 1024"
)
curves(SIZES, counts, labels=("d", "parameters + 1"), logarithmic="xy")
assert counts["additive"][-1][0] - 1 == 16 * (1 + 2 * 1024)
assert attnbench.get("scaled_dot").equal_sizes
