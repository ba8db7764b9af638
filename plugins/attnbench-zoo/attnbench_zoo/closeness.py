"""What ``attnbench.assert_attention_close`` is worth: ``python -m attnbench_zoo.closeness WHAT``.

``right`` counts failures on right results, ``mutants`` compares kills with those of
``torch.testing.assert_close``, and ``time`` compares the cost with that of attention in float64.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench import Case, Inputs
from attnbench_zoo.entries import Built, Entry, entries
from attnbench_zoo.harnesses.base import PLAIN, cases
from attnbench_zoo.twins.attention import ATTENTION, Attention

__all__ = ["RIGHT", "SHARES", "calls", "kills", "main", "right_call", "times"]

DTYPES = ("float64", "float32", "float16", "bfloat16")
MASKS = ("none", "causal", "boolean", "floating", "padding")
SIZES: tuple[dict[str, Any], ...] = (
    {"q_len": 7, "kv_len": 65},
    {"q_len": 33, "kv_len": 5},
    {"q_len": 1, "kv_len": 160},
    {"q_len": 13, "kv_len": 13},
    {"q_len": 160, "kv_len": 160},
    {"query_size": 300, "key_size": 300, "value_size": 300},
)
"""Beside the square of :data:`PLAIN`: more keys, more queries, one query, many, features."""

RULES = ("attention_close", "assert_close", "fair")
SHARES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
"""Parts of a mistake that are added to the right output, so that small mistakes count as well."""


def _fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    return scaled_dot_product_attention(query, key, value, mask)


def _math(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, key, value, mask)


def _scores(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    scores: Tensor = query * float(query.shape[-1]) ** -0.5 @ key.mT
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def _textbook(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    return _scores(query, key, mask).softmax(-1) @ value


def _online(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Blocks of 16 keys, each weighed by its log-sum-exp, as a streaming kernel does it."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = _scores(query.to(wide), key.to(wide), mask)
    parts = list(
        zip(torch.split(scores, 16, -1), torch.split(value.to(scores.dtype), 16, -2), strict=True)
    )
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


Tensors = tuple[Tensor, Tensor, Tensor]


def right_call(seed: int) -> tuple[str, str, Tensors, Tensor | None]:
    """A drawn call: the name of its implementation, its dtype, query, key, value and mask."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(number: int) -> int:
        return int(torch.randint(number, (), generator=generator))

    name, dtype = list(RIGHT)[drawn(len(RIGHT))], DTYPES[drawn(len(DTYPES))]
    q_len, kv_len = (1 + drawn(2 ** (1 + drawn(8))) for _ in range(2))
    size = (1, 2, 8, 16, 64, 128)[drawn(6)]
    spread = (0.1, 1.0, 1.0, 4.0)[drawn(4)]

    def tensor(length: int) -> Tensor:
        wide = torch.randn(2, 2, length, size, generator=generator, dtype=torch.float64)
        return (spread * wide).to(getattr(torch, dtype))

    tensors = tensor(q_len), tensor(kv_len), tensor(kv_len)
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


def kills(entry: Entry, cases: Iterable[Case] | None = None) -> dict[str, dict[str, float]]:
    """By dtype and rule, the smallest share of a mistake that shows; infinity where none does.

    A share of 1 is the mutant itself, and one of 0.01 an output that is off by a hundredth of what
    the mutant's is. Calls follow each other until every rule has found something, and those on
    which the mutant's output is its right twin's do not count.

    Returns:
        Shares for ``attention_close``, ``assert_close``, and ``fair``: ``assert_close`` on calls on
        which it takes all of :data:`RIGHT` for right. Empty where no output shows the mistake.
    """
    found: dict[str, dict[str, float]] = {}
    for case in calls(entry) if cases is None else cases:
        known = found.get(case.dtype, dict.fromkeys(RULES, math.inf))
        shares = _shares(entry, case) if math.inf in known.values() else {}
        if shares:
            found[case.dtype] = {rule: min(share, known[rule]) for rule, share in shares.items()}
    return found


def calls(entry: Entry) -> Iterator[Case]:
    """The calls of an entry: each mask, size and regime of values, in each dtype."""
    drawn = [PLAIN.replace(mask=mask) for mask in MASKS]
    drawn += [PLAIN.replace(mask=mask, **sizes) for sizes in SIZES for mask in ("none", "causal")]
    drawn += [PLAIN.replace(regime=regime) for regime in ("huge", "near_overflow", "far")]
    for case in drawn:
        yield from cases(entry, masks=[case.mask], dtypes=DTYPES, like=case)


def _shares(entry: Entry, case: Case) -> dict[str, float]:
    """The smallest share of a mistake that each rule finds on a call; empty without a mistake."""
    built = entry.candidate(case)
    actual, right = _output(built), entry.expected(case).output()
    if actual is None or (actual.shape, actual.dtype) != (right.shape, right.dtype):
        return {}  # whoever looks at it sees as much
    if torch.equal(actual, right):
        return {}
    inputs = entry.expected(case).inputs  # a mutant may have changed its own
    tensors = (inputs.query, inputs.key, inputs.value)
    given = {
        "attn_mask": inputs.attn_mask,
        "valid_lens": inputs.valid_lens,
        "is_causal": inputs.is_causal,
    }
    exact = Attention(0, 0, 0)(
        *(tensor.double() for tensor in tensors), **given | {"attn_mask": _wide(inputs.attn_mask)}
    ).to(right.dtype)
    mistake = actual.double() - right.double()

    def rules(output: Tensor) -> dict[str, bool]:
        return {
            "attention_close": _fails(attnbench.assert_attention_close, output, *tensors, **given),
            "assert_close": _fails(torch.testing.assert_close, output, exact),
        }

    others = (call(*tensors, _folded(inputs)).nan_to_num() for call in RIGHT.values())
    accused = any(_fails(torch.testing.assert_close, other, exact) for other in others)
    found = dict.fromkeys(RULES[:2], math.inf)
    for share in SHARES:
        output = actual if share == 1 else (right.double() + share * mistake).to(right.dtype)
        failed = rules(output)
        found.update((rule, share) for rule, fails in failed.items() if fails)
        if not any(failed.values()):
            break
    return found | {"fair": math.inf if accused else found["assert_close"]}


def _output(built: Built) -> Tensor | None:
    try:
        return built.output()
    except Exception:  # whoever calls a mutant that raises sees as much
        return None


def _folded(inputs: Inputs) -> Tensor:
    """All that hides keys in one floating mask."""
    mask = inputs.attn_mask
    added = mask if mask is not None and mask.is_floating_point() else torch.zeros(())
    return torch.where(inputs.allowed, added, -math.inf).to(inputs.query.dtype)


def _wide(mask: Tensor | None) -> Tensor | None:
    return mask if mask is None or mask.dtype == torch.bool else mask.double()


def _fails(assertion: Callable[..., None], *given: Any, **options: Any) -> bool:
    try:
        assertion(*given, **options)
    except AssertionError:
        return True
    return False


def _mutants(_: argparse.Namespace) -> None:
    some = [one for one in entries() if one.reference is ATTENTION.spec and not one.right]
    found = {entry.name: kills(entry) for entry in some}
    shown = {name: shares for name, shares in found.items() if shares}
    print(f"{len(found)} mutants, {len(shown)} of which differ from their twin on some call")
    print(f"dtype, share of the mistake: found by {', '.join(RULES)}")
    for dtype in DTYPES:
        own = [shares[dtype] for shares in shown.values() if dtype in shares]
        for share in SHARES:
            counts = (str(sum(one[rule] <= share for one in own)) for rule in RULES)
            print(f"{dtype}, {share:g}: {', '.join(counts)} of {len(own)}")
    for name, shares in shown.items():
        missed = {dtype: one for dtype, one in shares.items() if math.inf in one.values()}
        print(name, json.dumps(missed)) if missed else None


def times(dtype: torch.dtype, length: int, rounds: int) -> tuple[float, float]:
    """Median seconds of a core of the assertion on a right result, and of attention in float64."""
    query, key, value = (torch.randn(2, 4, length, 64).to(dtype) for _ in range(3))
    output = _fused(query, key, value, None)

    def reference() -> Tensor:
        return _textbook(query.double(), key.double(), value.double(), None)

    def asserted() -> None:
        attnbench.assert_attention_close(output, query, key, value)

    found: list[tuple[float, float]] = []
    for _ in range(rounds):
        found.append((_seconds(asserted), _seconds(reference)))
    ours, theirs = zip(*found, strict=True)
    return statistics.median(ours), statistics.median(theirs)


def _seconds(call: Callable[[], object]) -> float:
    start = time.process_time()  # with one thread, what others do meanwhile costs nothing
    call()
    return time.process_time() - start


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
