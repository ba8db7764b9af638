"""Encoder and decoder with attention, in the two forms that tutorials teach, on three small tasks.

``additive``: the query is the decoder's previous state, and the weighted encoder states join the
embedded input (Bahdanau et al. 2015). ``concat_combine``: weights come from state and embedded
input alone (the mechanism of that name). The tasks need alignment: to reverse and to sort digits,
and to write a date like "21 nov 2026" as "2026-11-21". Run ``python examples/translation.py``.
"""

from __future__ import annotations

import argparse
import datetime
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import attnbench

FORMS = ("additive", "concat_combine")
ALPHABET = "_^0123456789-abcdefghijklmnopqrstuvwxyz "
"""Symbols: padding, start, and those of the tasks."""
PADDING, START = 0, 1
MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


def encoded(texts: list[str]) -> tuple[Tensor, Tensor]:
    """Texts as symbols ``(B, longest)``, padded, and their lengths ``(B,)``."""
    lengths = torch.tensor([len(text) for text in texts])
    symbols = torch.full((len(texts), int(lengths.max())), PADDING)
    for row, text in zip(symbols, texts, strict=True):
        row[: len(text)] = torch.tensor([ALPHABET.index(letter) for letter in text])
    return symbols, lengths


def pairs(task: str, count: int, generator: torch.Generator) -> tuple[list[str], list[str]]:
    """Sources and targets of a task: ``reverse``, ``sort`` or ``dates``."""
    sources, targets = [], []
    for _ in range(count):
        if task == "dates":
            days = int(torch.randint(36525, (), generator=generator))
            date = datetime.date(1970, 1, 1) + datetime.timedelta(days=days)
            sources.append(f"{date.day} {MONTHS[date.month - 1]} {date.year}")
            targets.append(date.isoformat())
            continue
        length = int(torch.randint(4, 9, (), generator=generator))
        digits = torch.randint(10, (length,), generator=generator).tolist()
        sources.append("".join(map(str, digits)))
        digits = sorted(digits) if task == "sort" else digits[::-1]
        targets.append("".join(map(str, digits)))
    return sources, targets


class Translator(nn.Module):
    """A recurrent encoder and decoder with attention between them.

    Args:
        form: ``"additive"`` or ``"concat_combine"``.
        size: of states and embeddings.
        slots: the longest source.
    """

    def __init__(self, form: str, size: int = 64, slots: int = 12) -> None:
        super().__init__()
        self.form = form
        self.embedding = nn.Embedding(len(ALPHABET), size)
        self.encoder = nn.GRU(size, size // 2, batch_first=True, bidirectional=True)
        if form == "additive":
            self.attention = attnbench.get("additive").make(size, size, hidden_size=32)
            self.decoder = nn.GRUCell(2 * size, size)
        else:
            make = attnbench.get("concat_combine").make
            self.attention = make(2 * size, size, size, slots=slots, state_size=size)
            self.decoder = nn.GRUCell(size, size)
        self.out = nn.Linear(size, len(ALPHABET))

    def encode(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encoder states ``(B, S, size)`` and the decoder's first state ``(B, size)``."""
        packed = pack_padded_sequence(
            self.embedding(source), lengths, batch_first=True, enforce_sorted=False
        )
        states, last = self.encoder(packed)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        return states, torch.cat([last[0], last[1]], -1)

    def step(
        self, symbol: Tensor, state: Tensor, memory: Tensor, lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The next state ``(B, size)`` and the weights ``(B, S)``."""
        given = self.embedding(symbol)
        if self.form == "additive":
            read, weights = attnbench.attend(
                self.attention,
                state.unsqueeze(1),
                memory,
                memory,
                valid_lens=lengths,
                return_weights=True,
            )
            joined = torch.cat([given, read.squeeze(1)], -1)
        else:
            query = torch.cat([state, given], -1).unsqueeze(1)
            read, weights = self.attention(
                query, memory, memory, valid_lens=lengths, return_weights=True
            )
            joined = read.squeeze(1).relu()
        return self.decoder(joined, state), weights.squeeze(1)

    def forward(
        self, source: Tensor, lengths: Tensor, steps: int, target: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits ``(B, steps, symbols)`` and weights ``(B, steps, S)``.

        With a target its symbols are fed in (teacher forcing), otherwise the likeliest ones.
        """
        memory, state = self.encode(source, lengths)
        symbol = torch.full_like(lengths, START)
        logits, rows = [], []
        for place in range(steps):
            state, weights = self.step(symbol, state, memory, lengths)
            logits.append(self.out(state))
            rows.append(weights)
            symbol = logits[-1].argmax(-1) if target is None else target[:, place]
        return torch.stack(logits, 1), torch.stack(rows, 1)


@dataclass(frozen=True)
class Trained:
    """A translator after training.

    Args:
        model: the translator.
        task, form: what it was trained on, and how it attends.
        accuracy: share of unseen texts that it writes without any error.
        seconds: that training took.
    """

    model: Translator
    task: str
    form: str
    accuracy: float
    seconds: float


def train(task: str, form: str, *, steps: int = 400, batch: int = 64, seed: int = 0) -> Trained:
    """Train on texts drawn anew at each step, and test on 256 more."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Translator(form)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.004)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.008, total_steps=steps)
    begun = time.perf_counter()
    for _ in range(steps):
        sources, targets = pairs(task, batch, generator)
        (source, lengths), (target, _) = encoded(sources), encoded(targets)
        logits, _ = model(source, lengths, target.shape[1], target)
        loss = cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PADDING)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    seconds = time.perf_counter() - begun
    return Trained(model.eval(), task, form, accuracy(model, task, generator), seconds)


@torch.no_grad()
def accuracy(model: Translator, task: str, generator: torch.Generator, count: int = 256) -> float:
    """The share of texts written without any error."""
    sources, targets = pairs(task, count, generator)
    (source, lengths), (target, _) = encoded(sources), encoded(targets)
    logits, _ = model(source, lengths, target.shape[1])
    right = (logits.argmax(-1) == target) | (target == PADDING)
    return float(right.all(-1).double().mean())


@torch.no_grad()
def translate(model: Translator, text: str, length: int) -> tuple[str, Tensor]:
    """What a translator makes of one text, and its weights ``(length, len(text))``."""
    source, lengths = encoded([text])
    logits, weights = model(source, lengths, length)
    return "".join(ALPHABET[i] for i in logits[0].argmax(-1).tolist()), weights[0]


EXAMPLES = {"reverse": "31415926", "sort": "31415926", "dates": "21 nov 2026"}


def draw(path: Path, models: list[Trained]) -> None:
    """What each model looked at when it wrote: one heat map a model."""
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(model.task for model in models))
    forms = list(dict.fromkeys(model.form for model in models))
    shape = len(forms), len(tasks)
    figure, axes = plt.subplots(
        *shape, figsize=(4.2 * shape[1], 4 * shape[0]), layout="constrained", squeeze=False
    )
    image = None
    for model in models:
        axis = axes[forms.index(model.form), tasks.index(model.task)]
        text = EXAMPLES[model.task]
        length = 10 if model.task == "dates" else len(text)
        written, weights = translate(model.model, text, length)
        image = axis.imshow(weights.numpy(), vmin=0, vmax=1, cmap="viridis")
        axis.set_xticks(range(len(text)), ["␣" if c == " " else c for c in text])
        axis.set_yticks(range(length), list(written))
        axis.set(xlabel="read", ylabel="written")
        axis.set_title(f"{model.task}, {model.form}: {model.accuracy:.0%} of texts right", size=10)
    figure.colorbar(image, ax=axes, label="weight", shrink=0.6)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Train both forms on the three tasks; print accuracies, write the heat maps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/pictures"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    models = []
    for task in EXAMPLES:
        for form in FORMS:
            models.append(train(task, form, steps=options.steps, seed=options.seed))
            done = models[-1]
            print(
                f"{task:8} {form:15} {done.accuracy:5.1%} right, {done.seconds:.0f} s", flush=True
            )
    draw(options.out / "translation.png", models)
    print(options.out / "translation.png")


if __name__ == "__main__":
    main()
