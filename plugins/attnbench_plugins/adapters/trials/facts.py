"""What small calls of a bound callee show: its conventions, sizes, dtypes and formula."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from attnbench.errors import StyleError
from attnbench.styles import DTYPES, SCALED_DOT, call_arguments, role_of, scaled_dot_rows
from attnbench_plugins.adapters.binding import Binding, Given
from attnbench_plugins.adapters.trials.asked_causality import asks_for_causality
from attnbench_plugins.adapters.trials.formulas import formula_of
from attnbench_plugins.adapters.trials.found_conventions import conventions_of, hiding
from attnbench_plugins.adapters.trials.projections import projected_of
from attnbench_plugins.adapters.trials.small_calls import (
    KEYS,
    QUERIES,
    Callee,
    Calls,
    close,
    swapped,
)
from attnbench_plugins.adapters.trials.trial_layouts import axes_of, folds, parts_of


@dataclass
class Facts:
    """The fields of a spec that calls show, remarks, and shapes of what else a call gives."""

    fields: dict[str, Any] = field(default_factory=dict)
    conventions: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def facts_of(callee: Callee, binding: Binding) -> Facts:
    """Ask everything of a bound callee."""
    calls, found = Calls(callee, binding), Facts()
    dtypes, said = dtypes_of(calls)
    if said:
        found.notes.append(said)
        found.fields["dtypes"] = dtypes
    result, called = calls.result(calls.tensors(1 if binding.one_query else QUERIES))
    found.others += _others(calls, result)
    if found.others:
        found.notes.append(f"it gives {' and '.join(found.others)} as well, not looked at")
    kept = getattr(called, "__dict__", {}).items()
    unset = [n for n, v in kept if v is None and "mask" in str(role_of(n, "forward"))]
    if unset and not binding.masks:
        found.notes.append(f"its own {' and '.join(unset)} is None in every call")
    if is_random := calls.is_random():
        found.notes.append("**it draws random numbers in evaluation, as dropout does**")
    if calls.is_layer:
        _layer(calls, found, is_random)
        return found
    found.conventions.update(conventions_of(calls))
    if found.conventions.get("empty_rows") == "nan":
        output = calls(**(hiding(calls, 0) or {}))
        if output is not None and bool(output.isfinite().all()):
            why = "its values are its keys"
            why = why if binding.shape == "memory" else "it is neither zeros nor the mean of values"
            found.notes.append(f"what a row without keys gives is not looked at: {why}")
    _formula(calls, found)
    return found


def _others(calls: Calls, result: Any) -> list[str]:
    """The shapes of what a call gives beside the output, weights and scores."""
    binding = calls.binding
    known = {where for found in (binding.output, binding.weights) if found for where in found[:1]}
    shapes = []
    for where, part in parts_of(result, None):
        axes = axes_of(part.shape, calls.callee.sides)
        axes = axes.replace("L", "?") if binding.one_query else axes
        if where not in known and part.is_floating_point() and axes[1:] and axes[-1] in "E?":
            shapes.append(f"a tensor ({', '.join(axes)})")
    return shapes


def _layer(calls: Calls, found: Facts, is_random: bool) -> None:
    """What is asked of hidden states alone."""
    binding, tensors = calls.binding, calls.tensors()
    seen = calls.reach() if "Y" not in binding.layout else None
    if seen is not None:
        causal = not bool(seen.triu(1).any())
        found.fields["causal"] = causal
        mixes = not causal or bool(seen.tril(-1).any())
        told = f"{'' if causal else 'not '}causal" if mixes else "no token reaches another"
        if mixes and not causal and asks_for_causality(calls):
            found.fields["causal"] = True  # which a check says is not so
            told = "**not causal, though it makes a causal mask or asks for is_causal**"
        elif mixes and not causal and _says_causal(calls):
            told = "**not causal, though it says so**"
        found.notes.insert(0, f"{told} (found by trying)")
        if not is_random:
            _asked_of_tokens(calls, found, causal, mixes)
        if not binding.memory and not binding.tokens:
            projected, told = projected_of(calls, causal)
            found.notes += [told] if told else []
            found.fields |= {} if projected is None else {"reference": projected.rows}
    accepts = ("padding_mask",) if binding.masks else ()
    found.fields["accepts"] = accepts + (("source",) if binding.memory else ())
    if any(mask.leaks for mask in binding.masks.values()):
        found.fields["laws"] = ("left_padding_is_inert",)  # causality hides padding at the right
    if binding.masks:
        nothing = torch.ones(tensors[0].shape[:2], dtype=torch.bool)
        nothing[-1] = False
        output = calls(padding_mask=nothing)
        if output is None or not bool(output.isfinite().all()):
            found.conventions["empty_rows"] = "refused" if output is None else "nan"
    if (parts := folds(calls)) > 1:
        found.notes.append(f"its output of {parts}·E features is folded to E")


def _says_causal(calls: Calls) -> bool:
    """Whether a module is called causal, or has a flag that says so, and no mask can make it."""
    binding, callee = calls.binding, calls.callee.at()
    taken = (*binding.roles, *binding.left, *binding.unread)
    if any(role_of(name, "forward") == "mask" for name in taken):
        return False
    flags = [name for name, value in getattr(callee, "__dict__", {}).items() if value is True]
    named = call_arguments(callee) or ()
    flags += [each.name for each in named if each.default is True and each.name in binding.left]
    is_called = "causal" in type(callee).__name__.lower()
    return is_called or any(role_of(name, "forward") == "causal" for name in flags)


def _padding(calls: Calls) -> dict[str, Any]:
    """A mask of padding that leaves the first tokens, of a layer that takes one."""
    if not calls.binding.masks:
        return {}
    hidden = calls.tensors()[0]
    return {"padding_mask": torch.arange(hidden.shape[1]).expand(hidden.shape[:2]) < 2}


def _asked_of_tokens(calls: Calls, found: Facts, causal: bool, mixes: bool) -> None:
    """What no file can declare, asked with numbers: whether positions count, and sums are one."""
    values = calls.binding.values.values()
    given = [v for v in values if isinstance(v, Given) and v.tree is not None]
    if given:  # what an example gives may belong to its tokens, which stay in their order
        if any("L" in axes for each in given for axes in each.axes):
            found.conventions["positions"] = "absolute"
        elif not mixes:
            found.conventions["positions"] = "none"
        return
    tensors, plain = calls.many()
    alike = calls([tensor * 0 + tensor[:, :1] for tensor in tensors])
    if plain is not None and not (causal and mixes) and not calls.binding.tokens:
        turned = calls([swapped(tensors[0], 1), *tensors[1:]])
        if turned is not None and close(swapped(turned, 1), plain):
            found.conventions["positions"] = "none"
        elif turned is not None:
            off = float((swapped(turned, 1) - plain).abs().amax() / plain.abs().amax())
            roles = {r for n, r in calls.binding.roles.items() if calls.binding.values.get(n)}
            known = roles & {"rotary", "cos", "sin", "positions", "embedded_positions"}
            other = "" if known else ", or tokens and heads are split wrongly"
            found.conventions["positions"] = "absolute"
            found.notes.append(
                f"with its tokens in another order, its outputs are off by {off:.0%}: positions "
                f"count{other}"
            )
            return
    if alike is not None and not close(alike, alike[:, :1]):
        said = "where all tokens are alike, its outputs differ: positions count, or weights do not"
        found.notes.append(f"{said} sum to one")


def most_tokens(calls: Calls) -> int:
    """The most queries, and as many keys, of a call that does not raise; 0 without a limit.

    A call of many that raises is a limit that the code has, as a table of positions; one of few
    that raises is wrong. What it raises beyond is left in ``calls.raised``.
    """

    def raises(count: int) -> bool:
        few = 1 if calls.binding.one_query else QUERIES
        return any(calls(calls.tensors(*sizes)) is None for sizes in ((few, count), (count, KEYS)))

    counts = range(max(QUERIES, KEYS), _LONGEST + 1)
    if raises(counts[0]) or not raises(_LONGEST):
        return 0
    most = counts[bisect.bisect(counts, False, key=raises) - 1]
    raises(most + 1)
    return most


_LONGEST = 1100
"""The number of keys in the longest cases."""


def dtypes_of(calls: Calls) -> tuple[tuple[str, ...], str]:
    """The dtypes in which it can be called, and why not in others; an empty text for all.

    Raises:
        StyleError: it can be called in none.
    """
    raised: dict[str, str] = {}
    given = _padding(calls) if calls.is_layer else hiding(calls, 2) or {}
    for name in DTYPES:
        if calls(dtype=name, **given) is None:
            raised[name] = calls.raised
    if len(raised) == len(DTYPES):
        name, error = type(calls.callee.at()).__name__, raised["float32"]
        raise StyleError(f"{name}: calls of other sizes than those that were tried raise {error}")
    kinds, error = " and ".join(raised), next(iter(raised.values()), "")
    said = f"not tried in {kinds}, where it raises {error}" if raised else ""
    return tuple(name for name in DTYPES if name not in raised), said


def _formula(calls: Calls, found: Facts) -> None:
    """Laws, what it accepts, and the formula where it is that of scaled dot products."""
    accepts = (
        ["valid_lens"] if any(m.says == "lengths" for m in calls.binding.masks.values()) else []
    )
    both = calls.both()
    query, key, value = calls.tensors()
    constant = calls([query, key, value * 0 + 3])
    if both is None or constant is None:
        return
    output, weights = both
    turned = calls([query, key, value.roll(1, -1)])  # heads pool features of their own
    pools = close(constant, value[..., :1, :] * 0 + 3)
    pools = pools and turned is not None and close(turned, output.roll(1, -1))
    if weights is not None:
        pools = pools and close(output, weights @ value)
        accepts.append("return_weights")
    found.fields["accepts"] = tuple(accepts)
    if pools:
        found.fields["laws"] = ("pools_values",)
    causal = found.conventions.get("causal") == "always"
    if causal and not calls.binding.square:  # a reference aligns the last query to the last key
        seen, shape = calls.reach(), (QUERIES, KEYS)
        last = torch.ones(shape, dtype=torch.bool).tril(KEYS - QUERIES)
        pools = pools and seen is not None and torch.equal(seen, last.expand(seen.shape))
    if pools and is_scaled_dot(calls, causal=causal):
        found.fields |= {"reference": scaled_dot_rows, "formula": SCALED_DOT["formula"]}
    elif pools and (formula := formula_of(calls, causal=causal)) is not None:
        found.fields |= {"reference": formula.rows, "formula": formula.spec.formula}
        found.notes.insert(0, f"it computes {formula}")
    else:
        found.notes.append("no reference: a wrong but self-consistent formula would pass")


def is_scaled_dot(calls: Calls, *, causal: bool = False) -> bool:
    """Whether it computes ``softmax(q·k / √E) v``, of the keys that causality leaves."""
    query, key, value = calls.tensors()
    if query.shape[-1] != key.shape[-1]:
        return False
    output = calls([query, key, value])
    last = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(
        key.shape[-2] - query.shape[-2]
    )
    seen = last if causal else None
    plain = nn.functional.scaled_dot_product_attention(query, key, value, seen)
    return output is not None and close(output, plain)
