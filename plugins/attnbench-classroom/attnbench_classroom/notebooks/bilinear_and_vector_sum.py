"""Queries and keys of different sizes: bilinear scores and the sum of vectors."""

# %%
import torch

from attnbench_classroom.lesson import curves, fresh, heat_maps, normals, over_seeds, weights

SIZES = [1, 2, 4, 8, 16, 32, 64, 128]

# %% [markdown]
# ## Can vectors of different sizes be scored by matrix products alone? (exercise)
#
# Yes: qᵀWk is the dot product of qW and k. (figure: the scores, and the difference, which is
# rounding)


# %%
def products(seed):
    query, key = (tensor.double() for tensor in normals(seed, (4, 3), (6, 7)))
    module = fresh("bilinear", seed, 3, 7).double()
    with torch.no_grad():
        return module(query, key), (query @ module.weight) @ key.T * module.scale


gap, half = over_seeds(lambda seed: (products(seed)[0] - products(seed)[1]).abs().max().item())
print(f"Sizes 3 and 7: the largest difference is {gap:.1e} ± {half:.1e}.")
score, product = products(0)
heat_maps({"softmax of qᵀWk": score.softmax(-1), "of (qW)·k": product.softmax(-1)})
assert gap + half < 1e-14

# %% [markdown]
# ## Is the sum of vectors a better score than the dot product? (exercise)
#
# No. In w_qᵀq + w_kᵀk the query's term is the same for every key, and softmax removes it: every
# query gets the same weights.


# %%
def dependence(name, seed):
    query, key = normals(seed, (6, 8), (10, 8))
    found = weights(fresh(name, seed, 8, 8), query, key)
    return (found - found[:1]).abs().max().item()


found = {
    name: over_seeds(lambda seed, n=name: dependence(n, seed))
    for name in ("vector_sum", "concat_linear", "scaled_dot", "bilinear")
}
for name, (gap, half) in found.items():
    print(f"{name}: weights differ between queries by {gap:.1e} ± {half:.1e}.")
query, key = normals(0, (6, 8), (10, 8))
heat_maps({name: weights(fresh(name, 0, 8, 8), query, key) for name in found})
assert found["vector_sum"][0] < 1e-6 < 0.1 < found["scaled_dot"][0] - found["scaled_dot"][1]

# %% [markdown]
# ## Which scale does a bilinear score need? (figure: variance against d)
#
# With W ~ N(0, 1), as one would write it, dividing by (Eq·Ek)^¼ leaves a variance of √(Eq·Ek). It
# is 1 where the entries of W have the standard deviation (Eq·Ek)^−¼ as well.


# %%
def variance(size, seed, plain):
    query, key = normals(seed, (64, size), (64, size))
    module = fresh("bilinear", seed, size, size)
    with torch.no_grad():
        if plain:
            module.weight.div_(module.scale)  # as drawn from N(0, 1)
        return module(query, key).var().item()


found = {
    name: [over_seeds(lambda seed, d=d, p=plain: variance(d, seed, p)) for d in SIZES]
    for name, plain in {"W ~ N(0, 1)": True, "as built in": False}.items()
}
(large, half), (one, other) = found["W ~ N(0, 1)"][-1], found["as built in"][-1]
print(
    f"At d = 128: variance {large:.0f} ± {half:.0f} with W ~ N(0, 1), "
    f"{one:.2f} ± {other:.2f} as built in."
)
curves(SIZES, found, labels=("d", "variance of scores"), logarithmic="xy")
assert large - half > 50
assert abs(one - 1) < 0.2
