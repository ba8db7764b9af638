"""The declarations of a scoring function and of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.cases.sizes import Sizes
from attnbench.specs.common import (
    check_callable,
    check_spec_name,
    check_type,
    freeze_common,
    freeze_exempt,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from attnbench.cases.case import Case


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
