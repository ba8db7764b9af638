"""The variants of attention: by how weights are computed, and by score."""

# %%
import torch

from attnbench import Inputs
from attnbench.testing import resolve
from attnbench_classroom.lesson import fresh, heat_maps, normals, over_seeds, weights

BY_WEIGHTS = ["soft", "hard", "local_monotonic", "local_predictive", "static", "forced_forward"]
BY_SCORE = [
    "additive",
    "dot",
    "scaled_dot",
    "bilinear",
    "gaussian",
    "vector_sum",
    "concat_linear",
    "concat_tanh_sum",
    "self_additive",
    "self_tanh",
]


@torch.no_grad()
def shown(name, seed):
    """Weights (8, 10) of a mechanism on standard normal inputs."""
    (subject,) = resolve(name)
    torch.manual_seed(seed)
    module = subject.make(16, 16, 16).eval()
    query, key, value = normals(seed, (1, 8, 16), (1, 10, 16), (1, 10, 16))
    return subject.weights(module, Inputs(query, key, value))[0]


def keys_seen(found):
    """How many keys a row looks at: the exponential of its entropy."""
    entropy = -(found * found.clamp_min(1e-30).log()).sum(-1)
    return entropy.exp().mean().item()


# %% [markdown]
# ## What does each variant look at? (figure: variants by how weights are computed)
#
# Soft looks at all keys, hard at one, local at a window, static with one row for all queries, and
# forced_forward never back.

# %%
seen = {name: over_seeds(lambda seed, n=name: keys_seen(shown(n, seed))) for name in BY_WEIGHTS}
for name, (count, half) in seen.items():
    print(f"{name} looks at {count:.1f} ± {half:.1f} of 10 keys.")
heat_maps({name: shown(name, 0) for name in BY_WEIGHTS}, across=3)
assert seen["hard"] == (1.0, 0.0)
assert seen["local_monotonic"][0] + seen["local_monotonic"][1] <= 5.0 < seen["soft"][0]

# %% [markdown]
# ## Which of them sum to 1? (exercise)
#
# The weights of local_predictive are multiplied by a Gaussian around the predicted place, and those
# of forced_forward may stop anywhere: their rows sum to less, by definition.

# %%
sums = {
    name: over_seeds(lambda seed, n=name: shown(n, seed).sum(-1).mean().item())
    for name in BY_WEIGHTS
}
for name, (total, half) in sums.items():
    print(f"{name}: rows sum to {total:.3f} ± {half:.3f}.")
heat_maps(
    {f"{name}: sums": shown(name, 0).sum(-1, keepdim=True).T for name in BY_WEIGHTS}, across=3
)
assert all(abs(sums[name][0] - 1) < 1e-6 for name in ("soft", "hard", "local_monotonic", "static"))
assert sums["local_predictive"][0] + sums["local_predictive"][1] < 1

# %% [markdown]
# ## Does static attention depend on the query of a row? (exercise)
#
# No: its weights come from the mean of the queries, so all rows are equal.


# %%
def spread(name, seed):
    found = shown(name, seed)
    return (found - found[:1]).abs().max().item()


static, soft = (over_seeds(lambda seed, n=n: spread(n, seed)) for n in ("static", "soft"))
print(
    f"Rows differ by {static[0]:.1e} ± {static[1]:.1e} (static), "
    f"{soft[0]:.2f} ± {soft[1]:.2f} (soft)."
)
heat_maps({"static": shown("static", 0), "soft": shown("soft", 0)})
assert static[0] < 1e-6 < soft[0] - soft[1]

# %% [markdown]
# ## How do the scores differ on the same queries and keys? (figure: variants by score)
#
# Scores with variance 1 give weights of about the same sharpness; dot has variance d and looks at
# fewer keys. Scores of the key alone (self, sums) have equal rows.


# %%
def sharpness(name, seed):
    query, key = normals(seed, (8, 16), (10, 16))
    return keys_seen(weights(fresh(name, seed, 16, 16), query, key))


seen = {name: over_seeds(lambda seed, n=name: sharpness(n, seed)) for name in BY_SCORE}
for name, (count, half) in seen.items():
    print(f"{name} looks at {count:.1f} ± {half:.1f} of 10 keys.")
query, key = normals(0, (8, 16), (10, 16))
heat_maps({name: weights(fresh(name, 0, 16, 16), query, key) for name in BY_SCORE}, across=5)
assert sum(seen["dot"]) < seen["scaled_dot"][0] - seen["scaled_dot"][1]
