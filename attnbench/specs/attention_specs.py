"""The declarations of scoring functions, kernels and mechanisms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.specs.common import (
    Sizes,
    check_callable,
    check_same_as,
    check_spec_name,
    check_type,
    freeze_common,
    freeze_exempt,
    freeze_tuple,
    require,
)
from attnbench.specs.conventions import freeze_conventions

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attnbench.cases.case import Case

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


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelSpec:
    """A kernel: a faster way to compute the output of one scoring function, exactly.

    Args:
        name: its name under the scoring function; its address is ``scoring/name``.
        scoring: name of the scoring function.
        attend: ``attend(module, query, key, value, attn_mask=None, is_causal=False)`` gives the
            output; ``module`` comes from the scoring function's ``make``. :func:`attnbench.attend`
            calls it, with equal leading sizes, no size of zero, no row without keys, a mask that
            broadcasts to ``(..., L, S)``, and ``is_causal`` only without a mask and ``L <= S``.
        supports: ``supports(case)`` gives ``None``, or the reason why it cannot run that case. It
            uses plain Python on the case's fields, since torch.compile traces it.
        priority: ``attend(kernel="auto")`` uses the kernel with the highest priority that supports
            a case.
        exempt: maps the name of an invariant that it does not obey to the reason.
        runs_as: ``runs_as()`` describes in a few words which of its code paths runs in this
            process, for ``attnbench list`` and records. It must not compile or measure anything.

    Raises:
        SpecError: a field has the wrong type.
    """

    kind: ClassVar[str] = "kernel"

    name: str
    scoring: str
    attend: Callable[..., Tensor]
    supports: Callable[[Case], str | None] | None = None
    priority: int = 0
    exempt: Mapping[str, str] = field(default_factory=dict)
    runs_as: Callable[[], str] | None = None

    def __post_init__(self) -> None:
        check_spec_name(self.kind, self.name)
        check_spec_name(self.kind, self.scoring)
        check_callable(self, "attend")
        check_callable(self, "supports", "runs_as", optional=True)
        check_type(self, "priority", int, "an integer")
        freeze_exempt(self)


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
