"""Self, key-value, structured and multi-head attention."""

# %%
import torch

import attnbench
from attnbench import Inputs
from attnbench.testing import resolve
from attnbench_classroom.lesson import fresh, heat_maps, normals, over_seeds, weights


@torch.no_grad()
def shown(name, seed, rows=8, size=16):
    """Weights of a mechanism over its own sequence, where query, key and value are one."""
    (subject,) = resolve(name)
    torch.manual_seed(seed)
    module = subject.make(size, size, size).eval()
    states = normals(seed, (1, 8, size))[0]
    return subject.weights(module, Inputs(states[:, :rows], states, states))[0]


# %% [markdown]
# ## Does self-attention know the order of its tokens? (exercise)
#
# No: reversing the tokens reverses the outputs, and changes nothing else. Positions have to be
# added. (figure: self-attention of tokens, and of the same reversed)


# %%
def moved(seed, causal=False):
    states = normals(seed, (1, 8, 16))[0]
    module = fresh("scaled_dot", seed, 16, 16)
    forth, back = (
        attnbench.attend(module, x, x, x, is_causal=causal) for x in (states, states.flip(1))
    )
    return (forth.flip(1) - back).abs().max().item()


plain, half = over_seeds(moved)
causal, other = over_seeds(lambda seed: moved(seed, causal=True))
print(
    f"Outputs differ by {plain:.1e} ± {half:.1e}; with a causal mask by {causal:.1f} ± {other:.1f}."
)
states = normals(0, (8, 16))[0]
module = fresh("scaled_dot", 0, 16, 16)
heat_maps(
    {
        "in order": weights(module, states, states),
        "reversed": weights(module, states.flip(0), states.flip(0)),
        "causal": weights(module, states, states, is_causal=True),
    }
)
assert plain + half < 1e-5 < causal - other

# %% [markdown]
# ## What does a state look at in key-value attention? (figure)
#
# Only at states before itself (Daniluk et al. 2017): each state is split in a key and a value, so
# that one part is compared and the other is read.


# %%
def ahead(seed):
    return shown("key_value", seed).triu().abs().sum().item()


later, half = over_seeds(ahead)
print(f"Weight on the state itself and later ones: {later:.1e} ± {half:.1e}.")
heat_maps({"key_value": shown("key_value", 0), "soft": shown("soft", 0)})
assert later + half == 0.0

# %% [markdown]
# ## What are the rows of structured self-attention? (figure; exercise: the penalty)
#
# A fixed number of rows, whatever the length (Lin et al. 2017), which ignore the query. The penalty
# ‖A Aᵀ − I‖² is large while rows look at the same tokens; it falls when they part.


# %%
def penalty(found):
    return (found @ found.T - torch.eye(len(found))).square().sum().item()


fresh_rows, half = over_seeds(lambda seed: penalty(shown("structured_self", seed, 3)))
apart = torch.eye(8)[:3]
print(
    f"Penalty of fresh rows {fresh_rows:.2f} ± {half:.2f}; "
    f"of rows on tokens of their own {penalty(apart):.2f}."
)
heat_maps({"fresh": shown("structured_self", 0, 3), "apart": apart}, rows="row")
assert penalty(apart) == 0.0 < fresh_rows - half

# %% [markdown]
# ## Do the heads of multi-head attention look at different keys? (figure: small multiples)
#
# Yes, already when they are fresh: each head has projections of its own.


# %%
def heads(seed, count=4, size=16):
    """Weights of each head: scaled dot products of its slice of the projected states."""
    torch.manual_seed(seed)
    states = normals(seed, (8, size))[0]
    query, key = (torch.nn.Linear(size, size, bias=False)(states) for _ in range(2))
    query, key = (x.unflatten(-1, (count, -1)).movedim(-2, 0) for x in (query, key))
    return weights(fresh("scaled_dot", seed, size // count, size // count), query, key)


def difference(seed):
    found = heads(seed)
    return (found[0] - found[1]).abs().max().item()


gap, half = over_seeds(difference)
print(f"The largest difference of two heads' weights is {gap:.2f} ± {half:.2f}.")
heat_maps({f"head {i + 1}": table for i, table in enumerate(heads(0))})
assert gap - half > 0.05
