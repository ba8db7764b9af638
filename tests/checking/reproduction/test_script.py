"""A first failure comes with a script that shows it in a clean process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench.cases.case import Case
from attnbench.checking.outcomes import Outcome
from attnbench.checking.reproduction.script import reproduce
from attnbench.errors import InvariantViolation
from attnbench.specs import Invariant
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject

USERS_FILE = textwrap.dedent(
    '''
    """A plugin that is not installed."""

    import attnbench
    import torch
    from torch import nn


    class Cosine(nn.Module):
        """Cosine of query and key."""

        def forward(self, query, key):
            {body}


    SPEC = attnbench.ScoringSpec(
        name="cosine",
        make=lambda query_size, key_size: Cosine(),
        equal_sizes=True,
        reference=lambda module, q, k: sum(a * b for a, b in zip(q, k)),
        laws=({laws}),
    )
    '''
)
DOT = "query @ key.mT"


def test_the_failure_shown_is_the_most_specific_one(tmp_path: Path) -> None:
    file = tmp_path / "my_scores.py"
    normalised = (
        "return nn.functional.normalize(query, dim=-1) @ nn.functional.normalize(key, dim=-1).mT"
    )
    file.write_text(USERS_FILE.format(body=normalised, laws=""))
    names = ["agrees_with_float64", "finite_at_extremes"]
    told = str(attnbench.check(f"{file}:SPEC", profile="quick", invariants=names))
    assert "FAILED cosine: finite_at_extremes" in told


def first_failure(tmp_path: Path, body: str, invariant: str, laws: str = "") -> Outcome:
    file = tmp_path / "my_scores.py"
    file.write_text(USERS_FILE.format(body=body, laws=laws))
    report = attnbench.check(f"{file}:SPEC", profile="quick", invariants=[invariant])
    (outcome,) = report.of("failed")
    return outcome


@pytest.mark.parametrize(
    ("body", "invariant", "laws", "shown"),
    [
        (f"return ({DOT}).abs()", "bilinear", '"bilinear",', "AssertionError"),
        (f"return ({DOT}).squeeze()", "keeps_the_contract", "", "AssertionError"),
        (f"return {DOT} + query.detach().mean()", "calls_leave_no_trace", "", None),
        ("raise KeyError('weights')", "keeps_the_contract", "", "KeyError"),
        (f"return ({DOT}).softmax(-2)", "query_alone_equals_query_among_others", "", "Assertion"),
        (f"return 2 * {DOT}", "unit_variance", '"unit_variance",', "AssertionError"),
        ("return query @ (2 * key - key.detach()).mT", "gradients_are_right", "", "AssertionError"),
    ],
)
def test_the_script_fails_in_a_clean_process_as_the_check_did(
    tmp_path: Path, body: str, invariant: str, laws: str, shown: str | None
) -> None:
    if shown is None:  # the control: what holds has no script
        file = tmp_path / "my_scores.py"
        file.write_text(USERS_FILE.format(body=body, laws=laws))
        report = attnbench.check(f"{file}:SPEC", profile="quick", invariants=[invariant])
        assert report.ok
        assert report.outcomes[0].reproduce is None
        return
    script = first_failure(tmp_path, body, invariant, laws).reproduce
    assert script is not None
    assert "import attnbench" not in script
    assert "my_scores.SPEC.make" in script
    path = tmp_path / "reproduce.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert shown in done.stderr.splitlines()[-1]


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
@pytest.mark.parametrize(
    ("body", "invariant", "line"),
    [
        pytest.param(
            "2 if torch.compiler.is_compiling() else 1",
            "compiled_equals_eager",
            "torch.compile(",
            marks=pytest.mark.long,
        ),
        ("1 if query.sum().item() < 1e9 else 2", "vmap_equals_batch", "torch.func.vmap("),
        ("1 if query.sum().item() < 1e9 else 2", "fake_tensors_tell_the_shape", "FakeTensorMode("),
        ("30 if torch.is_autocast_enabled('cpu') else 1", "autocast_agrees", "torch.autocast("),
    ],
)
def test_what_fails_when_transformed_has_a_script_that_transforms_a_call(
    tmp_path: Path, body: str, invariant: str, line: str
) -> None:
    script = first_failure(tmp_path, f"return {DOT} * ({body})", invariant).reproduce
    assert script is not None
    assert "import attnbench" not in script
    assert line in script


NOT_ITS_REFERENCE = """
import math

import torch

import attnbench


class Mine(torch.nn.Module):
    def forward(self, query, key, value=None, attn_mask=None):
        if value is not None:
            return attnbench.attend(Mine(), query, key, value, attn_mask=attn_mask)
        return query @ key.mT


def pair(module, query, key):
    return 2 * sum(q * k for q, k in zip(query, key))


def whole(module, query, key, value, allowed):
    rows = []
    for q, may in zip(query, allowed):
        each = [math.exp(pair(module, q, k)) * m for k, m in zip(key, may)]
        rows.append([sum(e * v for e, v in zip(each, c)) / sum(each) for c in zip(*value)])
    return rows


SPEC = attnbench.{kind}(
    name="mine",
    make=lambda *sizes: Mine(),
    equal_sizes=True,
    reference=pair if attnbench.{kind} is attnbench.ScoringSpec else whole,
)
"""


def test_what_spoils_gradients_alone_when_compiled_has_a_script(tmp_path: Path) -> None:
    body = f"""
        scores = {DOT}
        return scores.detach() if torch.compiler.is_compiling() else scores
    """
    script = first_failure(tmp_path, body.strip(), "compiled_equals_eager").reproduce
    assert script is not None
    assert "largest difference of the gradient by" in script


@pytest.mark.parametrize("kind", ["ScoringSpec", "MechanismSpec"])
def test_what_is_not_its_reference_has_a_script_that_compares_them(
    tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "my_scores.py"
    file.write_text(NOT_ITS_REFERENCE.format(kind=kind))
    name = "agrees_with_scalar_reference"
    report = attnbench.check(f"{file}:SPEC", profile="quick", invariants=[name])
    (failed,) = report.of("failed")
    assert failed.reproduce is not None
    assert "reference(module, " in failed.reproduce
    (tmp_path / "reproduce.py").write_text(failed.reproduce)
    command = [sys.executable, str(tmp_path / "reproduce.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.strip().endswith("AssertionError")
    assert "and by the reference" in done.stdout


def test_the_script_of_a_kernel_calls_the_kernel(tmp_path: Path) -> None:
    file = tmp_path / "my_kernel.py"
    file.write_text(
        textwrap.dedent(
            """
            import attnbench
            from torch.nn.functional import scaled_dot_product_attention


            def attend(module, query, key, value, attn_mask=None, is_causal=False):
                assert query.sum().isfinite()  # which vmap cannot look at
                return scaled_dot_product_attention(
                    query, key, value, attn_mask=attn_mask, is_causal=is_causal
                )


            SPEC = attnbench.KernelSpec(name="mine", scoring="scaled_dot", attend=attend)
            """
        )
    )
    report = attnbench.check(f"{file}:SPEC", profile="quick", invariants=["vmap_equals_batch"])
    (failed,) = report.of("failed")
    assert failed.reproduce is not None
    assert "from my_kernel import attend" in failed.reproduce
    assert "return attend(self.module, query, key, value" in failed.reproduce


def test_the_script_does_not_fail_any_more_once_the_subject_is_put_right(tmp_path: Path) -> None:
    outcome = first_failure(tmp_path, f"return ({DOT}).abs()", "bilinear", '"bilinear",')
    assert outcome.reproduce is not None
    (tmp_path / "reproduce.py").write_text(outcome.reproduce)
    right = USERS_FILE.format(body=f"return {DOT}", laws="")
    (tmp_path / "my_scores.py").write_text(right)
    command = [sys.executable, str(tmp_path / "reproduce.py")]
    subprocess.run(command, capture_output=True, check=True)


PARAMETER = """
    import torch
    from torch import nn
    import attnbench


    class Weighed(nn.Module):
        def __init__(self, query_size, key_size):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(query_size))

        def forward(self, query, key):
            return (query * (self.weight + (self.weight - self.weight.detach()))) @ key.mT


    SPEC = attnbench.ScoringSpec(name="weighed", make=Weighed, equal_sizes=True)
"""


def test_the_script_of_a_parameters_gradient_moves_the_parameter(tmp_path: Path) -> None:
    file = tmp_path / "my_scores.py"
    file.write_text(textwrap.dedent(PARAMETER))
    report = attnbench.check(f"{file}:SPEC", profile="quick", invariants=["gradients_are_right"])
    (outcome,) = report.of("failed")
    assert outcome.reproduce is not None
    path = tmp_path / "reproduce.py"
    path.write_text(outcome.reproduce)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    got, should = (float(text.split()[-1]) for text in done.stdout.split(" but should be "))
    assert got == pytest.approx(2 * should, rel=1e-6)
    assert f"{should:.3g}"[:4] in outcome.reason


def test_one_failure_of_a_subject_has_a_script(tmp_path: Path) -> None:
    file = tmp_path / "my_scores.py"
    body = f"return ({DOT}).softmax(-2)"
    file.write_text(USERS_FILE.format(body=body, laws=""))
    names = ["decode_equals_prefill", "finite_at_extremes"]
    failed = attnbench.check(f"{file}:SPEC", profile="quick", invariants=names).of("failed")
    assert len(failed) == 2
    assert sum(outcome.reproduce is not None for outcome in failed) == 1


class NoWayBack(torch.autograd.Function):
    """Passes through, and raises in the backward pass."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        raise RuntimeError("no way back")


class Forward(nn.Module):
    """A layer that cannot be differentiated."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = NoWayBack.apply(self.linear(hidden))
        return found


def test_a_layer_whose_backward_pass_raises_has_failed_and_stops_no_check() -> None:
    spec = attnbench.LayerSpec(name="forward", make=Forward, causal=True)
    report = attnbench.check(spec, profile="quick", invariants=["later_tokens_are_invisible"])
    (outcome,) = report.of("failed")
    assert "the backward pass raised RuntimeError: no way back" in str(outcome.reason)


def test_a_program_that_fails_only_while_it_is_recorded_has_no_script() -> None:
    """As one whose calls follow what earlier calls of the same process left."""
    runs: list[int] = []

    def check(subject: Subject, case: Case) -> None:
        runs.append(case.q_len)
        if len(runs) > 1:
            raise InvariantViolation("wrong", compared={"lines": ["assert False"]})

    (subject,) = resolve("scaled_dot")
    invariant = Invariant(name="once", statement="Once.", check=check)
    assert reproduce(subject, invariant, Case()) is None
    assert len(runs) == 2


def test_a_file_that_checks_its_code_when_it_is_imported_writes_no_script_within_one(
    tmp_path: Path,
) -> None:
    file = tmp_path / "my_scores.py"
    text = USERS_FILE.format(body=f"return ({DOT}).softmax(-2)", laws="")
    check = "attnbench.check(SPEC, profile='quick', invariants=['decode_equals_prefill'])"
    seen = tmp_path / "scripts.txt"
    note = f"with open({str(seen)!r}, 'a') as seen: print(outcome.reproduce is not None, file=seen)"
    lines = (f"(outcome,) = {check}.of('failed')", note)
    file.write_text("\n".join(("import attnbench", text, *lines)))
    names = ["decode_equals_prefill"]
    (outcome,) = attnbench.check(f"{file}:SPEC", profile="quick", invariants=names).of("failed")
    assert outcome.reproduce is not None
    assert seen.read_text().split()[:2] == ["False", "True"]  # in a script, and where it is read
