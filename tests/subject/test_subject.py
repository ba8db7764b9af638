import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import attnbench
from attnbench.errors import AddressError, UnknownNameError
from attnbench.subject.lookup import resolve
from tests.invariant_runs import run

FILE = """
import attnbench, torch

class Cosine(torch.nn.Module):
    def forward(self, query, key):
        norm = torch.nn.functional.normalize
        return norm(query, dim=-1, eps=1e-6) @ norm(key, dim=-1, eps=1e-6).mT

SPEC = attnbench.ScoringSpec(name="cosine", make=lambda q, k: Cosine(), equal_sizes=True)
KERNEL = attnbench.KernelSpec(
    name="again",
    scoring="cosine",
    attend=lambda module, query, key, value, attn_mask=None, is_causal=False: (
        attnbench.attend(module, query, key, value, attn_mask=attn_mask, is_causal=is_causal,
                         kernel="plain")
    ),
)
BOTH = [SPEC, KERNEL]
NUMBER = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Any:
    path = tmp_path / "my scores (1).py"
    path.write_text(textwrap.dedent(FILE))
    return path


def test_an_iterable_of_specs_gives_a_subject_each_and_kernels_find_their_scoring(
    file: Any,
) -> None:
    assert [s.name for s in resolve(f"{file}:BOTH")] == ["cosine", "cosine/again"]
    assert {s.stored_as for s in resolve(f"{file}:SPEC")} == {f"{file} cosine"}


@pytest.mark.parametrize(
    ("attribute", "error", "message"),
    [("SPECS", UnknownNameError, "Did you mean 'SPEC'"), ("NUMBER", AddressError, "is 3, but")],
)
def test_a_wrong_attribute_is_an_error(file: Any, attribute: Any, error: Any, message: Any) -> None:
    with pytest.raises(error, match=message):
        resolve(f"{file}:{attribute}")


def test_a_file_that_cannot_be_read_as_python_is_one_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("\ndef x(:\n")
    with pytest.raises(AddressError, match=r"(?s)cannot be imported: SyntaxError.*broken\.py:2"):
        resolve(f"{path}:SPEC")


def test_what_is_neither_address_nor_spec_is_an_error() -> None:
    with pytest.raises(AddressError, match="an address, a spec or a callable, not 3"):
        resolve(3)


@pytest.mark.parametrize("widest", [4, 100])
def test_a_kernel_shows_its_weights_at_once_or_in_as_wide_values_as_it_takes(widest: Any) -> None:
    widths = []

    def scaled_dot(
        module: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: Any = False
    ) -> Any:
        widths.append(value.shape[-1])
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)

    kernel = attnbench.KernelSpec(
        name="narrow",
        scoring="scaled_dot",
        attend=scaled_dot,
        supports=lambda case: None if case.value_size <= widest else "too wide a value",
    )
    (subject,) = resolve(kernel)
    (scoring,) = resolve("scaled_dot")
    module, inputs = subject.build(attnbench.Case((2,), 3, 11, mask="padding"))
    weights = subject.weights(module, inputs)
    assert torch.allclose(weights, scoring.weights(module, inputs), atol=1e-6)
    assert widths == ([11] if widest == 100 else [4, 4, 4])


TWICE = """
import attnbench, torch

class Twice(torch.nn.Module):
    def __init__(self, query_size, key_size):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(key_size))

    def forward(self, query, key):
        return query @ key.mT + 2 * (key @ self.bias).unsqueeze(-2)

def once(module, query, key):
    return sum(q * k for q, k in zip(query, key)) + sum(
        b * k for b, k in zip(module.bias.tolist(), key)
    )

SPEC = attnbench.ScoringSpec(
    name="twice", make=lambda q, k: Twice(q, k), equal_sizes=True, reference=once
)
"""


@pytest.mark.slow
def test_a_bias_that_begins_at_zero_is_moved_so_that_its_use_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "twice.py"
    path.write_text(TWICE)
    (subject,) = resolve(f"{path}:SPEC")
    assert subject.constant_parameters == ("bias",)
    module, _ = subject.build(attnbench.Case())
    assert len(set(module.bias.tolist())) == 4
    assert subject.make(4, 4, 4).bias.tolist() == [0.0] * 4
    assert run(f"{path}:SPEC", "agrees_with_scalar_reference").status == "failed"
    assert run(f"{path}:SPEC", "keys_permute_freely").status == "passed"


def test_of_single_numbers_a_zero_is_moved() -> None:
    class Gate(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate = torch.nn.Parameter(torch.zeros(()))
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, query: Any, key: Any) -> Any:
            return (query * self.scale) @ key.mT * (1 + self.gate)

    spec = attnbench.ScoringSpec(name="gate", make=lambda q, k: Gate(), equal_sizes=True)
    (subject,) = resolve(spec)
    assert subject.constant_parameters == ("gate",)
    module, _ = subject.build(attnbench.Case())
    assert (module.gate.item() != 0, module.scale.tolist()) == (True, [1.0])


def test_only_floating_parameters_that_are_there_are_moved() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lazy = torch.nn.LazyLinear(3)
            self.count = torch.nn.Parameter(torch.zeros(3, dtype=torch.int64), requires_grad=False)
            self.bias = torch.nn.Parameter(torch.ones(3))

        def forward(self, query: Any, key: Any) -> Any:
            return query @ key.mT

    spec = attnbench.ScoringSpec(name="odd", make=lambda q, k: Odd(), equal_sizes=True)
    (subject,) = resolve(spec)
    assert subject.constant_parameters == ("bias",)
