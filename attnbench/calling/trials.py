"""Which call a callee takes: small calls in each layout, and what comes of them.

All sizes of a trial differ, so that a shape tells its axes. What a call shows is bound only if its
items know nothing of each other; two that fit in different ways refuse.
"""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling.binding import Binding, Fill, Part
from attnbench.calling.roles import role_of
from attnbench.calling.signature import Argument
from attnbench.errors import headline

ITEMS, HEADS, QUERIES, KEYS, WIDTH = 3, 2, 5, 7, 16
_SIZES = {"B": ITEMS, "H": HEADS, "L": QUERIES, "S": KEYS, "1": 1, "G": ITEMS * HEADS}

LAYOUTS = (
    ("BHLE", "BHSE"),
    ("BLHE", "BSHE"),
    ("BLE", "BSE"),
    ("LBE", "SBE"),
    ("BE", "BSE"),
    ("BE", "SBE"),
    ("B1E", "BSE"),
    ("1BE", "SBE"),
    ("1BE", "BSE"),
)
"""Axes of query and key that are tried, the more general first."""

_OUTPUTS = {
    "BHLE": ("BHLE", "BLHE"),
    "BLHE": ("BLHE", "BHLE"),
    "BLE": ("BLE",),
    "LBE": ("LBE",),
}
_ONE = ("BE", "B1E", "1BE")
MASK_AXES = ("BLS", "BHLS", "B1LS", "LS", "BS", "B1S", "B11S", "SB")


@dataclass
class Trial:
    """One call: the binding that describes it, and the error if it raised."""

    binding: Binding
    raised: str = ""
    mixes: bool = False


class Callee:
    """A callee that is called anew each time, with equal parameters and random numbers.

    Args:
        make: gives the function, or a module for Eq, Ek and Ev.
        width: the size of a trial's features.
    """

    def __init__(self, make: Callable[[int, int, int], Any], width: int = WIDTH) -> None:
        self.make, self.width = make, width
        self._made: dict[tuple[int, int, int], Any] = {}

    def at(self, *sizes: int) -> Any:
        """The callee of these sizes, in evaluation."""
        key = sizes if len(sizes) == 3 else (self.width,) * 3
        if key not in self._made:
            with repeatable():
                made = self.make(*key)
            self._made[key] = made.eval() if isinstance(made, nn.Module) else made
        return (
            copy.deepcopy(self._made[key])
            if isinstance(self._made[key], nn.Module)
            else (self._made[key])
        )


@contextmanager
def repeatable() -> Iterator[None]:
    """With torch's generators at a fixed place, and restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def tensor(axes: str, seed: int = 0, width: int = WIDTH) -> Tensor:
    """A tensor of a trial with these axes."""
    generator, sizes = torch.Generator().manual_seed(seed + 1), {**_SIZES, "E": width}
    return torch.randn([sizes[letter] for letter in axes], generator=generator)


def axes_of(shape: Sequence[int], width: int) -> str:
    """The axes of a shape by their sizes, ``?`` where a size is none of a trial."""
    letters = {size: letter for letter, size in {**_SIZES, "E": width}.items()}
    return "".join(letters.get(size, "?") for size in shape)


def parts_of(result: Any, callee: Any) -> Iterator[tuple[Part, Tensor]]:
    """The tensors of a result and of a module after the call, and where they are."""
    if isinstance(result, Tensor):
        yield None, result
    elif isinstance(result, Mapping):
        yield from ((name, part) for name, part in result.items() if isinstance(part, Tensor))
    elif isinstance(result, tuple | list):
        yield from ((at, part) for at, part in enumerate(result) if isinstance(part, Tensor))
    elif hasattr(result, "__dict__"):
        yield from ((name, p) for name, p in vars(result).items() if isinstance(p, Tensor))
    for name, part in vars(callee).items() if isinstance(callee, nn.Module) else ():
        if isinstance(part, Tensor) and role_of(name, "result") == "weights":
            yield f".{name}", part


def sums_to_one(part: Tensor, axes: str) -> bool:
    """Whether it is weights over the keys."""
    sums = part.sum(axes.index("S"))
    return bool((part >= 0).all()) and torch.allclose(sums, torch.ones(()).to(sums), atol=1e-3)


def read(result: Any, callee: Any, layout: str, width: int) -> dict[str, tuple[Part, str]] | None:
    """Where the output, the weights and the scores are; ``None`` if it has neither."""
    outputs = _OUTPUTS.get(layout, _ONE)
    found: dict[str, tuple[Part, str]] = {}
    for where, part in parts_of(result, callee):
        axes = axes_of(part.shape, width)
        if not part.is_floating_point():
            continue
        if axes in outputs and "output" not in found:
            found["output"] = (where, axes)
        elif _is_of_keys(axes, layout):
            kind = "weights" if sums_to_one(part, axes) else "scores"
            found.setdefault(kind, (where, axes))
    return found or None


def _is_of_keys(axes: str, layout: str) -> bool:
    plain = [letter for letter in axes if letter != "1"]
    wanted = {"B", "S", *("L" if "L" in layout else ""), *("H" if "H" in layout else "")}
    if "G" in plain:
        return False
    return len(set(plain)) == len(plain) and wanted <= {*plain} <= wanted | {"H"}


def trials(
    callee: Callee, arguments: Sequence[Argument], mains: Mapping[str, str]
) -> tuple[list[Trial], list[str]]:
    """The calls that give an output, weights or scores; and what the others raised.

    Args:
        callee: what is called.
        arguments: its arguments.
        mains: the roles of those that get query, key, value or memory.
    """
    raised: list[str] = []
    for square in (False, True):
        found: list[Trial] = []
        for layout, memory in LAYOUTS:
            if square and "L" not in layout:
                continue
            trial = _tried(callee, arguments, mains, layout, memory, square)
            if isinstance(trial, Trial):
                found.append(trial)
            elif not square:
                raised.append(f"{layout}, {memory}: {trial}")
        if found:
            return found, raised
    return [], raised


def _tried(
    callee: Callee,
    arguments: Sequence[Argument],
    mains: Mapping[str, str],
    layout: str,
    memory: str,
    square: bool,
) -> Trial | str:
    memory_axes = memory.replace("S", "L") if square else memory
    tensors = {
        name: tensor(layout if role in ("query", "hidden") else memory_axes, seed, callee.width)
        for seed, (name, role) in enumerate(mains.items())
    }
    rest = [a for a in arguments if a.name not in mains and (a.required or a.role in _ASKED)]
    error = "it gives no tensor of the query's shape, or of one number a key"
    for more in itertools.islice(
        itertools.product(*[options(a, layout, memory_axes) for a in rest]), 48
    ):
        values = {a.name: value for a, value in zip(rest, more, strict=True)}
        run = Run(callee, values, prepare_of(callee.at()), QUERIES if square else KEYS)
        result = run(tensors)
        if run.raised:
            error = run.raised
            continue
        parts = read(result, run.callee, layout, callee.width)
        if parts is None:
            continue
        binding = _binding(arguments, mains, layout, memory, values, parts).replace(
            square=square, prepare=run.prepare
        )
        return Trial(binding, mixes=_mixes(run, tensors, parts, layout, memory_axes))
    return error


_ASKED = ("return_weights",)


def prepare_of(callee: Any) -> str | None:
    """The method by which a module is given its keys before a call, as it keeps them projected."""
    names = [name for name in dir(callee) if _PREPARES.match(name)]
    return names[0] if len(names) == 1 and callable(getattr(callee, names[0])) else None


_PREPARES = re.compile(r"(?:compute|precompute|init|set|process)_(?:\w*keys?|\w*memory)$")


class Run:
    """A call with fixed further arguments."""

    def __init__(
        self, callee: Callee, values: Mapping[str, Any], prepare: str | None, keys: int = KEYS
    ) -> None:
        self.source, self.values, self.prepare, self.keys = callee, values, prepare, keys
        self.raised, self.callee = "", None

    def __call__(self, tensors: Mapping[str, Tensor], **more: Any) -> Any:
        """The result; ``None``, with ``raised`` set, if it raises or gives no finite number."""
        self.raised = ""
        widths = [t.shape[-1] for t in tensors.values()]
        sizes = (widths[0], widths[min(1, len(widths) - 1)], widths[-1])
        try:
            with repeatable(), torch.no_grad():
                self.callee = callee = self.source.at(*sizes)
                if self.prepare:
                    getattr(callee, self.prepare)([*tensors.values()][-1].clone())
                given = {name: value.clone() for name, value in tensors.items()}
                like = next(iter(tensors.values()))
                own = {**_SIZES, "S": self.keys, "E": like.shape[-1]}
                filled = {
                    name: value.tensor(own, like) if isinstance(value, Fill) else value
                    for name, value in self.values.items()
                }
                return callee(**given, **{**filled, **more})
        except (Exception, SystemExit) as error:  # whatever it raises, it does not take this
            self.raised = headline(error)[:160]
            return None


def options(argument: Argument, layout: str, memory: str) -> list[Any]:
    """Values to try for an argument that a call needs."""
    role, slots = argument.role or "", "L" if "L" in memory else "S"
    length = _SIZES[slots]
    if role in ("mask", "memory_mask", "padding", "memory_padding"):
        axes = [each for each in MASK_AXES if "L" in layout or "L" not in each]
        kinds = ((1.0, True), (0.0, True), (0.0, False))
        return [None, *(Fill(each, *kind) for each in axes for kind in kinds)]
    if role == "lengths":
        return [torch.full((ITEMS,), length), [length] * ITEMS, None]
    if role in ("causal", "use_cache", "flag", "gqa"):
        return [False]
    if role == "return_weights":
        return [True]
    if role in ("scale",):
        return [0.25, None]
    if role == "dropout":
        return [0.0, None]
    if role in ("previous_weights", "coverage"):
        return [Fill(axes) for axes in ("BS", "B1S", "GS", "BS1")]
    if role == "embedded_positions":
        return [Fill(layout, 0.5), Fill(memory, 0.5), None]
    return [None]


def _binding(
    arguments: Sequence[Argument],
    mains: Mapping[str, str],
    layout: str,
    memory: str,
    values: Mapping[str, Any],
    parts: Mapping[str, tuple[Part, str]],
) -> Binding:
    roles = {
        a.name: mains.get(a.name, a.role or "") for a in arguments if a.name in {**mains, **values}
    }
    has_value = "value" in mains.values() and len(mains) > 2
    shape: Any = "attention" if has_value else "memory"
    weights = parts.get("weights") or parts.get("scores")
    if "output" not in parts and "weights" not in parts:
        shape = "scores"
    return Binding(
        shape=shape,
        layout=layout,
        memory=memory,
        roles=roles,
        output=parts.get("output"),
        weights=weights if shape == "scores" else parts.get("weights"),
        values=values,
        left=tuple(
            a.name for a in arguments if a.name not in {**mains, **values} and not a.required
        ),
    )


def _mixes(
    run: Run,
    tensors: Mapping[str, Tensor],
    parts: Mapping[str, tuple[Part, str]],
    layout: str,
    memory: str,
) -> bool:
    """Whether the outputs of other items change with the tensors of the first."""
    plain = _values(run, tensors, parts)
    other = {}
    for name, value in tensors.items():
        axes = layout if value.shape == tensor(layout, 0, value.shape[-1]).shape else memory
        other[name] = value.clone()
        other[name].select(axes.index("B"), 0).mul_(-1.5)
    moved = _values(run, other, parts)
    for (_, axes), one, two in zip(parts.values(), plain, moved, strict=True):
        if one is None or two is None or one.shape != two.shape:
            return True
        change = (one - two).abs().transpose(0, axes.index("B"))[1:]
        if not bool(change.amax() <= 1e-4):
            return True
    return False


def _values(
    run: Run, tensors: Mapping[str, Tensor], parts: Mapping[str, tuple[Part, str]]
) -> list[Tensor | None]:
    result = run(tensors)
    found = dict(parts_of(result, run.callee))
    return [found.get(where) for where, _ in parts.values()]


@functools.cache
def pattern() -> Tensor:
    """A mask of a trial: what each query of each item sees, made when it is first asked for."""
    seen = torch.rand(ITEMS, QUERIES, KEYS, generator=torch.Generator().manual_seed(4)) < 0.6
    seen[..., 0] = True
    seen[..., 1] = False
    return seen
