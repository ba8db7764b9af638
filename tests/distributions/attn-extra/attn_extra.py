"""A plugin of a third party: cosine similarity, an invariant and a law of its own."""

import torch

import attnbench
from attnbench.strategies import cases


class CosineScoring(torch.nn.Module):
    def forward(self, query, key):
        query = torch.nn.functional.normalize(query, dim=-1, eps=1e-6)
        key = torch.nn.functional.normalize(key, dim=-1, eps=1e-6)
        return query @ key.mT


def scores_are_finite(subject, case):
    module, inputs = subject.build(case)
    scores = subject.scores(module, inputs)
    if not bool(torch.isfinite(scores).all()):
        raise attnbench.InvariantViolation(f"scores = {scores.tolist()}, but should be finite")


def symmetric(subject, case):
    module, inputs = subject.build(case)
    there = subject.scores(module, inputs)
    back = subject.scores(module, inputs.replace(query=inputs.key, key=inputs.query))
    if not torch.allclose(there, back.mT, atol=1e-5):
        raise attnbench.InvariantViolation(f"scores = {there}, but swapped {back.mT}")


@attnbench.hookimpl
def attnbench_scorings():
    yield attnbench.ScoringSpec(
        name="cosine",
        make=lambda query_size, key_size: CosineScoring(),
        formula="q·k / (‖q‖ ‖k‖)",
        equal_sizes=True,
        laws=("bounded_by_one", "symmetric"),
    )


@attnbench.hookimpl
def attnbench_invariants():
    yield attnbench.Invariant(
        name="scores_are_finite",
        statement="Scores of inputs of common size are finite.",
        check=scores_are_finite,
        cases=lambda subject: cases(subject, regimes=("normal",)),
        applies=lambda subject: None if subject.kind == "scoring" else "it has no scores",
    )
    yield attnbench.Invariant(
        name="symmetric",
        statement="Swapping query and key transposes the scores.",
        check=symmetric,
        cases=lambda subject: cases(subject, dtypes=("float32", "float64"), regimes=("normal",)),
        law=True,
    )
