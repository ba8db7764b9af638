"""Invariants on calls with a cache: their outputs, however a sequence is cut into calls."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.checking.answer_faults import raised_text
from attnbench.errors import AttnbenchError, InvariantViolation
from attnbench.invariants.caches.checks import cache_cases, cache_invariant, has_cache
from attnbench.invariants.toolkit.applicability import accepts
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject


@invariant(kinds=("layer",), cases=cache_cases, applies=accepts("cache", "it has no cache"))
def cached_calls_keep_the_contract(subject: Subject, case: Case) -> None:
    """A call with a new cache gives finite outputs (B, L, E) of the new tokens, the same each time,
    and changes nothing but the cache.
    """
    assert isinstance(subject, LayerSubject)
    if subject.spec.cache is None:
        raise InvariantViolation(
            f"{subject.name} accepts a cache, but its spec has none to give it: declare "
            "cache=CacheSpec(new=...), or leave 'cache' out of accepts"
        )
    module, _ = subject.build(case)
    generator = torch.Generator().manual_seed(case.seed)
    shape = (case.lead[0], 9, case.query_size)
    hidden = torch.randn(shape, generator=generator, dtype=torch.float64)
    hidden = hidden.to(getattr(torch, case.dtype)).to(case.device)
    first, second = (_outputs(subject, module, hidden) for _ in range(2))
    for name, one, two in zip(("3", "1 more", "5 more"), first, second, strict=True):
        if not bool(one.isfinite().all()):
            place = (~one.isfinite()).nonzero()[0].tolist()
            raise InvariantViolation(
                f"with a cache, output{place} of the call on {name} tokens = "
                f"{one[tuple(place)].item()}, but should be finite for finite inputs"
            )
        if not torch.allclose(one.double(), two.double(), rtol=1e-3, atol=1e-5):
            raise InvariantViolation(
                f"the output of the call on {name} tokens differs the second time, with another "
                f"new cache: {one.flatten()[0].item():.6g}, then {two.flatten()[0].item():.6g}"
            )


def _outputs(subject: LayerSubject, module: nn.Module, hidden: Tensor) -> list[Tensor]:
    change = "new of its cache"
    outputs, capacity = [], subject.capacity
    try:
        cache = subject.new_cache(module, hidden.shape[0])
        for start, end in ((0, 3), (3, 4), (4, 9)):
            change = f"the call with a cache on {end - start} tokens after {start}"
            chunk = hidden[:, start : min(end, capacity)].clone()
            if not chunk.shape[1]:
                chunk = hidden[:, :0].clone()
                outputs.append(chunk)
                continue
            before = chunk.clone()
            with torch.no_grad():
                output, cache = subject.call(module, chunk, None, cache)
            outputs.append(output)
            if not torch.equal(chunk, before):
                raise InvariantViolation(f"{change} changed hidden, but should leave it as it is")
    except InvariantViolation:
        raise
    except AttnbenchError as error:
        raise InvariantViolation(f"{change}: {error}") from error
    except (Exception, SystemExit) as error:
        raise InvariantViolation(f"{change}: {raised_text(subject, error)}") from error
    return outputs


calls_may_be_cut_anywhere = cache_invariant(
    "split",
    "However a sequence is cut into calls with a cache, the outputs equal those of one call.",
    has_cache,
)
calls_without_cache_leave_none = cache_invariant(
    "fresh",
    "A call without a cache, between calls with one, neither affects them nor is affected.",
    has_cache,
)
