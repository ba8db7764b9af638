"""What a plugin declares: four frozen, keyword-only dataclasses, compared by identity.

Importing this module imports no torch, so that a plugin's metadata can be read without it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attnbench.errors import SpecError, nearest
from attnbench.making import signed_make

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy
    from torch import Tensor, nn

    from attnbench.cases import Case
    from attnbench.subject import Subject

__all__ = [
    "ACCEPTS",
    "DTYPES",
    "KNOWN_LAWS",
    "Invariant",
    "KernelSpec",
    "MechanismSpec",
    "ScoringSpec",
    "Sizes",
]

DTYPES = ("float64", "float32", "bfloat16", "float16")
"""Names of the floating dtypes that a subject may support, most precise first."""

ACCEPTS = ("is_causal", "valid_lens", "dropout_p", "scale", "enable_gqa", "return_weights")
"""Keyword arguments that a mechanism's ``forward`` may take beyond ``attn_mask``."""

KNOWN_LAWS = (
    "unit_variance",
    "translation_invariant",
    "rotation_invariant",
    "query_independent",
    "bilinear",
    "bounded_by_one",
    "pools_values",
    "monotone_in_distance",
)
"""Laws that may be declared from the start, whether or not the plugin that checks them is there."""

_NAME = re.compile(r"[A-Za-z_][\w.-]*")
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Sizes:
    """The sizes of one attention: ``(*lead, q_len, query_size)`` and so on.

    ``spec.sizes`` takes one and gives a legal one; :meth:`replace` changes some of them.
    """

    lead: tuple[int, ...]
    q_len: int
    kv_len: int
    query_size: int
    key_size: int
    value_size: int

    def replace(self, **changes: Any) -> Sizes:
        """A copy with some sizes changed."""
        return replace(self, **changes)


def _require(condition: bool, kind: str, name: object, complaint: str) -> None:
    if not condition:
        raise SpecError(f"{kind} {name!r}: {complaint}")


def _check_name(kind: str, name: object) -> None:
    _require(
        isinstance(name, str) and _NAME.fullmatch(name) is not None,
        kind,
        name,
        "a name is a letter or '_', then letters, digits, '_', '-' or '.'; "
        "it is used in addresses such as additive/factorised(hidden_size=16)",
    )


def _check_callable(kind: str, name: str, **values: object) -> None:
    for what, value in values.items():
        _require(callable(value), kind, name, f"{what} should be callable, not {value!r}")


def _check_names(kind: str, name: str, what: str, given: object, known: Iterable[str]) -> None:
    for item in given if isinstance(given, tuple) else ():
        _require(item in known, kind, name, f"{what} names {item!r}. {nearest(str(item), known)}")


def _freeze_tuple(spec: Any, kind: str, what: str) -> None:
    value = getattr(spec, what)
    _require(
        not isinstance(value, str) and isinstance(value, Iterable),
        kind,
        spec.name,
        f"{what} should be a tuple of names, not {value!r}",
    )
    items = tuple(value)
    _require(
        all(isinstance(item, str) for item in items),
        kind,
        spec.name,
        f"{what} should be a tuple of names, not {value!r}",
    )
    object.__setattr__(spec, what, items)


def _freeze_mapping(spec: Any, kind: str, what: str) -> None:
    value = getattr(spec, what)
    _require(
        isinstance(value, Mapping),
        kind,
        spec.name,
        f"{what} should map an invariant's name to a reason, not be {value!r}",
    )
    object.__setattr__(spec, what, MappingProxyType(dict(value)))


def _freeze_common(spec: ScoringSpec | MechanismSpec, kind: str) -> None:
    _check_name(kind, spec.name)
    _check_callable(kind, spec.name, make=spec.make)
    for what in ("sizes", "reference"):
        if getattr(spec, what) is not None:
            _check_callable(kind, spec.name, **{what: getattr(spec, what)})
    if spec.dtypes is not None:
        _freeze_tuple(spec, kind, "dtypes")
        _check_names(kind, spec.name, "dtypes", spec.dtypes, DTYPES)
        _require(bool(spec.dtypes), kind, spec.name, "dtypes is empty; leave it None for all")
    _freeze_tuple(spec, kind, "laws")
    _freeze_mapping(spec, kind, "exempt")
    variants = tuple(MappingProxyType(dict(v)) for v in spec.variants)
    object.__setattr__(spec, "variants", variants)
    object.__setattr__(spec, "make", signed_make(spec, kind))


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoringSpec:
    """A scoring function: how to make it, what it computes, and what it promises.

    Args:
        name: its address; unique among scoring functions and mechanisms.
        make: ``make(query_size, key_size, **options)``, sizes by position, gives an ``nn.Module``
            whose ``forward(query, key)`` maps ``(..., L, Eq)`` and ``(..., S, Ek)`` to scores
            ``(..., L, S)``, in the dtype of the query or float32.
        formula: the score of one query ``q`` and one key ``k``, as one writes it.
        source: where it comes from: authors, year, identifier.
        equal_sizes: only ``query_size == key_size`` is legal.
        sizes: maps drawn :class:`Sizes` to legal ones where more is needed.
        reference: ``reference(module, q, k)`` is the score of one query and one key, lists of
            Python floats, computed without torch but for ``.tolist()`` of the parameters.
        dtypes: names such as ``"float32"``; ``None`` means all floating ones.
        laws: names of laws that it obeys; each is checked.
        exempt: maps the name of an invariant that it does not obey to the reason.
        variants: options under which it is listed as a subject of its own too.

    Raises:
        SpecError: a field has the wrong type, or a name is unknown.
    """

    name: str
    make: Callable[..., nn.Module]
    formula: str = ""
    source: str = ""
    equal_sizes: bool = False
    sizes: Callable[[Sizes], Sizes] | None = None
    reference: Callable[[Any, list[float], list[float]], float] | None = None
    dtypes: tuple[str, ...] | None = None
    laws: tuple[str, ...] = ()
    exempt: Mapping[str, str] = field(default_factory=dict)
    variants: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        _freeze_common(self, "scoring")


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
            ``return_weights=True`` it gives ``(output, weights)``. ``valid_lens`` comes in integers
            of any width, ``dropout_p`` in ``[0, 1)``; what it does not accept is folded into
            ``attn_mask``, of which a floating one has the dtype of the query.

    Raises:
        SpecError: a field has the wrong type, or a name is unknown.
    """

    name: str
    make: Callable[..., nn.Module]
    formula: str = ""
    source: str = ""
    equal_sizes: bool = False
    sizes: Callable[[Sizes], Sizes] | None = None
    reference: Callable[..., list[list[float]]] | None = None
    dtypes: tuple[str, ...] | None = None
    accepts: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    exempt: Mapping[str, str] = field(default_factory=dict)
    variants: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        _freeze_common(self, "mechanism")
        _freeze_tuple(self, "mechanism", "accepts")
        _check_names("mechanism", self.name, "accepts", self.accepts, ACCEPTS)


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
        supports: ``supports(case)`` gives ``None``, or the reason why it cannot run that case;
            plain Python on the case's fields, since torch.compile traces it.
        priority: ``attend(kernel="auto")`` takes the highest of those that support a case.
        exempt: maps the name of an invariant that it does not obey to the reason.

    Raises:
        SpecError: a field has the wrong type.
    """

    name: str
    scoring: str
    attend: Callable[..., Tensor]
    supports: Callable[[Case], str | None] | None = None
    priority: int = 0
    exempt: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_name("kernel", self.name)
        _check_name("kernel", self.scoring)
        _check_callable("kernel", self.name, attend=self.attend)
        if self.supports is not None:
            _check_callable("kernel", self.name, supports=self.supports)
        _require(
            isinstance(self.priority, int), "kernel", self.name, "priority should be an integer"
        )
        _freeze_mapping(self, "kernel", "exempt")


@dataclass(frozen=True, kw_only=True, eq=False)
class Invariant:
    """A property that must hold for every case of a subject.

    Args:
        name: the property, as a statement (``masked_slots_are_inert``); its id everywhere.
        statement: the property in one sentence.
        check: ``check(subject, case)`` raises :class:`attnbench.InvariantViolation` if it does not
            hold. ``hypothesis.assume`` inside it rejects a case that says nothing.
        cases: ``cases(subject)`` gives a Hypothesis strategy of cases; the general one by default.
        applies: ``applies(subject)`` gives ``None``, or the reason why it says nothing of it.
        law: it holds only for subjects that declare it.

    Raises:
        SpecError: a field has the wrong type.
    """

    name: str
    statement: str = ""
    check: Callable[[Subject, Case], None]
    cases: Callable[[Subject], SearchStrategy[Case]] | None = None
    applies: Callable[[Subject], str | None] | None = None
    law: bool = False

    def __post_init__(self) -> None:
        _check_name("invariant", self.name)
        _check_callable("invariant", self.name, check=self.check)
        for what in ("cases", "applies"):
            if getattr(self, what) is not None:
                _check_callable("invariant", self.name, **{what: getattr(self, what)})
