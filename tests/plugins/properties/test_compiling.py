from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_zoo.right.attention import ATTENTION, Attention
from torch import Tensor

import attnbench
from attnbench.subject.lookup import resolve
from tests.attention_functions import with_gradient
from tests.invariant_runs import mutant, run


def test_a_function_of_autograd_that_is_not_written_for_vmap_is_no_fault() -> None:
    class OwnBackward(Attention):
        def pool(self, weights: Tensor, value: Tensor) -> Tensor:
            return with_gradient(lambda gradient: gradient)(super().pool(weights, value))

    outcome = run(mutant(OwnBackward), "vmap_equals_batch")
    assert outcome.status == "skipped"
    assert "setup_context" in outcome.reason


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
def test_what_has_no_gradients_is_no_fault_of_compiling() -> None:
    class Forward(Attention):
        def pool(self, weights: Tensor, value: Tensor) -> Tensor:
            return torch.matmul(weights, value, out=value.new_empty(0))

    outcome = run(mutant(Forward), "compiled_equals_eager")
    assert outcome.status == "skipped", outcome.reason


@pytest.mark.parametrize("masked", [False, True])
def test_attend_compiles_as_one_graph(masked: bool) -> None:
    torch.compiler.reset()
    subject = resolve("additive")[0]
    module, inputs = subject.build(attnbench.Case(mask="boolean" if masked else "causal_padding"))
    given: dict[str, Any] = {
        "attn_mask": inputs.attn_mask,
        "valid_lens": inputs.valid_lens,
        "is_causal": inputs.is_causal,
    }

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = attnbench.attend(module, query, key, value, **given)
        return output

    tensors = inputs.query, inputs.key, inputs.value
    whole = torch.compile(call, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(whole(*tensors), call(*tensors))


def test_a_subject_is_not_to_blame_where_nothing_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*called: Any, **options: Any) -> None:
        raise OSError("Read-only file system: 'cache'")

    monkeypatch.setattr(torch, "compile", broken)
    outcome = run(ATTENTION, "compiled_equals_eager")
    assert outcome.status == "skipped"
    assert (
        "here (attnbench list --machine) torch.compile raised OSError: Read-only" in outcome.reason
    )


def test_a_failure_of_the_debugging_backend_alone_is_no_failure(monkeypatch: Any) -> None:
    compile_ = torch.compile

    def failing(function: Any, *, backend: str) -> Any:
        if backend == "aot_eager":
            raise RuntimeError("only this backend")
        return compile_(function, backend="eager")

    monkeypatch.setattr(torch, "compile", failing)
    outcome = run("scaled_dot", "compiled_equals_eager")
    assert outcome.status == "skipped"
    assert "'aot_eager', which is for debugging, fails" in outcome.reason
