"""The timed calls: attention, its gradients, and a step of decoding.

A step of decoding changes its cache, so each gets its own copy, made before the clock starts. The
copies share the floating-point tensors of the cache: a step that writes in place writes the same
slots in every copy, and new tensors belong to one copy. The processor's caches therefore stay as
warm as the contract says, and a slot of many calls needs no more memory than a single call.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.benchmark.timing.rotation import FreshCall
from attnbench.cases.case import Case
from attnbench.errors import SpecError
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs, LayerInputs

Call = Callable[[], Any]


class StepInputs(LayerInputs):
    """One token, and the cache of the tokens before it.

    Args:
        hidden: ``(B, 1, E)``, the last token.
        past: ``(B, S - 1, E)``, the tokens before it.
        cache: cache that holds ``past``.
    """

    def __init__(self, hidden: Tensor, past: Tensor, cache: Any) -> None:
        super().__init__(hidden)
        object.__setattr__(self, "past", past)
        object.__setattr__(self, "cache", cache)

    past: Tensor
    cache: Any

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors, including those of the cache."""
        yield "hidden", self.hidden
        for number, tensor in enumerate(cache_tensors(self.cache)):
            yield f"cache {number}", tensor


class Step(FreshCall):
    """The timed call of one decoding step, each on a copy of the cache."""

    appends = True

    def __init__(self, subject: LayerSubject, module: nn.Module, inputs: StepInputs) -> None:
        self.inputs = inputs
        # counters and positions are not shared: a step may change them in place
        shared = [
            item
            for item in _deepcopied_items(inputs.cache)
            if not isinstance(item, Tensor) or item.is_floating_point()
        ]
        memo = {id(item): item for item in shared}

        def run(given: StepInputs) -> Tensor:
            with torch.no_grad():
                return subject.call(module, given.hidden, None, given.cache)[0]

        def build(tensors: Sequence[Tensor]) -> StepInputs:
            return StepInputs(tensors[0], inputs.past, copy.deepcopy(inputs.cache, dict(memo)))

        super().__init__(run, [inputs.hidden], build, leaves=False)
        self._call = functools.partial(subject.call, module)

    def alone(self) -> tuple[Tensor, Any]:
        """Run the step on a full copy of the cache; returns the output and that cache."""
        with torch.no_grad():
            return self._call(self.inputs.hidden, None, copy.deepcopy(self.inputs.cache))


def _deepcopied_items(cache: Any) -> list[Tensor | nn.Module]:
    """The tensors and modules that a deep copy of a cache would copy."""
    memo: dict[int, Any] = {}
    with torch.no_grad():
        copy.deepcopy(cache, memo)
    # deepcopy stores the objects that it copied under the memo's own id
    return [item for item in memo.get(id(memo), ()) if isinstance(item, Tensor | nn.Module)]


def cache_tensors(cache: Any) -> list[Tensor]:
    """The tensors of a cache, one per storage, without those that belong to modules."""
    items = _deepcopied_items(cache)
    modules = [item for item in items if isinstance(item, nn.Module)]
    parameter_ids = {id(t) for module in modules for t in (*module.parameters(), *module.buffers())}
    storages = {
        item.untyped_storage().data_ptr(): item
        for item in items
        if isinstance(item, Tensor) and id(item) not in parameter_ids
    }
    return list(storages.values())


def bytes_a_token(step: Step) -> float | None:
    """Bytes of the cache after a step per token given to it; ``None`` if it holds no tensors.

    Empty slots of a buffer count as bytes, and evicted tokens count as tokens.
    """
    _, cache = step.alone()
    size = sum(tensor.untyped_storage().nbytes() for tensor in cache_tensors(cache))
    batch, past = step.inputs.past.shape[:2]
    return size / (batch * (past + 1)) if size else None


def step_inputs(subject: Subject, case: Case) -> tuple[nn.Module, StepInputs]:
    """Build the module and the inputs of a step from the case's seed.

    Raises:
        SpecError: ``new`` of the layer's ``CacheSpec`` raised an exception.
    """
    assert isinstance(subject, LayerSubject)
    module, whole = subject.build(case.replace(q_len=case.kv_len))
    past, hidden = whole.query[:, :-1], whole.query[:, -1:].contiguous()
    try:
        cache = subject.new_cache(module, case.lead[0])
    except Exception as error:
        raise SpecError(
            f"new(module, {case.lead[0]}) of the cache of {subject.name} raised "
            f"{type(error).__name__}: {error}"
        ) from error
    if case.kv_len > 1:
        with torch.no_grad():
            _, cache = subject.call(module, past, None, cache)
    return module, StepInputs(hidden, past, cache)


def measured_call(subject: Subject, module: nn.Module, inputs: Inputs, direction: str) -> Call:
    """The timed call: the output, or the output and all gradients of inputs and parameters."""
    if isinstance(subject, LayerSubject) and isinstance(inputs, StepInputs):
        return Step(subject, module, inputs)
    if direction != "forward_backward":

        def forward(arguments: Inputs) -> Tensor:
            with torch.no_grad():
                return subject.output(module, arguments)

        return _fresh_call(forward, inputs, leaves=False)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    shape = (*inputs.query.shape[:-1], inputs.value.shape[-1])
    # dense, as from a real loss: kernels would copy an expanded tensor or read it more slowly
    upstream = torch.ones(shape, dtype=inputs.query.dtype, device=inputs.query.device)

    def forward_backward(arguments: Inputs) -> tuple[Tensor, ...]:
        output = subject.output(module, arguments)
        sources = [arguments.query, arguments.key, arguments.value, *parameters]
        return torch.autograd.grad(output, sources, upstream, allow_unused=True)

    return _fresh_call(forward_backward, inputs, leaves=True)


def _fresh_call(run: Callable[[Inputs], Any], inputs: Inputs, *, leaves: bool) -> FreshCall:
    """A call that gets other values every time and the same masks."""
    names = inputs.floating
    tensors = [getattr(inputs, name) for name in names]
    return FreshCall(
        run, tensors, lambda fresh: inputs.replace(**dict(zip(names, fresh, strict=True))), leaves
    )


def compulsory_bytes(module: nn.Module, inputs: Inputs, call: Call) -> int:
    """Bytes that any implementation must move: inputs, parameters, buffers and results."""
    tensors = [tensor for _, tensor in inputs.tensors()]
    tensors += [*module.parameters(), *module.buffers()]
    result = call()
    results = [result] if isinstance(result, Tensor) else [t for t in result if t is not None]
    return sum(t.numel() * t.element_size() for t in (*tensors, *results))
