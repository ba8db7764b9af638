"""Ordinary calls, which a change of the source should leave as they are unless they are wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.checking.mending.time_limit import TooLong, limited
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject

CALLS = (
    Case((1,), 1, 1, 8, 8, 8),
    Case((1, 2), 4, 4, 8, 8, 8),
    Case((2,), 5, 5, 8, 8, 8),
    Case((2,), 12, 12, 8, 8, 8),
    Case((2,), 4, 4, 8, 8, 8, mask="padding"),
    Case((2,), 4, 4, 8, 8, 8, mask="causal"),
)
"""The calls, smallest first."""

_STEPS = 6
"""Tokens that are given one by one."""

_SECONDS = 2.0
"""Most seconds of computing of a call, as changed code may loop."""

_NEAR = 2e-6
"""How far outputs may part, as a share of the largest."""

Ordinary = Callable[[], Tensor | None]


def output(subject: Subject, call: Case) -> Tensor | None:
    """The output of a call; ``None`` if the subject takes no such call, or it raises."""
    case = subject.legal(call)
    try:
        with limited(_SECONDS), torch.no_grad():
            if subject.unsupported(case) is None:
                return subject.output(*subject.build(case)).double()
    except (Exception, SystemExit, TooLong):
        return None
    return None


def steps(subject: Subject, moved: str = "") -> Tensor | None:
    """The outputs of tokens that are given to a cache one by one; ``None`` as in :func:`output`.

    Args:
        subject: any; only a layer with a cache has such outputs.
        moved: the name of a parameter that is moved before.
    """
    if not isinstance(subject, LayerSubject) or "cache" not in subject.accepts:
        return None
    case = subject.legal(Case((1,), 1, 1, 8, 8, 8))
    tokens = torch.randn(1, _STEPS, case.query_size, generator=torch.Generator().manual_seed(0))
    outputs = []
    try:
        with limited(_SECONDS), torch.no_grad():
            module, _ = subject.build(case)
            for parameter in [module.get_parameter(moved)] if moved else []:
                parameter.copy_(1 - 3 * parameter)
            cache = subject.new_cache(module, 1)
            for token in torch.split(tokens.to(getattr(torch, case.dtype)), 1, 1):
                one, cache = subject.call(module, token, None, cache)
                outputs.append(one.double())
    except (Exception, SystemExit, TooLong):
        return None
    return torch.cat(outputs, 1)


def influences(subject: Subject) -> frozenset[str]:
    """The inputs and parameters that change the output of an ordinary call, or of single tokens.

    And the parameters that there are: what one without numbers should do, it does.
    """
    case, found, single = subject.legal(CALLS[1]), set[str](), steps(subject)
    try:
        with limited(_SECONDS), torch.no_grad():
            module, inputs = subject.build(case)
            still = subject.output(module, inputs).clone()
            for name in inputs.floating:
                other = inputs.replace(**{name: 1 - 3 * getattr(inputs, name)})
                found |= set() if is_near(subject.output(module, other), still) else {name}
            for name, parameter in module.named_parameters():
                found |= {f"numbers of {name}"} if parameter.numel() else set()
                before = parameter.clone()
                parameter.copy_(1 - 3 * before)
                found |= set() if is_near(subject.output(module, inputs), still) else {name}
                parameter.copy_(before)
                if single is not None and not is_near(steps(subject, name), single):
                    found.add(f"{name} of single tokens")
    except (Exception, SystemExit, TooLong):
        return frozenset(found)
    return frozenset(found)


def kept(calls: Iterable[Ordinary]) -> Iterator[tuple[Ordinary, Tensor]]:
    """Yield the calls that give an output, and the same again: one may leave something behind."""
    for call in calls:
        found = call()
        if found is not None and is_near(call(), found):
            yield call, found


def is_near(one: Tensor | None, other: Tensor) -> bool:
    """Whether an output is there, and the same as another but for rounding."""
    if one is None or one.shape != other.shape:
        return False
    margin = _NEAR * float(other.nan_to_num().abs().amax()) if other.numel() else 0.0
    return torch.allclose(one, other, rtol=0.0, atol=margin, equal_nan=True)
