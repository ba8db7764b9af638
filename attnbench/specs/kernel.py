"""The declaration of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from attnbench.specs.common import check_callable, check_spec_name, check_type, freeze_exempt

if TYPE_CHECKING:
    from torch import Tensor

    from attnbench.cases.case import Case


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
