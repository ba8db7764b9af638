"""One training of one subject on one task: the unit of the learning experiment."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import attnbench
from attnbench import Case, Inputs, Subject, UsageError
from attnbench.testing import resolve
from attnbench_classroom.tasks import LENGTH, SYMBOLS, TASKS, Drawn

VALUE_SIZE = 16
"""Features of the values, the same at every size d of query and key."""
CHECKPOINTS = 12
"""Points of a learning curve."""
_TESTED = 256
_LEARNING_RATE = 0.01


class _Learner(nn.Module):
    """One attention between embeddings and a linear output.

    A query is the mean of the embeddings of its symbol and its position, scaled so that every
    feature has variance 1; so is a key, with embeddings of its own.
    """

    def __init__(self, subject: Subject, size: int) -> None:
        super().__init__()
        self.subject = subject
        self.symbols = nn.ModuleList(nn.Embedding(SYMBOLS, size) for _ in range(2))
        self.places = nn.ParameterList(torch.randn(LENGTH, size) for _ in range(2))
        self.values = nn.Embedding(SYMBOLS, VALUE_SIZE)
        self.attention = subject.make(size, size, VALUE_SIZE)
        self.out = nn.Linear(VALUE_SIZE, SYMBOLS)

    def forward(self, drawn: Drawn) -> Tensor:
        """Logits ``(batch, LENGTH, SYMBOLS)``."""
        query, key = (
            (symbols(shown) + place) * 0.5**0.5
            for symbols, place, shown in zip(
                self.symbols, self.places, (drawn.query, drawn.key), strict=True
            )
        )
        inputs = Inputs(query, key, self.values(drawn.value))
        logits: Tensor = self.out(self.subject.output(self.attention, inputs))
        return logits


def unfit(subject: Subject, size: int) -> str | None:
    """Why a subject cannot be trained at a size; ``None`` if it can."""
    if subject.kind == "layer":
        return "is a layer, which has no query and key of its own"
    case = Case((1,), LENGTH, LENGTH, size, size, VALUE_SIZE)
    legal = subject.legal(case)
    if legal.sizes != case.sizes or legal.dtype != case.dtype:
        return f"needs {legal.id}, but the tasks are {case.id}"
    return subject.unsupported(case)


def runs(
    subject: str, task: str, size: int, seeds: Sequence[int], *, steps: int, batch: int
) -> Iterator[dict[str, Any]]:
    """Train a subject once a seed; seeds torch's global generator.

    Args:
        subject: address of one subject.
        task: name of a task.
        size: d, features of query and key.
        seeds: of parameters and data; a seed has the same data for every subject.
        steps, batch: steps of the optimiser, and sequences a step.

    Yields:
        A run as plain data: its curve of (step, accuracy on sequences not seen before), the last
        accuracy, seconds of the processor a step, and the number of the attention's parameters.
        A subject that does not fit gives one run with the reason under ``unfit``.
    """
    found, *more = resolve(subject)
    if more:
        names = ", ".join(each.name for each in (found, *more))
        raise UsageError(f"{subject} names {len(more) + 1} subjects, not one; name one of {names}.")
    asked = {"subject": subject, "task": task, "size": size, "steps": steps, "batch": batch}
    reason = unfit(found, size)
    for seed in seeds:
        run = asked | {"seed": seed, "torch": torch.__version__, "attnbench": attnbench.__version__}
        yield run | (
            {"unfit": reason} if reason else _trained(found, task, size, seed, steps, batch)
        )


def _trained(
    subject: Subject, task: str, size: int, seed: int, steps: int, batch: int
) -> dict[str, Any]:
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    draw = TASKS[task]
    model = _Learner(subject, size)
    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE)
    tested = draw(_TESTED, torch.Generator().manual_seed(seed + 2**32))
    due = {round(steps * (part + 1) / CHECKPOINTS) for part in range(CHECKPOINTS)}
    curve, times = [(0, _accuracy(model, tested))], []
    for step in range(1, steps + 1):
        begun = time.thread_time()
        drawn = draw(batch, generator)
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(model(drawn).flatten(0, 1), drawn.wanted.flatten()))
        optimizer.step()
        times.append(time.thread_time() - begun)
        if step in due:
            curve.append((step, _accuracy(model, tested)))
    return {
        "curve": curve,
        "accuracy": curve[-1][1],
        "step_s": statistics.median(times),
        "parameters": sum(p.numel() for p in model.attention.parameters()),
    }


@torch.no_grad()
def _accuracy(model: _Learner, tested: Drawn) -> float:
    model.eval()
    right = model(tested).argmax(-1) == tested.wanted
    model.train()
    return round(float(right.double().mean()), 4)
