"""Invariants on heads of a layer that share keys and values."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from attnbench import InvariantViolation, RefusalError
from attnbench.testing import LayerCase, LayerSubject, layer_invariant


def _has_groups(subject: LayerSubject) -> str | None:
    heads, groups = subject.spec.heads, subject.spec.kv_heads
    if heads is None or groups is None:
        return "declares no grouped heads (heads=, kv_heads=)"
    return None if 1 < groups < heads else "it has a single group of heads, or groups of one head"


@layer_invariant(
    hint="heads are paired with keys and values of another group, as by repeat",
    regimes=("normal",),
    dtypes=("float32", "float64"),
    min_q_len=2,
    applies=_has_groups,
)
def heads_of_a_group_are_alike(layer: LayerCase) -> None:
    """Two query heads that share keys and values may change places, with their projections, without
    any effect.
    """
    heads, groups = layer.subject.spec.heads, layer.subject.spec.kv_heads
    assert heads is not None
    assert groups is not None
    expected, real = layer.run(layer.hidden), layer.real(layer.hidden)
    wrong: dict[tuple[str, str], InvariantViolation] = {}
    violation = None
    for first, last in _maps(layer.module, heads, groups):
        if not _goes_on(layer, first, last, heads):
            continue  # as from the map out of the heads to that into them
        found, names = _exchanged(layer, first, last, heads, expected, real)
        across = _swapped(layer, first, last, heads, heads // groups, names)
        if found is not None:
            wrong[first, last] = found
        if layer.differs(across, expected, real) is None:
            continue  # not the heads: hidden features of an MLP may all change places
        if found is None:
            return
        violation = violation or found
    outs = dict.fromkeys(last for _, last in wrong) if violation else ()
    if any(_own_groups_are_read(layer, last, heads, groups) for last in outs):
        return
    for maps, found in wrong.items():
        alike = [
            other
            for other in range(1, heads)
            if layer.differs(_swapped(layer, *maps, heads, other), expected, real) is None
        ]
        if alike == [*range(groups, heads, groups)]:
            raise found  # each serves every so many heads
    if violation is None:
        raise RefusalError("no nn.Linear maps into the query heads, and another out of them")
    raise violation


def _maps(module: nn.Module, heads: int, groups: int) -> Iterator[tuple[str, str]]:
    """Yield the names of linear maps that may go into the query heads, and out of all heads."""
    maps = {name: part for name, part in module.named_modules() if isinstance(part, nn.Linear)}
    for last, out in maps.items():
        width, rest = divmod(out.in_features, heads)
        for first, into in maps.items():
            sizes = (heads * width, (heads + 2 * groups) * width)
            if first != last and not rest and into.out_features in sizes:
                yield first, last


def _exchanged(
    layer: LayerCase, first: str, last: str, heads: int, expected: Tensor, real: Tensor
) -> tuple[InvariantViolation | None, tuple[str, ...]]:
    """What the output is off by with the first two heads of a group in each other's place.

    Tensors that may hold something of each head, as sinks, move with it where it is right then;
    their names come behind.
    """
    setting = f"with the first two heads of a group in each other's place in {first} and {last}"
    found = layer.differs(
        _swapped(layer, first, last, heads, 1),
        expected,
        real,
        what=f"{setting}, output",
        other="the layer as it is",
    )
    for way in _of_each_head(layer.module, heads, first, last) if found else ():
        if layer.differs(_swapped(layer, first, last, heads, 1, way), expected, real) is None:
            return None, way
    return found, ()


def _of_each_head(
    module: nn.Module, heads: int, first: str, last: str
) -> Iterator[tuple[str, ...]]:
    """Yield names of tensors that may hold something of each head: all, of a module, and one."""
    held = (*module.named_parameters(), *module.named_buffers())
    out = module.get_submodule(last)
    assert isinstance(out, nn.Linear)
    names = [
        name for name, tensor in held if heads in tensor.shape or tensor.shape == (out.in_features,)
    ]
    names = [name for name in names if name.rpartition(".")[0] not in (first, last)]
    owners = itertools.groupby(names, lambda name: name.rpartition(".")[0])
    by_module = (tuple(owned) for _, owned in owners)
    ways = (tuple(names), *by_module, *((name,) for name in names))
    yield from dict.fromkeys(filter(None, ways))


def _swapped(
    layer: LayerCase, first: str, last: str, heads: int, other: int, names: Iterable[str] = ()
) -> Tensor:
    """The output with the first head and another one in each other's place, also in tensors."""
    order = list(range(heads))
    order[0], order[other] = other, 0
    module = copy.deepcopy(layer.module)
    into, out = module.get_submodule(first), module.get_submodule(last)
    assert isinstance(into, nn.Linear)
    assert isinstance(out, nn.Linear)
    width = out.in_features // heads
    with torch.no_grad():
        for tensor in (into.weight, into.bias):
            if tensor is None:
                continue
            rows = tensor[: heads * width].reshape(heads, width, *tensor.shape[1:])
            tensor[: heads * width] = rows[order].flatten(0, 1)
        held = dict((*module.named_parameters(), *module.named_buffers()))
        for tensor in map(held.__getitem__, names):
            places = torch.tensor(order, device=tensor.device)
            if heads in tensor.shape:
                tensor.copy_(tensor.index_select(tensor.shape.index(heads), places))
            else:  # as of a norm over all heads
                tensor.copy_(tensor.reshape(heads, width)[places].flatten())
        out.weight.copy_(out.weight.reshape(-1, heads, width)[:, order].flatten(1))
        return layer.subject.call(module, layer.hidden)[0]


def _goes_on(layer: LayerCase, first: str, last: str, heads: int) -> bool:
    """Whether what one map gives reaches the other, as far as that is seen."""
    module = copy.deepcopy(layer.module)
    weight = module.get_submodule(first).weight
    assert isinstance(weight, Tensor)
    with torch.no_grad():
        weight.copy_(-weight.roll(1, -1))  # other numbers, also of what is normalised or squared
    one, two = _into(layer, layer.module, last, heads), _into(layer, module, last, heads)
    return one is None or two is None or one.shape != two.shape or not torch.equal(one, two)


def _own_groups_are_read(layer: LayerCase, last: str, heads: int, groups: int) -> bool:
    """Whether what goes into a head or a group of heads stays there, up to the map out of them.

    It tells heads that differ by something computed for each, such as slopes or sinks, from heads
    that read keys or values of another group.
    """
    out = layer.module.get_submodule(last)
    assert isinstance(out, nn.Linear)
    width, size = out.in_features // heads, heads // groups
    own = [list(range(first, first + size)) for first in range(0, heads, size)]
    expected, reached = _into(layer, layer.module, last, heads), [0] * groups
    if expected is None:
        return False
    for name, part in layer.module.named_modules():
        if name == last or not isinstance(part, nn.Linear):
            continue
        for row in range(part.out_features):
            module = copy.deepcopy(layer.module)
            weight = module.get_submodule(name).weight
            assert isinstance(weight, Tensor)
            with torch.no_grad():
                weight[row] = -weight[row].roll(1)
            given = _into(layer, module, last, heads)
            if given is None or given.shape != expected.shape:
                continue  # as of an expert to which other tokens go
            changed = given.ne(expected).any(-1).any(0).nonzero().flatten().tolist()
            if changed in own:
                reached[own.index(changed)] += 1
            elif 1 < len(changed) < heads:
                return False
    return all(rows > width for rows in reached)  # the keys too, and not the values alone


def _into(layer: LayerCase, module: nn.Module, last: str, heads: int) -> Tensor | None:
    """What the map out of the heads is given, ``(tokens, heads, width)``; ``None`` if nothing."""
    given: list[Tensor] = []
    hook = module.get_submodule(last).register_forward_pre_hook(
        lambda _, inputs: given.append(inputs[0].detach().clone())
    )
    with hook, torch.no_grad():
        layer.subject.call(module, layer.hidden)
    return given[-1].reshape(-1, heads, given[-1].shape[-1] // heads) if given else None
