"""Kernel regression is attention.

Noisy samples of 2 sin x + x^0.8 are given. To predict y at some x, take a weighted mean of the
samples: the x is a query, the samples' x are keys, their y are values. With the gaussian score the
weights are those of Nadaraya (1964) and Watson (1964).
"""

# %%
import matplotlib.pyplot as plt
import torch
from torch import nn

import attnbench
from attnbench_classroom.lesson import curves, heat_maps, over_seeds

AT = torch.linspace(0, 5, 101)


def truth(x):
    return 2 * x.sin() + x**0.8


def samples(seed, count=50):
    generator = torch.Generator().manual_seed(seed)
    x = (5 * torch.rand(count, generator=generator)).sort().values
    return x, truth(x) + 0.5 * torch.randn(count, generator=generator)


def predict(module, at, x, y, mask=None):
    columns = (tensor.unsqueeze(-1) for tensor in (at, x, y))
    output, weights = attnbench.attend(module, *columns, attn_mask=mask, return_weights=True)
    return output.squeeze(-1), weights


def gaussian(bandwidth):
    module = attnbench.get("gaussian").make(1, 1)
    nn.init.constant_(module.bandwidth, bandwidth)
    return module


@torch.no_grad()
def error(module, seed, count=50):
    return float((predict(module, AT, *samples(seed, count))[0] - truth(AT)).square().mean())


# %% [markdown]
# ## Why weigh samples by distance, when the mean of all is simpler? (figure: the two fits)
#
# The mean knows nothing of x. Weighing by distance follows the curve.

# %%
average = attnbench.get("average").make(1, 1)
gain, half = over_seeds(lambda seed: error(average, seed) - error(gaussian(1.0), seed))
print(f"Mean squared error: the gaussian's is lower by {gain:.2f} ± {half:.2f}.")
x, y = samples(0)
figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
axis.plot(x, y, "o", ms=3, color="0.6", label="samples")
axis.plot(AT, truth(AT), "--", color="black", label="truth")
with torch.no_grad():
    axis.plot(AT, predict(average, AT, x, y)[0], label="average")
    axis.plot(AT, predict(gaussian(1.0), AT, x, y)[0], label="gaussian, w = 1")
axis.legend()
assert gain - half > 0

# %% [markdown]
# ## What does the bandwidth do? (exercise: vary it)
#
# A small w looks at all samples and misses the curve; a large one looks at one sample and follows
# its noise.

# %%
BANDWIDTHS = [0.1, 0.5, 1, 2, 4, 8, 16, 64]
by_bandwidth = [over_seeds(lambda seed, w=w: error(gaussian(w), seed)) for w in BANDWIDTHS]
best, half = min(by_bandwidth)
wide, sharp = by_bandwidth[0], by_bandwidth[-1]
print(f"Least error {best:.2f} ± {half:.2f}; w = 0.1 gives {wide[0]:.2f}, w = 64 {sharp[0]:.2f}.")
curves(
    BANDWIDTHS,
    {"gaussian": by_bandwidth},
    labels=("bandwidth w", "mean squared error"),
    logarithmic="xy",
)
assert best + half < min(wide[0] - wide[1], sharp[0] - sharp[1])

# %% [markdown]
# ## Can the bandwidth be learned? (figure: weights before and after)
#
# Yes, when each sample is predicted from all others: a mask hides it from itself. The learned
# weights are sharper.


# %%
def learned(seed, steps=60):
    x, y = samples(seed)
    module, others = gaussian(1.0), ~torch.eye(len(x), dtype=torch.bool)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.3)
    for _ in range(steps):
        optimizer.zero_grad()
        (predict(module, x, x, y, others)[0] - y).square().mean().backward()
        optimizer.step()
    return module


gain, half = over_seeds(lambda seed: error(gaussian(1.0), seed) - error(learned(seed), seed))
print(f"Learning lowers the mean squared error by {gain:.2f} ± {half:.2f}.")
fits = {"w = 1": gaussian(1.0), "learned": learned(0)}
with torch.no_grad():
    heat_maps(
        {name: predict(module, AT, *samples(0))[1] for name, module in fits.items()},
        rows="x predicted at",
        columns="sample",
    )
assert gain - half > 0

# %% [markdown]
# ## Does more data help each fit? (exercise: add samples)
#
# It helps the one that looks near, and not the average, whose error is not noise.

# %%
COUNTS = [25, 50, 100, 200, 400]
by_count = {
    name: [over_seeds(lambda seed, n=n, m=module: error(m, seed, n)) for n in COUNTS]
    for name, module in {"average": average, "gaussian, w = 4": gaussian(4.0)}.items()
}
(few, half), (many, other) = by_count["gaussian, w = 4"][0], by_count["gaussian, w = 4"][-1]
print(
    f"Error of the gaussian: {few:.3f} ± {half:.3f} of 25 samples, {many:.3f} ± {other:.3f} of 400."
)
curves(COUNTS, by_count, labels=("samples", "mean squared error"), logarithmic="xy")
assert many + other < few - half
