"""The declaration of a scoring function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.cases.sizes import Sizes
from attnbench.specs.common import freeze_common

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoringSpec:
    """A scoring function: how to make it, what it computes, and what it promises.

    Args:
        name: its address; unique among scoring functions and mechanisms.
        make: ``make(query_size, key_size, **options)``, sizes by position, gives an ``nn.Module``
            whose ``forward(query, key)`` maps ``(..., L, Eq)`` and ``(..., S, Ek)`` to scores
            ``(..., L, S)``, in the dtype of the query or float32. The module may also have
            ``project_key(key)``, which gives ``(..., S, h)``, and ``score_projected(query,
            projected)``: a layer with a cache then projects a key once.
        formula: formula of the score of one query ``q`` and one key ``k``.
        source: its origin: authors, year, identifier.
        equal_sizes: whether only ``query_size == key_size`` is legal.
        sizes: maps drawn :class:`Sizes` to legal ones, if there are other conditions.
        reference: ``reference(module, q, k)`` is the score of one query and one key, lists of
            Python floats, computed without torch but for ``.tolist()`` of the parameters. With
            parameters ``i`` and ``j`` it also gets the positions of both: the last query is at the
            last key.
        dtypes: names such as ``"float32"``; ``None`` means all floating ones.
        laws: names of laws that it obeys; each is checked.
        exempt: maps the name of an invariant that it does not obey to the reason.
        variants: options with which it is also listed as separate subjects.

    Raises:
        SpecError: a field has the wrong type, or a name is unknown.
    """

    kind: ClassVar[str] = "scoring"

    name: str
    make: Callable[..., nn.Module]
    formula: str = ""
    source: str = ""
    equal_sizes: bool = False
    sizes: Callable[[Sizes], Sizes] | None = None
    reference: Callable[..., float] | None = None
    dtypes: tuple[str, ...] | None = None
    laws: tuple[str, ...] = ()
    exempt: Mapping[str, str] = field(default_factory=dict)
    variants: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        freeze_common(self)
