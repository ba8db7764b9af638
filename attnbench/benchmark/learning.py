"""The quality benchmark: each subject trained on the same small tasks with the same budget.

One layer of attention stands between embeddings and a linear output; all else is the same for every
subject. A task gives sequences of symbols, and asks for one symbol a query.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attnbench.benchmark.measuring.memory import peak_bytes
from attnbench.cases.case import Case
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

__all__ = ["TASKS", "Budget", "Learned", "interval", "learn", "unfit"]

SYMBOLS, LENGTH = 8, 8


@dataclass(frozen=True)
class Task:
    """A task.

    Args:
        statement: what is asked for.
        draw: ``draw(batch, generator)`` gives what queries, keys and values show and what is asked
            for, symbols ``(batch, LENGTH)`` each.
    """

    statement: str
    draw: Callable[[int, torch.Generator], tuple[Tensor, Tensor, Tensor, Tensor]]


def _symbols(batch: int, generator: torch.Generator) -> Tensor:
    return torch.randint(SYMBOLS, (batch, LENGTH), generator=generator)


def _orders(batch: int, generator: torch.Generator) -> Tensor:
    return torch.rand(batch, LENGTH, generator=generator).argsort(-1)


def _lookup(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    keys, values = _orders(batch, generator), _symbols(batch, generator)
    query = _orders(batch, generator)
    return query, keys, values, values.gather(1, keys.argsort(-1).gather(1, query))


def _reverse(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    symbols = _symbols(batch, generator)
    return symbols, symbols, symbols, symbols.flip(-1)


def _previous(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    symbols = _symbols(batch, generator)
    return symbols, symbols, symbols, symbols.roll(1, -1)


def _commonest(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    symbols = _symbols(batch, generator)
    # one symbol stands at three more places, so that it is nearly always the commonest
    often = torch.randint(SYMBOLS, (batch, 1), generator=generator)
    symbols = torch.where(_orders(batch, generator) < 3, often, symbols)
    counts = nn.functional.one_hot(symbols, SYMBOLS).sum(1)
    return symbols, symbols, symbols, counts.argmax(-1, keepdim=True).expand_as(symbols)


TASKS: Mapping[str, Task] = {
    "lookup": Task("the value that stands at the key with the query's symbol", _lookup),
    "reverse": Task("the symbol as far from the end as the query is from the start", _reverse),
    "previous": Task("the symbol before the query's, of the first the last", _previous),
    "commonest": Task("the commonest symbol of all", _commonest),
}
"""What is learned: by content, by position far and near, and from all keys together."""


@dataclass(frozen=True)
class Budget:
    """What every subject is given.

    Args:
        steps: of the optimiser.
        batch: sequences a step.
        size: features of queries, keys and values.
        learning_rate: of Adam.
    """

    steps: int = 300
    batch: int = 64
    size: int = 16
    learning_rate: float = 0.01


@dataclass(frozen=True)
class Learned:
    """What one training gave.

    Args:
        subject, task, seed: what was trained, on what.
        accuracy: the share of right symbols on sequences not seen before, in evaluation.
        time_s: seconds a step of training, the median.
        peak_bytes: of a step of training.
    """

    subject: str
    task: str
    seed: int
    accuracy: float
    time_s: float
    peak_bytes: int


class _Learner(nn.Module):
    def __init__(self, subject: Subject, size: int) -> None:
        super().__init__()
        self.subject = subject
        self.shown = nn.ModuleList(nn.Embedding(SYMBOLS, size) for _ in range(3))
        self.place = nn.ParameterList(torch.randn(LENGTH, size) for _ in range(2))
        self.attention = subject.make(size, size, size)
        self.out = nn.Linear(size, SYMBOLS)

    def forward(self, *shown: Tensor) -> Tensor:
        query, key, value = (layer(s) for layer, s in zip(self.shown, shown, strict=True))
        inputs = Inputs(query + self.place[0], key + self.place[1], value)
        logits: Tensor = self.out(self.subject.output(self.attention, inputs))
        return logits


def unfit(subject: Subject, size: int = Budget.size) -> str | None:
    """Why a subject cannot be trained here; ``None`` if it can."""
    case = Case((1,), LENGTH, LENGTH, size, size, size)
    legal = subject.legal(case)
    if legal.sizes != case.sizes or legal.dtype != case.dtype:
        return f"needs {legal.id}, but the tasks are {case.id}"
    return subject.unsupported(case)


def learn(subject: Subject, task: str, seed: int, budget: Budget) -> Learned:
    """Train a subject on a task; seeds torch's global generator."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = _Learner(subject, budget.size)
    optimizer = torch.optim.Adam(model.parameters(), lr=budget.learning_rate)

    def step() -> None:
        *shown, wanted = TASKS[task].draw(budget.batch, generator)
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(model(*shown).flatten(0, 1), wanted.flatten()))
        optimizer.step()

    times = []
    for _ in range(budget.steps):
        begun = time.perf_counter()
        step()
        times.append(time.perf_counter() - begun)
    with torch.no_grad():
        *shown, wanted = TASKS[task].draw(512, generator)
        accuracy = float((model.eval()(*shown).argmax(-1) == wanted).double().mean())
    peak = peak_bytes(step, torch.device("cpu"))
    return Learned(subject.name, task, seed, accuracy, statistics.median(times), peak)


def interval(values: list[float]) -> tuple[float, float | None]:
    """The mean of several seeds, and half of its 95 % interval (Student's t); ``None`` of one."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    from scipy.stats import t  # takes a second to import

    factor: Any = t.ppf(0.975, len(values) - 1)
    return mean, float(factor) * statistics.stdev(values) / math.sqrt(len(values))
