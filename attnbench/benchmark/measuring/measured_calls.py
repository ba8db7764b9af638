"""The timed calls, a call that computes nothing, and the bytes that every call must move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.benchmark.decoding import Step, StepInputs
from attnbench.benchmark.timing.rotation import FreshCall
from attnbench.specs import KernelSpec
from attnbench.subject.kernel_subject import KernelSubject
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

Call = Callable[[], Any]


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


def null_call(subject: Subject, module: nn.Module, inputs: Inputs, output: Tensor) -> Call:
    """A call through ``attend`` with a kernel that computes nothing and returns ``output``."""
    assert subject.scoring is not None
    kernel = KernelSpec(
        name="null", scoring=subject.scoring.name, attend=lambda *args, **more: output
    )
    null = KernelSubject("null", kernel, subject.address, subject.scoring)

    def call() -> Tensor:
        with torch.no_grad():
            return null.output(module, inputs)

    return call


def compulsory_bytes(module: nn.Module, inputs: Inputs, call: Call) -> int:
    """Bytes that any implementation must move: inputs, parameters, buffers and results."""
    tensors = [tensor for _, tensor in inputs.tensors()]
    tensors += [*module.parameters(), *module.buffers()]
    result = call()
    results = [result] if isinstance(result, Tensor) else [t for t in result if t is not None]
    return sum(t.numel() * t.element_size() for t in (*tensors, *results))
