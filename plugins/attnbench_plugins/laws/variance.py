"""The invariant on the variance of scores: a test of a mean, over fresh modules."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench import Case, InvariantViolation, Subject
from attnbench.strategies import CaseStrategy, listed
from attnbench.testing import STANDARD_ERRORS, current_profile, has_scores, invariant, reject

_MODULES = 256
_MOST_MODULES = 4096
_WIDEST = 0.35
"""Six relative standard errors; above this, more modules are made."""

_SIZES = ((16, 16), (64, 64), (16, 64), (64, 16), (1, 1), (4, 4))


def _variance_cases(subject: Subject) -> CaseStrategy:
    sizes = _SIZES[:3] if current_profile().name == "quick" else _SIZES
    return listed(
        *(
            subject.legal(Case((), 32, 32, query, key, 1, seed=number))
            for number, (query, key) in enumerate(sizes)
        )
    )


@invariant(
    hint="a factor of the scores, or of the initial parameters, does not go with the sizes",
    cases=_variance_cases,
    applies=has_scores,
    law=True,
)
def unit_variance(subject: Subject, case: Case) -> None:
    """For standard normal query and key, and fresh parameters, the scores' variance is 1.

    Power: at sizes from 16 on, a variance of 1.5 or of 2/3 is found with 99.9 %.
    """
    torch.manual_seed(case.seed)
    firsts: list[Tensor] = []
    squares: list[Tensor] = []
    while True:
        for _ in range(_MODULES):
            scores = _fresh_scores(subject, case)
            firsts.append(scores.mean())
            squares.append(scores.square().mean())
        mean = torch.stack(firsts).mean()
        # (s - mean)² averaged over one module's pairs, which share its parameters
        spread = torch.stack(squares) - 2 * mean * torch.stack(firsts) + mean**2
        variance = float(spread.mean())
        error = float(spread.std()) / len(firsts) ** 0.5
        if STANDARD_ERRORS * error <= _WIDEST * variance or len(firsts) >= _MOST_MODULES:
            break
    # a function scaled for large sizes is a little off at small ones: a tanh gives 0.82 at size 1
    band = 0.05 if min(case.query_size, case.key_size) >= 16 else 0.2
    allowed = band + STANDARD_ERRORS * error
    if not abs(variance - 1.0) <= allowed:
        raise InvariantViolation(
            f"variance of scores = {variance:.4g} over {len(firsts)} fresh modules, but should be "
            f"1 ± {allowed:.2g} for standard normal query and key of sizes {case.query_size} and "
            f"{case.key_size} (a band of {band} and {STANDARD_ERRORS:g} standard errors over "
            f"modules, {error:.2g} each); scale the scores, or the initial parameters, by "
            f"{variance**-0.5:.4g}, or do not declare unit_variance",
            error=abs(variance - 1.0) / allowed,
        )
    if STANDARD_ERRORS * error > 1.0:
        reject("the modules differ too much for their mean to say anything")


def _fresh_scores(subject: Subject, case: Case) -> Tensor:
    module = subject.make(case.query_size, case.key_size, case.value_size)
    query = torch.randn(case.q_len, case.query_size)
    key = torch.randn(case.kv_len, case.key_size)
    with torch.no_grad():
        scores: Tensor = module(query, key)
    return scores.double()
