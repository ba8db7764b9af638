"""The declaration of a mechanism."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.cases.sizes import Sizes
from attnbench.specs.common import (
    check_same_as,
    freeze_common,
    freeze_tuple,
    require,
)
from attnbench.specs.conventions import freeze_conventions

if TYPE_CHECKING:
    from torch import nn

ACCEPTS = (
    "is_causal",
    "valid_lens",
    "dropout_p",
    "scale",
    "enable_gqa",
    "return_weights",
    "window_size",
    "softcap",
    "sinks",
    "alibi_slopes",
    "k_scale",
    "v_scale",
    "head_offset",
)
"""Keyword arguments that a mechanism's ``forward`` may take beyond ``attn_mask``."""

RETURNS = (("output",), ("output", "weights"), ("output", "lse"))
"""What a mechanism's ``forward`` may hand back."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MechanismSpec:
    """A mechanism: a whole attention, from query, key, value and mask to the output.

    Args:
        name: its address; unique among scoring functions and mechanisms.
        make: ``make(query_size, key_size, value_size, **options)``, sizes by position, gives an
            ``nn.Module`` whose ``forward(query, key, value, attn_mask=None)`` gives the output.
        formula, source, equal_sizes, sizes, dtypes, laws, exempt, variants: as in
            :class:`ScoringSpec`.
        reference: ``reference(module, query, key, value, allowed)`` gives the output's rows, nested
            lists of floats for one item; ``allowed`` is ``L`` lists of ``S`` booleans.
        accepts: further keyword arguments of ``forward``, out of :data:`ACCEPTS`; with
            ``return_weights=True`` it returns ``(output, weights)``. ``valid_lens`` has any integer
            dtype, and ``dropout_p`` is in ``[0, 1)``. Options that it does not accept are folded
            into ``attn_mask``; a floating mask has the dtype of the query. ``window_size`` is
            ``(before, after)``, -1 for no limit, around the position aligned to the bottom right;
            ``softcap`` c turns a score s into ``c·tanh(s / c)``; ``sinks`` ``(H,)`` are scores of
            an extra key per head, whose value is zero; ``alibi_slopes`` ``(H,)`` times the distance
            are subtracted from the scores. ``k_scale`` and ``v_scale`` broadcast to key and value,
            which may be stored in another dtype, and multiply them; ``head_offset`` is the number
            of heads before the first of the query, for a slice of the heads.
        returns: what ``forward`` hands back, one of :data:`RETURNS`; ``lse`` is the log-sum-exp
            ``(..., L)`` of the scores that masks leave, in any floating dtype.
        conventions: which of several usual meanings it follows; see
            :class:`attnbench.specs.conventions.Conventions` for keys and values.
        same_as: address of another subject that gives the same output wherever both take a case;
            it loads this one's ``state_dict``. A scoring function stands for its soft attention.

    Raises:
        SpecError: a field has the wrong type, or a name is unknown.
    """

    kind: ClassVar[str] = "mechanism"

    name: str
    make: Callable[..., nn.Module]
    formula: str = ""
    source: str = ""
    equal_sizes: bool = False
    sizes: Callable[[Sizes], Sizes] | None = None
    reference: Callable[..., list[list[float]]] | None = None
    dtypes: tuple[str, ...] | None = None
    accepts: tuple[str, ...] = ()
    returns: tuple[str, ...] = ("output",)
    laws: tuple[str, ...] = ()
    exempt: Mapping[str, str] = field(default_factory=dict)
    conventions: Mapping[str, Any] = field(default_factory=dict)
    same_as: str | None = None
    variants: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        freeze_common(self)
        freeze_tuple(self, "accepts", ACCEPTS)
        freeze_tuple(self, "returns")
        choices = ", ".join(map(str, RETURNS))
        complaint = f"returns should be one of {choices}, not {self.returns!r}"
        require(self, self.returns in RETURNS, complaint)
        freeze_conventions(self)
        check_same_as(self)
