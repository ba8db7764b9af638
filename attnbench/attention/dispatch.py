"""The choice of the kernel for a call: the named one, or the first that supports it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from attnbench._signing import ORIGIN
from attnbench.attention.masks import Mask
from attnbench.attention.torch_internals import constant_for_compiler
from attnbench.cases.case import Case
from attnbench.errors import RefusalError, UnknownNameError, UsageError, nearest
from attnbench.registry.catalog import registry
from attnbench.specs import KernelSpec, ScoringSpec

_ROWS_ALONE = "query_alone_equals_query_among_others"
"""The invariant from which position-dependent scoring functions are exempt."""


@dataclass(frozen=True)
class Choice:
    """A kernel, and the reason why it cannot run a case; ``None`` if it can."""

    kernel: KernelSpec
    reason: str | None


def choices(scoring: ScoringSpec, case: Case) -> Iterator[Choice]:
    """The kernels of a scoring function in the order in which ``kernel="auto"`` tries them."""
    return _each(registry().kernels(scoring), case)


def _each(kernels: Iterable[KernelSpec], case: Case) -> Iterator[Choice]:
    for kernel in kernels:
        yield Choice(kernel, kernel.supports(case) if kernel.supports else None)


_KERNELS: dict[str | None, tuple[ScoringSpec | None, tuple[KernelSpec, ...]]] = {}
"""The scoring function that made a module, and its kernels, by the module's origin.

A compiled graph guards what it reads from this table. It cannot call a function that was returned
to it as a constant.
"""


@constant_for_compiler
def _look_up(origin: str | None) -> None:
    """Put an origin into the table, in a function that is not traced into a graph."""
    scoring = registry().scoring_by_origin(origin)
    _KERNELS[origin] = scoring, () if scoring is None else tuple(registry().kernels(scoring))


def scoring_of(module: nn.Module) -> ScoringSpec | None:
    """The registered scoring function that made a module; ``None`` if none did."""
    return registry().scoring_by_origin(getattr(module, ORIGIN, None))


def rows_stand_alone(module_or_name: nn.Module | str) -> bool:
    """Whether a row of scores is known to depend only on its query and the keys.

    False for position-dependent scorings, and for modules that no registered spec made.
    """
    if isinstance(module_or_name, str):
        spec: object = registry().get(module_or_name)
    else:
        origin = getattr(module_or_name, ORIGIN, None)
        _look_up(origin)
        spec = _KERNELS[origin][0]
    return isinstance(spec, ScoringSpec) and _ROWS_ALONE not in spec.exempt


def call_case(query: Tensor, key: Tensor, value: Tensor, mask: Mask, is_causal: bool) -> Case:
    """The case of a call, with the fields that a kernel's ``supports`` may use."""
    kind = "causal" if is_causal else "floating" if mask.bias is not None else "boolean"
    return Case(
        lead=tuple(query.shape[:-2]),
        q_len=query.shape[-2],
        kv_len=key.shape[-2],
        query_size=query.shape[-1],
        key_size=key.shape[-1],
        value_size=value.shape[-1],
        dtype=str(query.dtype).removeprefix("torch."),
        device=query.device.type,
        mask=kind if is_causal or mask.allowed is not None or mask.bias is not None else "none",
    )


def choose(module: nn.Module, kernel: str | KernelSpec | None, case: Case) -> KernelSpec | None:
    """The kernel to run; ``None`` for the plain path.

    Raises:
        UnknownNameError: the scoring function has no such kernel.
        UsageError: the named kernel cannot run this, or does not belong to this module.
    """
    if kernel is None or kernel == "plain":
        return None
    if isinstance(kernel, KernelSpec):
        reason = kernel.supports(case) if kernel.supports else None
        if reason is not None:
            raise RefusalError(f"{kernel.scoring}/{kernel.name} cannot run this: {reason}")
        return kernel
    origin = getattr(module, ORIGIN, None)
    _look_up(origin)
    scoring, kernels = _KERNELS[origin]
    if scoring is None:
        if kernel == "auto":
            return None
        raise UsageError(
            f"kernel={kernel!r} is named, but the module was not made by a registered scoring "
            "function; make it with attnbench.get(name).make(query_size, key_size), "
            "or leave kernel='auto'."
        )
    offered = _each(kernels, case)
    if kernel == "auto":
        return next((choice.kernel for choice in offered if choice.reason is None), None)
    table = {choice.kernel.name: choice for choice in offered}
    named_choice = table.get(kernel.removeprefix(f"{scoring.name}/"))
    if named_choice is None:
        raise UnknownNameError(
            f"{scoring.name} has no kernel {kernel!r}. {nearest(kernel, [*table, 'plain'])}"
        )
    name, reason = named_choice.kernel.name, named_choice.reason
    if reason is not None:
        raise RefusalError(f"{scoring.name}/{name} cannot run this: {reason}")
    return named_choice.kernel
