"""What a caller has to pass to see each mistake: ``python -m attnbench_zoo.needs FILE``.

Calls each mutant beside its right twin, with the same parameters and inputs, from the plainest call
to the rarest, and keeps the first that tells them apart. Writes FILE; the package's own is
``needs.json``, which :attr:`attnbench_zoo.Entry.shown_by` reads.
"""

from __future__ import annotations

import argparse
import itertools
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnbench import Case
from attnbench_zoo.cached_calls import CACHED
from attnbench_zoo.entries import Built, Entry, entries
from attnbench_zoo.harnesses.base import gradients

__all__ = ["main", "shown_by"]

Run = Callable[[Built], "list[Tensor]"]

_SMALL = Case(lead=(2, 2), q_len=6, kv_len=6, query_size=8, key_size=8, value_size=8)
_TOLERANCES = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 5e-2}
"""Difference that counts, as a multiple of the largest number: several times the rounding."""

_MASKS = (
    "causal",
    "boolean",
    "bias",
    "padding",
    "left_padding",
    "floating",
    "causal_padding",
    "empty_row",
    "lengths_2d",
    "key_padding",
    "boolean_shared",
)
_SIZES: dict[str, dict[str, Any]] = {
    "more keys than queries": {"kv_len": 9},
    "more queries than keys": {"q_len": 9},
    "one query": {"q_len": 1},
    "one key": {"kv_len": 1},
    "one item": {"lead": (1, 1)},
    "no leading sizes": {"lead": ()},
    "as many items as positions": {"lead": (6,)},
    "13 keys": {"q_len": 13, "kv_len": 13},
    "160 positions": {"q_len": 160, "kv_len": 160},
    "300 features": {"query_size": 300, "key_size": 300, "value_size": 300},
}
_VALUES = ("huge", "far", "opposed", "near_overflow", "equal_keys")
_MASKED = ("attn_mask", "valid_lens", "is_causal")
_OPTIONS: dict[str, Any] = {
    "scale": 0.3,
    "window_size": (2, 1),
    "softcap": 0.5,
    "sinks": torch.tensor([0.5, -0.5]),
    "alibi_slopes": torch.tensor([0.5, 0.25]),
    "dropout_p": 0.5,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m attnbench_zoo.needs")
    parser.add_argument("file", type=Path, help="what is written")
    path: Path = parser.parse_args(arguments).file
    if not path.parent.is_dir():
        parser.error(f"{path}: there is no folder {path.parent}.")
    found = {entry.name: shown_by(entry) for entry in entries() if not entry.right}
    kept = {name: words for name, words in found.items() if words is not None}
    path.write_text(json.dumps({"shown_by": kept}, indent=1) + "\n", "utf-8")
    print(f"{len(kept)} of {len(found)} mutants differ from their twin in one of these calls")


def shown_by(entry: Entry) -> str | None:
    """The first call in which candidate and reference differ beyond rounding, in words."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for words, case, run in _calls(entry):
            if _differ(entry, case, run):
                return words
    return None


def _calls(entry: Entry) -> Iterator[tuple[str, Case, Run]]:
    """Calls from the plainest to the rarest: one thing given, and then two."""
    yield "any call", _SMALL, _output
    masked = [(f"mask: {mask}", _SMALL.replace(mask=mask)) for mask in _MASKS]
    sized = [(f"sizes: {words}", _SMALL.replace(**sizes)) for words, sizes in _SIZES.items()]
    halves = [(dtype, _SMALL.replace(dtype=dtype)) for dtype in ("float16", "bfloat16")]
    for words, case in (*masked, *sized, *halves):
        yield words, case, _output
    for regime in _VALUES:
        yield f"values: {regime}", _SMALL.replace(regime=regime), _output
    for layout in ("transposed", "strided", "heads", "expanded"):
        yield f"layout: {layout}", _SMALL.replace(layout=layout), _output
    for (words, case), option in itertools.product([("", _SMALL), *masked[:4]], _OPTIONS):
        if option in getattr(entry.spec, "accepts", ()):
            yield f"option: {option}{words and ', ' + words}", case, _given(option)
    for words, run in {**_WAYS, **(CACHED if entry.kind == "layer" else {})}.items():
        for mask in ("none", "causal", "padding", "left_padding", "bias", "empty_row"):
            beside = "" if mask == "none" else f", mask: {mask}"
            yield words + beside, _SMALL.replace(mask=mask, q_len=12, kv_len=12), run
    for (words, sizes), mask in itertools.product(_SIZES.items(), ("causal", "boolean", "bias")):
        yield f"sizes: {words}, mask: {mask}", _SMALL.replace(mask=mask, **sizes), _output
    for (words, case), regime, mask in itertools.product(
        halves[:1], ("huge", "near_overflow", "far"), ("none", "causal", "floating")
    ):
        beside = "" if mask == "none" else f", mask: {mask}"
        yield f"{words}, values: {regime}{beside}", case.replace(regime=regime, mask=mask), _output


def _differ(entry: Entry, case: Case, run: Run) -> bool:
    if not entry.takes(case):
        return False
    found = []
    for built in (entry.expected(case), entry.candidate(case)):
        torch.manual_seed(0)
        try:
            found.append(run(built))
        except NotImplementedError:  # it has no such operation
            return False
        except Exception:
            found.append([])
    expected, own = found
    if not expected:
        return False
    return len(own) != len(expected) or any(
        _apart(a, b, _TOLERANCES[case.dtype]) for a, b in zip(own, expected, strict=True)
    )


def _apart(own: Tensor, expected: Tensor, tolerance: float) -> bool:
    if own.shape != expected.shape or own.dtype != expected.dtype:
        return True
    largest = expected.detach().double().nan_to_num(0.0, 0.0, 0.0).abs().amax().clamp_min(1e-3)
    own, expected = own.detach().double() / largest, expected.detach().double() / largest
    return not torch.allclose(own, expected, rtol=0.0, atol=tolerance, equal_nan=True)


def _output(built: Built) -> list[Tensor]:
    return [built.output()]


def _given(option: str) -> Run:
    def run(built: Built) -> list[Tensor]:
        if option == "dropout_p":
            built.module.train()
        return [built.again(**{option: _OPTIONS[option]})]

    return run


def _with_nan(built: Built) -> list[Tensor]:
    """NaN in every slot that no query sees."""
    if len(built.tensors) != 3:
        raise NotImplementedError
    hidden = ~built.inputs.allowed.any(-2).unsqueeze(-1)
    query, key, value = built.tensors
    return [
        built.call(query, key.masked_fill(hidden, torch.nan), value.masked_fill(hidden, torch.nan))
    ]


def _of_parameters(built: Built) -> list[Tensor]:
    parameters = [p for p in built.module.parameters() if p.requires_grad]
    if not parameters:
        raise NotImplementedError
    output = built.output().square().sum()
    return list(torch.autograd.grad(output, parameters, allow_unused=True, materialize_grads=True))


def _without_grad(built: Built) -> list[Tensor]:
    with torch.no_grad():
        return [built.output()]


def _training(built: Built) -> list[Tensor]:
    built.module.train()
    return [built.output()]


def _twice(built: Built) -> list[Tensor]:
    first = built.output()
    shorter = [tensor[..., :-1, :] for tensor in built.tensors]
    if built.inputs.attn_mask is None and built.inputs.valid_lens is None:
        built.call(*shorter)
    return [first, built.output(), *built.tensors]


def _weights(built: Built) -> list[Tensor]:
    if "return_weights" not in getattr(built.spec, "accepts", ()):
        raise NotImplementedError
    given = {
        name: value
        for name, value in vars(built.inputs).items()
        if name in _MASKED and value is not None
    }
    return list(built.module(*built.tensors, return_weights=True, **given))


def _grouped(built: Built) -> list[Tensor]:
    """Two heads of queries for one of keys."""
    if "enable_gqa" not in getattr(built.spec, "accepts", ()) or built.tensors[0].dim() < 4:
        raise NotImplementedError
    key, value = (tensor[:, :1] for tensor in built.tensors[1:])
    return [built.again(key=key, value=value, enable_gqa=True)]


def _all_masks(built: Built) -> list[Tensor]:
    """Causality, lengths and the case's mask at once."""
    if len(built.tensors) != 3 or built.inputs.query.dim() < 3:
        raise NotImplementedError
    lengths = torch.arange(len(built.tensors[0])) + 5
    return [built.again(is_causal=True, valid_lens=lengths)]


_WAYS: dict[str, Run] = {
    "the gradient": gradients,
    "gradients of parameters": _of_parameters,
    "training": _training,
    "no_grad": _without_grad,
    "NaN in hidden slots": _with_nan,
    "a second call": _twice,
    "the weights": _weights,
    "grouped heads": _grouped,
    "causality and lengths together": _all_masks,
}


if __name__ == "__main__":
    main()
