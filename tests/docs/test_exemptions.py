"""The manual's list of what to exempt by design: an example of each entry needs nothing more."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from attnbench_zoo.right.attention import Attention, wide
from attnbench_zoo.right.scorings import Distant
from torch import Tensor, nn

import attnbench
from attnbench import MechanismSpec, ScoringSpec

PAGE = Path(__file__).parents[2] / "docs/howto/own_function.md"


def listed() -> dict[str, tuple[str, ...]]:
    """The invariants that each entry names, by what it says in bold."""
    text = PAGE.read_text().partition("## By design")[2].partition("\n## ")[0]
    entries = re.findall(r"^- \*\*(.+?)\*\*(.*?)(?=^- |\Z)", text, re.MULTILINE | re.DOTALL)
    return {
        title: tuple(re.findall(r"`(\w+)`", more.split("declare")[0].split("`attend`")[0]))
        for title, more in entries
    }


def _dot(query: Tensor, key: Tensor) -> Tensor:
    return (wide(query) * query.shape[-1] ** -0.5) @ wide(key).mT


def _positions(scores: Tensor) -> tuple[Tensor, Tensor]:
    q_len, kv_len = scores.shape[-2:]
    rows = torch.arange(kv_len - q_len, kv_len, device=scores.device).unsqueeze(-1)
    return rows, torch.arange(kv_len, device=scores.device)


class Causal(Distant):
    """Always causal: a query before the first key has none."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        scores = _dot(query, key)
        rows, columns = _positions(scores)
        return scores.masked_fill(columns > rows, -math.inf)


class Positive(Distant):
    """A key of negative score is never seen."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        scores = _dot(query, key)
        return scores.masked_fill(scores <= 0, -math.inf)


class ByLength(Distant):
    """A temperature by the logarithm of the number of keys."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        return _dot(query * math.log(1 + key.shape[-2]), key)


class Sigmoids(Attention):
    """Each weight on its own."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """Weights, whose rows sum to anything."""
        return hidden.sigmoid().masked_fill(~allowed, 0.0)


class TopTwo(Attention):
    """A softmax over the two largest scores."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """Weights, zero but for two of a row."""
        least = hidden.topk(min(2, hidden.shape[-1]), -1).values[..., -1:]
        return super().normalise(hidden.masked_fill(hidden < least, -math.inf), allowed)


class Slots(Attention):
    """Queries compete for each key; then the shares of a query are normalised."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        """Weights of a softmax over queries, and over keys of that."""
        shares = hidden.masked_fill(~allowed, -1e30).log_softmax(-2)
        return super().normalise(
            shares.masked_fill(~allowed, -math.inf).masked_fill(
                ~allowed.any(-1, keepdim=True), 0.0
            ),
            allowed,
        )


EXAMPLES = {
    Distant: ("Positions matter",),
    Causal: ("Some keys are never seen", "Positions matter", "Rows sum to less than 1"),
    Positive: ("Some keys are never seen", "Rows sum to less than 1"),
    Sigmoids: ("Rows sum to less than 1",),
    TopTwo: ("Only a few keys get weight",),
    ByLength: ("The number of keys counts",),
    Slots: ("Queries compete for keys",),
}


def _spec(cls: type[nn.Module], exempt: dict[str, str]) -> ScoringSpec | MechanismSpec:
    if issubclass(cls, Attention):
        return MechanismSpec(
            name=cls.__name__,
            make=cls,
            equal_sizes=True,
            accepts=("is_causal", "valid_lens", "return_weights"),
            laws=("pools_values",),
            exempt=exempt,
        )
    return ScoringSpec(name=cls.__name__, make=cls, equal_sizes=True, exempt=exempt)


def test_each_entry_has_an_example() -> None:
    used = {start for starts in EXAMPLES.values() for start in starts}
    assert all(any(title.startswith(start) for start in used) for title in listed())
    assert len(listed()) == len(used)


@pytest.mark.slow
@pytest.mark.parametrize("cls", EXAMPLES, ids=lambda cls: cls.__name__)
def test_what_is_exempt_as_the_manual_says_passes(cls: type[nn.Module]) -> None:
    entries = listed()
    names = [
        name
        for title, found in entries.items()
        for name in found
        if title.startswith(EXAMPLES[cls])
    ]
    report = attnbench.check(_spec(cls, dict.fromkeys(names, "by design")), profile="quick")
    assert not [o for o in report.outcomes if o.status not in ("passed", "skipped")], report
