"""Right scoring functions that were accused once, and a mechanism; each names by what."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from attnbench import MechanismSpec, ScoringSpec
from attnbench_zoo.right.attention import Attention, wide


class Kinked(nn.Module):
    """An additive score with units that have a kink."""

    def __init__(self, query_size: int, key_size: int, hidden_size: int = 64) -> None:
        super().__init__()
        self.query_proj = nn.Linear(query_size, hidden_size)
        self.key_proj = nn.Linear(key_size, hidden_size, bias=False)
        self.out = nn.Linear(hidden_size, 1)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        hidden = self.query_proj(query).unsqueeze(-2) + self.key_proj(key).unsqueeze(-3)
        scores: Tensor = self.out(hidden.relu()).squeeze(-1)
        return scores


class Cosine(nn.Module):
    """A cosine over a temperature: it does not depend on magnitudes."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        query, key = (wide(t) for t in (query, key))
        query, key = (t / t.norm(dim=-1, keepdim=True).clamp_min(1e-20) for t in (query, key))
        return (query @ key.mT) * wide(self.log_scale).exp()


class LayerNormed(nn.Module):
    """A product of query and key, each through a LayerNorm, which over two features saturates."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.query_norm, self.key_norm = nn.LayerNorm(query_size), nn.LayerNorm(key_size)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        scores: Tensor = self.query_norm(query) * query.shape[-1] ** -0.5 @ self.key_norm(key).mT
        return scores


class Polynomial(nn.Module):
    """A square, whose scores float16 may not hold."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.scale = query_size**-0.5
        self.offset = nn.Parameter(torch.ones(()))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        return ((query * self.scale) @ key.mT + self.offset).square() * 0.5


@torch.compile(backend="aot_eager", dynamic=True)
def _scored(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    return ((query.unsqueeze(-2) + key.unsqueeze(-3)).tanh() * weight).sum(-1)


class Compiled(nn.Module):
    """An additive score whose inner function is compiled: torch lets one backward pass through."""

    def __init__(self, query_size: int, key_size: int, hidden_size: int = 8) -> None:
        super().__init__()
        self.query_proj = nn.Linear(query_size, hidden_size)
        self.key_proj = nn.Linear(key_size, hidden_size, bias=False)
        self.weight = nn.Parameter(torch.randn(hidden_size) * hidden_size**-0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        scores: Tensor = _scored(self.query_proj(query), self.key_proj(key), self.weight)
        return scores


class Dropping(nn.Module):
    """An additive score with dropout on its hidden units."""

    def __init__(self, query_size: int, key_size: int, hidden_size: int = 8) -> None:
        super().__init__()
        self.query_proj = nn.Linear(query_size, hidden_size)
        self.key_proj = nn.Linear(key_size, hidden_size, bias=False)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(hidden_size, 1)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        hidden = self.query_proj(query).unsqueeze(-2) + self.key_proj(key).unsqueeze(-3)
        scores: Tensor = self.out(self.drop(hidden.tanh())).squeeze(-1)
        return scores


class Spectral(nn.Module):
    """A product through a matrix whose norm every training call estimates anew."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        inner = nn.Linear(query_size, key_size, bias=False)
        self.inner = parametrizations.spectral_norm(inner)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        scores: Tensor = self.inner(query) @ key.mT * key.shape[-1] ** -0.5
        return scores


class Gated(nn.Module):
    """A product and, through a gate that begins closed, a learned one (as in ReZero)."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(query_size, key_size, bias=False)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        query, weight = wide(query), wide(self.inner.weight)
        learned = wide(self.gate) * (query @ weight.mT)
        return ((query + learned) * query.shape[-1] ** -0.5) @ wide(key).mT


class HalfTypesOnly(nn.Module):
    """A product that refuses what is wider, as many a kernel for accelerators does."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        if query.element_size() != 2:
            raise TypeError(f"float16 and bfloat16 only, not {query.dtype}")
        return (query * query.shape[-1] ** -0.5) @ key.mT


class _Lower(nn.Module):
    def forward(self, matrix: Tensor) -> Tensor:
        return matrix.tril()


class Parametrized(nn.Module):
    """A triangular matrix between query and key, which torch copies and does not pickle."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(query_size, query_size, bias=False)
        parametrize.register_parametrization(self.inner, "weight", _Lower())

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        weight = wide(self.inner.weight)
        scores: Tensor = (wide(query) @ weight.mT * query.shape[-1] ** -0.5) @ wide(key).mT
        return scores


class Distant(nn.Module):
    """A product less the distance of the key from the query, the last of each at one place."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        scores = (wide(query) * query.shape[-1] ** -0.5) @ wide(key).mT
        q_len, kv_len = scores.shape[-2:]
        rows = torch.arange(kv_len - q_len, kv_len, device=query.device).unsqueeze(-1)
        distance = (rows - torch.arange(kv_len, device=query.device)).abs()
        return scores - 0.5 * distance.to(scores)


class Sink(Attention):
    """A learned score without a value takes its share of the weights."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.sink = nn.Parameter(torch.zeros(()))

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """Weights, whose rows sum to less than 1."""
        sink = self.sink.to(hidden).expand(*hidden.shape[:-1], 1)
        return super().normalise(torch.cat([hidden, sink], -1), nn.functional.pad(allowed, (0, 1)))[
            ..., :-1
        ]


class LogSumExp(Attention):
    """Weights as a backward pass makes them again, from the logarithm of their sum."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """Weights, exactly 0 where a key is hidden."""
        weights = (hidden - hidden.logsumexp(-1, keepdim=True)).exp()
        return weights.masked_fill(~allowed, 0.0)


_WHERE = "positions count"
_TAKES = "the sink takes some of the weight"
SPECS: dict[str, ScoringSpec | MechanismSpec] = {
    "kinked": ScoringSpec(name="kinked", make=Kinked),
    "cosine": ScoringSpec(name="cosine", make=Cosine, equal_sizes=True),
    "layer_normed": ScoringSpec(name="layer_normed", make=LayerNormed, equal_sizes=True),
    "polynomial": ScoringSpec(name="polynomial", make=Polynomial, equal_sizes=True),
    "compiled": ScoringSpec(name="compiled", make=Compiled, dtypes=("float32", "float64")),
    "dropping": ScoringSpec(name="dropping", make=Dropping, dtypes=("float32", "float64")),
    "gated": ScoringSpec(name="gated", make=Gated, equal_sizes=True),
    "half_types_only": ScoringSpec(
        name="half_types_only", make=HalfTypesOnly, equal_sizes=True, dtypes=("float16", "bfloat16")
    ),
    "spectral": ScoringSpec(
        name="spectral",
        make=Spectral,
        dtypes=("float32", "float64"),
        exempt={
            "training_equals_evaluation": "every training call estimates the norm anew",
            "gradients_are_right_with_dropout": "gradients take that estimate for a constant",
        },
    ),
    "parametrized": ScoringSpec(name="parametrized", make=Parametrized, equal_sizes=True),
    "distant": ScoringSpec(
        name="distant",
        make=Distant,
        equal_sizes=True,
        exempt=dict.fromkeys(
            (
                "keys_permute_freely",
                "queries_permute_freely",
                "masking_equals_deleting",
                "query_alone_equals_query_among_others",
                "valid_lengths_count_the_keys",
            ),
            _WHERE,
        ),
    ),
    "log_sum_exp": MechanismSpec(
        name="log_sum_exp",
        make=LogSumExp,
        equal_sizes=True,
        accepts=("is_causal", "valid_lens", "return_weights"),
        laws=("pools_values",),
    ),
    "sink": MechanismSpec(
        name="sink",
        make=Sink,
        equal_sizes=True,
        accepts=("is_causal", "valid_lens", "return_weights"),
        laws=("pools_values", "rows_sum_to_at_most_one"),
        exempt=dict.fromkeys(
            (
                "weights_sum_to_one",
                "output_lies_within_values",
                "bias_is_added_to_scores",
                "bias_of_all_keys_hides_none",
            ),
            _TAKES,
        ),
    ),
}
ACCUSED_ONCE = {
    "kinked": ("gradients_are_right",),
    "cosine": ("every_attendable_key_matters",),
    "layer_normed": ("agrees_with_float64",),
    "polynomial": ("weights_sum_to_one", "masked_weights_are_zero"),
    "compiled": ("backward_leaves_no_trace", "second_derivatives_are_right_or_refused"),
    "dropping": (
        "dropout_acts_on_weights",
        "training_equals_evaluation",
        "weights_are_those_before_dropout",
    ),
    "gated": ("gradients_reach_every_parameter",),
    "spectral": ("dropout_acts_on_weights", "weights_are_those_before_dropout"),
    "parametrized": ("copies_agree",),
    "distant": ("grouped_heads_equal_expanded_heads",),
    "log_sum_exp": ("weights_sum_to_one", "output_lies_within_values"),
    "sink": ("gradients_are_finite_at_extremes",),
}
"""By what; in default, with seeds with which it was."""
