"""What ``attnbench.assert_attention_close`` is worth: ``python -m attnbench_zoo.closeness WHAT``.

``right`` counts failures on right results, ``mutants`` compares kills with those of
``torch.testing.assert_close``, and ``time`` compares the cost with that of attention in float64.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench import Case
from attnbench_zoo.entries import Entry, entries
from attnbench_zoo.harnesses.base import PLAIN, cases
from attnbench_zoo.twins.attention import ATTENTION, Attention

__all__ = ["RIGHT", "kills", "main", "right_call", "times"]

DTYPES = ("float64", "float32", "float16", "bfloat16")
MASKS = ("none", "causal", "boolean", "floating", "padding")
LIKE = (
    PLAIN,
    PLAIN.replace(q_len=7, kv_len=65),
    PLAIN.replace(q_len=33, kv_len=5),
)
"""Sizes of the calls on which mutants are judged: square, more keys, and more queries."""


def _fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    return scaled_dot_product_attention(query, key, value, mask)


def _math(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, key, value, mask)


def _scores(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    scores = query * query.shape[-1] ** -0.5 @ key.mT
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def _textbook(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    return _scores(query, key, mask).softmax(-1) @ value


def _online(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Blocks of 16 keys, each weighed by its log-sum-exp, as a streaming kernel does it."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = _scores(query.to(wide), key.to(wide), mask)
    parts = list(zip(scores.split(16, -1), value.to(scores.dtype).split(16, -2), strict=True))
    sums = torch.stack([part.logsumexp(-1) for part, _ in parts])
    shares = sums.softmax(0)[..., None]
    pooled = [part.softmax(-1).nan_to_num() @ values for part, values in parts]
    return (shares * torch.stack(pooled)).sum(0).to(query.dtype)


RIGHT: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]] = {
    "fused": _fused,
    "math": _math,
    "textbook": _textbook,
    "online": _online,
}
"""Right implementations; the textbook rounds every step to the dtype of its inputs."""


def right_call(seed: int) -> tuple[str, str, list[Tensor], Tensor | None]:
    """A drawn call: the name of its implementation, its dtype, query, key, value and mask."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(number: int) -> int:
        return int(torch.randint(number, (), generator=generator))

    name, dtype = list(RIGHT)[drawn(len(RIGHT))], DTYPES[drawn(len(DTYPES))]
    q_len, kv_len = (1 + drawn(2 ** (1 + drawn(8))) for _ in range(2))
    size = (1, 2, 8, 16, 64, 128)[drawn(6)]
    spread = (0.1, 1.0, 1.0, 4.0)[drawn(4)]
    shapes = [(2, 2, length, size) for length in (q_len, kv_len, kv_len)]
    tensors = [
        (spread * torch.randn(shape, generator=generator, dtype=torch.float64)).to(
            getattr(torch, dtype)
        )
        for shape in shapes
    ]
    masks = [
        None,
        torch.rand(q_len, kv_len, generator=generator) > 0.3,
        torch.randn(q_len, kv_len, generator=generator).to(tensors[0].dtype),
    ]
    mask = masks[drawn(3)]
    if mask is not None and mask.dtype == torch.bool:
        mask[:, 0] = True  # what a row without keys gives is a convention
    return name, dtype, tensors, mask


def _right(options: argparse.Namespace) -> None:
    """Go on where the file ends; a line for each thousand calls."""
    done: list[dict[str, Any]] = []
    if options.file.exists():
        done = [json.loads(line) for line in options.file.read_text("utf-8").splitlines()]
    first = done[-1]["until"] if done else 0
    for start in range(first, options.seeds, 1000):
        found = {"from": start, "until": min(start + 1000, options.seeds), "failed": []}
        for seed in range(found["from"], found["until"]):
            name, dtype, tensors, mask = right_call(seed)
            try:
                attnbench.assert_attention_close(
                    RIGHT[name](*tensors, mask), *tensors, attn_mask=mask
                )
            except AssertionError as error:
                said = str(error).splitlines()[0]
                found["failed"].append({"seed": seed, "of": name, "dtype": dtype, "said": said})
        done.append(found)
        with options.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
    count = sum(one["until"] - one["from"] for one in done)
    print(f"{count} right results, {sum(len(one['failed']) for one in done)} failed")


def kills(entry: Entry) -> dict[str, bool]:
    """Whether each assertion fails on a mutant of attention, on the same inputs."""
    found = {"attention_close": False, "assert_close": False, "assert_close where fair": False}
    for like in LIKE:
        for case in cases(entry, masks=MASKS, dtypes=DTYPES, like=like):
            for rule, failed in _judged(entry, case).items():
                found[rule] |= failed
    return found


def _judged(entry: Entry, case: Case) -> dict[str, bool]:
    built = entry.candidate(case)
    actual, right = built.output(), entry.expected(case).output()
    inputs = built.inputs
    exact = Attention(0, 0, 0)(
        *(tensor.double() for tensor in built.tensors),
        attn_mask=_wide(inputs.attn_mask),
        valid_lens=inputs.valid_lens,
        is_causal=inputs.is_causal,
    ).to(right.dtype)
    usual = _fails(torch.testing.assert_close, actual, exact)
    return {
        "attention_close": _fails(
            attnbench.assert_attention_close,
            actual,
            *built.tensors,
            attn_mask=inputs.attn_mask,
            valid_lens=inputs.valid_lens,
            is_causal=inputs.is_causal,
        ),
        "assert_close": usual,
        "assert_close where fair": usual and not _fails(torch.testing.assert_close, right, exact),
    }


def _wide(mask: Tensor | None) -> Tensor | None:
    return mask if mask is None or mask.dtype == torch.bool else mask.double()


def _fails(assertion: Callable[..., None], *given: Any, **options: Any) -> bool:
    try:
        assertion(*given, **options)
    except (AssertionError, attnbench.ShapeError):
        return True
    return False


def _mutants(_: argparse.Namespace) -> None:
    killed: Counter[str] = Counter()
    some = [entry for entry in entries() if entry.reference is ATTENTION.spec]
    twins = [entry for entry in some if entry.right]
    mutants = [entry for entry in some if not entry.right]
    for entry in mutants:
        try:
            found = kills(entry)
        except Exception as error:  # a mutant may raise: both assertions see as much of it
            print(f"{entry.name} raises {type(error).__name__}")
            continue
        killed.update(rule for rule, failed in found.items() if failed)
        if found["attention_close"] != found["assert_close"]:
            print(entry.name, found)
    print(f"{len(mutants)} mutants: {dict(killed)}")
    for entry in twins:
        print(f"right: {entry.name}: {kills(entry)}")


def times(dtype: torch.dtype, length: int, rounds: int) -> tuple[float, float]:
    """Median seconds of the assertion on a right result, and of attention in float64, in turn."""
    tensors = [torch.randn(2, 4, length, 64, dtype=torch.float64).to(dtype) for _ in range(3)]
    output = _fused(*tensors, None)

    def reference() -> Tensor:
        return _textbook(*(tensor.double() for tensor in tensors), None)

    def asserted() -> None:
        attnbench.assert_attention_close(output, *tensors)

    found: list[tuple[float, float]] = []
    for _ in range(rounds):
        found.append((_seconds(asserted), _seconds(reference)))
    ours, theirs = zip(*found, strict=True)
    return statistics.median(ours), statistics.median(theirs)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _time(options: argparse.Namespace) -> None:
    for dtype, length, ours, theirs in _rows(options.rounds):
        print(f"{dtype} {length}: {1e3 * ours:.2f} ms, {1e3 * theirs:.2f} ms: {ours / theirs:.2f}")


def _rows(rounds: int) -> Iterator[tuple[str, int, float, float]]:
    for dtype in DTYPES:
        for length in (16, 128, 512):
            yield dtype, length, *times(getattr(torch, dtype), length, rounds)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m attnbench_zoo.closeness", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="WHAT")
    right = commands.add_parser("right")
    right.add_argument("--seeds", type=int, default=100_000)
    right.add_argument("--file", type=Path, default=Path("closeness.jsonl"))
    right.set_defaults(run=_right)
    commands.add_parser("mutants").set_defaults(run=_mutants)
    timed = commands.add_parser("time")
    timed.add_argument("--rounds", type=int, default=40)
    timed.set_defaults(run=_time)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.run(options)


if __name__ == "__main__":
    main()
