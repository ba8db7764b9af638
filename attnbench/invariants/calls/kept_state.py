"""What a module may not keep: other modules' sizes, and parameters that have changed since."""

from __future__ import annotations

import torch

from attnbench.cases.case import Case
from attnbench.cases.spaces import CaseStrategy, listed
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.subject.subject import Subject


def called_beside_others(subject: Subject, case: Case) -> None:
    """Raise if making and calling modules of other sizes changes a module's output."""
    base = Baseline(subject, case)
    expected = base.output
    others = (
        case.replace(query_size=2 * case.query_size, key_size=2 * case.key_size),
        case.replace(value_size=2 * case.value_size),
        case.replace(lead=tuple(size + 2 for size in case.lead), kv_len=case.kv_len + 3),
    )
    for number, other in enumerate(others, 1):
        other = subject.legal(other.replace(seed=case.seed + number))
        if (other.sizes, other.kv_len) == (case.sizes, case.kv_len):
            continue
        beside = Baseline(subject, other)
        beside.run(beside.inputs)
        sizes = f"Eq={other.query_size}, Ek={other.key_size}, Ev={other.value_size}"
        told = f"after a module of {sizes} was made, and called with leading sizes {other.lead},"
        base.repeat(f"{told} output", "the same call before")
    assert base.output is expected


def called_before_a_step(subject: Subject, case: Case) -> None:
    """Raise if a module that was called gives its output of before its parameters changed."""
    base, fresh = Baseline(subject, case), Baseline(subject, case)
    base.run(base.inputs)
    generator = torch.Generator().manual_seed(case.seed)
    with torch.no_grad():
        pairs = zip(base.module.parameters(), fresh.module.parameters(), strict=True)
        for old, new in pairs:
            step = torch.randn(old.shape, generator=generator).to(old) * old.abs().mean() / 2
            old.add_(step)
            new.add_(step)
    fresh.expect(
        base.run(base.inputs),
        "after a call and a step of all parameters, output",
        "a module with these parameters from the start",
    )


def has_no_parameters(subject: Subject) -> str | None:
    """The reason why steps of parameters are not tried, or ``None``."""
    module, _ = subject.build(subject.legal(Case()))
    return None if any(True for _ in module.parameters()) else "it has no parameters"


def kept_state_cases(subject: Subject) -> CaseStrategy:
    """A few small cases; what is kept does not depend on numbers."""
    cases = (Case((2, 3), 4, 6, 8, 6, 5), Case((2,), 3, 5, mask="boolean", seed=1), Case(seed=2))
    dtype = "float32" if "float32" in subject.dtypes else subject.dtypes[0]
    made = (subject.legal(case.replace(dtype=dtype)) for case in cases)
    return listed(*(case for case in made if subject.takes_mask(case.mask)), enough=1)
