"""Sequence to sequence: a decoder that looks back at what the encoder read.

The task is to write digits in reverse. The encoder gives a state a digit; the decoder's state is
the query, the encoder's states are keys and values (Bahdanau et al. 2015).
"""

# %%
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import attnbench
from attnbench_classroom.lesson import curves, heat_maps, over_seeds, share

DIGITS, LENGTH, SIZE = 6, 5, 32


class Translator(nn.Module):
    """Writes a sequence as long as the one it reads; ``scoring=None`` reads only the last state."""

    def __init__(self, scoring):
        super().__init__()
        self.embedding = nn.Embedding(DIGITS + 1, SIZE)
        self.encoder = nn.GRU(SIZE, SIZE // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRUCell(2 * SIZE, SIZE)
        self.out = nn.Linear(SIZE, DIGITS)
        self.scoring = scoring and attnbench.get(scoring).make(SIZE, SIZE)

    def forward(self, source, target):
        memory, last = self.encoder(self.embedding(source))
        state = last.movedim(0, 1).flatten(1)
        symbols = torch.cat([torch.full_like(target[:, :1], DIGITS), target[:, :-1]], 1)
        logits, rows = [], []
        for symbol in symbols.unbind(1):
            read, weights = torch.zeros_like(state), torch.zeros(len(source), 1, LENGTH)
            if self.scoring is not None:
                read, weights = attnbench.attend(
                    self.scoring, state.unsqueeze(1), memory, memory, return_weights=True
                )
                read = read.squeeze(1)
            state = self.decoder(torch.cat([self.embedding(symbol), read], -1), state)
            logits.append(self.out(state))
            rows.append(weights)
        return torch.stack(logits, 1), torch.cat(rows, 1)


def draw(count, generator):
    source = torch.randint(DIGITS, (count, LENGTH), generator=generator)
    return source, source.flip(1)


TRAINED = {}


def trained(scoring, seed, steps=70):
    """A model, and its accuracy on unseen sequences at some steps; each is trained once."""
    if (scoring, seed) in TRAINED:
        return TRAINED[scoring, seed]
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model, curve = Translator(scoring), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    tested = draw(200, torch.Generator().manual_seed(1000 + seed))
    for step in range(1, steps + 1):
        source, target = draw(32, generator)
        optimizer.zero_grad()
        cross_entropy(model(source, target)[0].flatten(0, 1), target.flatten()).backward()
        optimizer.step()
        if step % 14 == 0:
            with torch.no_grad():
                right = model(*tested)[0].argmax(-1) == tested[1]
            curve.append(right.double().mean().item())
    TRAINED[scoring, seed] = model, curve
    return TRAINED[scoring, seed]


SEEDS = 4

# %% [markdown]
# ## Does attention help, and how soon? (figure: learning curves)
#
# Without it, one state has to hold the whole sequence. With it, the decoder reads each digit when
# it needs it.

# %%
found = {
    str(scoring): [
        over_seeds(lambda seed, s=scoring, i=i: trained(s, seed)[1][i], SEEDS) for i in range(5)
    ]
    for scoring in (None, "additive")
}
gain, half = over_seeds(
    lambda seed: sum(trained("additive", seed)[1]) / 5 - sum(trained(None, seed)[1]) / 5, SEEDS
)
print(f"Mean accuracy over the curve is higher with attention by {gain:.2f} ± {half:.2f}.")
curves([14, 28, 42, 56, 70], found, labels=("step", "share of digits right"))
assert gain - half > 0

# %% [markdown]
# ## What does the decoder look at when it writes? (figure: the alignment)
#
# At the end first: the weights of a reversed sequence run down the other diagonal.


# %%
def alignment(seed):
    source, target = draw(100, torch.Generator().manual_seed(77))
    with torch.no_grad():
        weights = trained("additive", seed)[0](source, target)[1]
    place = weights @ torch.arange(float(LENGTH))
    return torch.corrcoef(torch.stack([place.mean(0), torch.arange(float(LENGTH))]))[0, 1].item()


slope, half = over_seeds(alignment, SEEDS)
print(f"Correlation of the place written and the place read: {slope:.2f} ± {half:.2f}.")
source, target = draw(3, torch.Generator().manual_seed(5))
with torch.no_grad():
    rows = trained("additive", 0)[0](source, target)[1]
heat_maps(
    {str(s): w for s, w in zip(source.tolist(), rows, strict=True)}, rows="written", columns="read"
)
assert slope < -0.5

# %% [markdown]
# ## How many whole sequences come out right? (exercise: count them, with an interval)
#
# A share of sequences is a binomial: its interval is exact.

# %%
source, target = draw(400, torch.Generator().manual_seed(99))
with torch.no_grad():
    rights = {
        str(s): int((trained(s, 0)[0](source, target)[0].argmax(-1) == target).all(-1).sum())
        for s in (None, "additive")
    }
bounds = {name: share(count, 400) for name, count in rights.items()}
for name, (low, high) in bounds.items():
    print(f"{name}: {rights[name]} of 400 right, 95 % interval {low:.3f} to {high:.3f}.")
middles = {name: [((low + high) / 2, (high - low) / 2)] for name, (low, high) in bounds.items()}
curves([70], middles, labels=("step", "share of sequences right"))
assert bounds["additive"][0] > bounds["None"][1]
