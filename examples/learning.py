"""How well each subject learns: trained on the same four small tasks with the same budget.

Run ``python examples/learning.py`` (some minutes; ``--help`` shows how to do less of it). One layer
of attention stands between embeddings and a linear output; all else is the same for every subject.
A task gives sequences of symbols, and asks for one symbol a query. It prints accuracy on sequences
not seen before, with half of its 95 % interval over seeds, and the cost of a step, and writes the
picture.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import attnbench
from attnbench import Case, Inputs, Subject
from attnbench.benchmark.measuring.memory import peak_bytes
from attnbench.testing import resolve

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


def trained(subject: Subject, tasks: list[str], seeds: int, budget: Budget) -> list[dict[str, Any]]:
    """One row a task: accuracy over the seeds, and what a step costs."""
    rows = []
    for task in tasks:
        done = [learn(subject, task, seed, budget) for seed in range(seeds)]
        accuracy, half = interval([one.accuracy for one in done])
        rows.append(
            {
                "subject": subject.name,
                "task": task,
                "accuracy": accuracy,
                "half_interval": half,
                "step_s": min(one.time_s for one in done),
                "peak_bytes": max(one.peak_bytes for one in done),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a subject: accuracy by task, then cost; the best on average first."""
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(row["subject"], {"subject": row["subject"]})
        half = "" if row["half_interval"] is None else f" ± {100 * row['half_interval']:.0f}"
        line[row["task"]] = f"{100 * row['accuracy']:.0f}{half} %"
    for name, line in lines.items():
        own = [row for row in rows if row["subject"] == name]
        line["mean_accuracy"] = sum(row["accuracy"] for row in own) / len(own)
        line["step_ms"] = 1e3 * min(row["step_s"] for row in own)
        line["peak_MiB"] = max(row["peak_bytes"] for row in own) / 2**20
    return sorted(lines.values(), key=lambda line: -line["mean_accuracy"])


def draw(rows: list[dict[str, Any]], output: Path) -> None:
    """Write the picture: accuracy by task, time and memory of a step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    order = [line["subject"] for line in table(rows)][::-1]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    panels = [(task, "accuracy", 1.0) for task in tasks]
    costs = [("time of a step", "step_s", 1e3), ("peak memory of a step", "peak_bytes", 2**-20)]
    figure = Figure(
        figsize=(2.2 * (len(panels) + 2) + 3, 0.26 * len(order) + 1.2), layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels) + 2, sharey=True, squeeze=False)[0]
    for axis, (title, column, unit) in zip(axes, [*panels, *costs], strict=True):
        own = [row for row in rows if column != "accuracy" or row["task"] == title]
        pick = max if column == "peak_bytes" else min
        values = [pick(row[column] for row in own if row["subject"] == n) * unit for n in order]
        halves = None
        if column == "accuracy":
            spread = {row["subject"]: row["half_interval"] or 0.0 for row in own}
            halves = [spread[name] for name in order]
        axis.barh(order, values, xerr=halves, color="C0" if halves is not None else "0.6")
        axis.set_title(title, size=10)
        axis.set_xlabel({"step_s": "ms", "peak_bytes": "MiB"}.get(column, "accuracy"))
        if column == "accuracy":
            axis.set_xlim(0, 1)
            axis.axvline(1 / 8, color="0.4", ls=":", lw=1)  # by chance, of 8 symbols
    figure.savefig(output, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    """Train, print the table, and draw it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("subjects", nargs="*", help="addresses; all but kernels by default")
    parser.add_argument("--task", action="append", choices=TASKS, help="all by default")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each")
    parser.add_argument("--steps", type=int, default=Budget.steps, help="steps of a training")
    parser.add_argument("--out", type=Path, default=Path("results/pictures/learn.png"))
    given = parser.parse_args(arguments)
    names = given.subjects or [name for name in attnbench.subjects() if "/" not in name]
    rows: list[dict[str, Any]] = []
    for subject in (subject for name in names for subject in resolve(name)):
        reason = unfit(subject)
        if reason is not None:
            print(f"{subject.name} is left out: {reason}")
            continue
        rows += trained(subject, given.task or list(TASKS), given.seeds, Budget(given.steps))
    lines = table(rows)
    shown = Table(*(lines[0] if lines else ()))
    for line in lines:
        shown.add_row(*(f"{v:.3g}" if isinstance(v, float) else v for v in line.values()))
    Console().print(shown)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    draw(rows, given.out)


if __name__ == "__main__":
    main()
