"""What small calls of a bound callee show: its conventions, sizes, dtypes and formula."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling.attention_call import Attention
from attnbench.calling.binding import Binding, Mask
from attnbench.calling.layer_trials import LayerCalls
from attnbench.calling.styles.function_trials import least_size, share_of_last
from attnbench.calling.styles.scaled_dot_floats import SCALED_DOT, scaled_dot_rows
from attnbench.calling.trials import MASK_AXES, Callee, pattern, repeatable
from attnbench.errors import headline
from attnbench.specs import DTYPES

_CLEAR = 1e-4
_SHOWN = 3e-6
"""The least change of an output, in proportion, that shows that a slot reaches it."""


class Calls:
    """Small calls of a bound callee, on 3 items, 5 queries and 7 keys.

    Args:
        callee: what is called.
        binding: how.
    """

    def __init__(self, callee: Callee, binding: Binding) -> None:
        self.callee, self.binding, self.raised = callee, binding, ""

    def __call__(
        self, tensors: list[Tensor] | None = None, *, dtype: str = "float32", **given: Any
    ) -> Tensor | None:
        """The output; ``None``, with ``raised`` set, if the call raises."""
        found = self.both(tensors, dtype=dtype, **given)
        return None if found is None else found[0]

    def both(
        self, tensors: list[Tensor] | None = None, *, dtype: str = "float32", **given: Any
    ) -> tuple[Tensor, Tensor | None] | None:
        """The output and the weights."""
        query, key, value = self.tensors() if tensors is None else tensors
        kind = getattr(torch, dtype)
        try:
            with repeatable(), torch.no_grad():
                made = Attention(
                    self.callee.at(query.shape[-1], key.shape[-1], value.shape[-1]), self.binding
                )
                module = made.eval().to(kind)
                if self.binding.shape == "scores":
                    scores = module.scores(query.to(kind), key.to(kind))
                    return scores, scores
                output, weights = module(
                    *(t.to(kind) for t in (query, key, value)), return_weights=True, **given
                )
                return output, weights
        except (Exception, SystemExit) as error:  # whatever it raises, it does not take this
            self.raised = headline(error)[:120]
            return None

    def tensors(self, queries: int = 5, keys: int = 7, sizes: tuple[int, ...] = ()) -> list[Tensor]:
        """Query, key and value, canonical."""
        if self.binding.square:
            keys = queries
        lead = (3, 2) if "H" in self.binding.layout else (3,)
        generator = torch.Generator().manual_seed(1)
        lengths = (queries, keys, keys)
        return [
            torch.randn(*lead, length, size, generator=generator)
            for length, size in zip(lengths, sizes or (self.callee.width,) * 3, strict=True)
        ]

    def reach(
        self, mask: Tensor | None = None, queries: int = 5, keys: int = 7, **given: Any
    ) -> Tensor | None:
        """Which keys reach each query ``(B, L, S)``; ``None`` if a call raises."""
        tensors = self.tensors(queries, keys)
        wide = mask if mask is None or tensors[0].dim() == 3 else mask.unsqueeze(1)
        more = {**given, **({} if wide is None else {"attn_mask": wide})}
        plain = self(tensors, **more)
        if plain is None or not bool(plain.isfinite().all()):
            return None
        size, found = float(plain.abs().amax()), []
        for slot in range(tensors[1].shape[-2]):
            query, key, value = (t.clone() for t in tensors)
            key[..., slot, :] *= -1.5
            value[..., slot, :] *= -1.5
            moved = self([query, key, value], **more)
            if moved is None:
                return None
            change = (moved - plain).abs().amax(-1).reshape(3, -1, plain.shape[-2]).amax(1)
            found.append(change > _SHOWN * size)
        return torch.stack(found, -1)


_SAYS = ("shows", "hides", "added", "ones", "zeros")


def mask_form(calls: Calls, name: str) -> Mask | None:
    """The form of a mask argument, by which keys it hides; ``None`` if none shows.

    Where items have masks of their own and none fits, as one mask for all items shows it: what
    takes each item's mask for another's is wrong, and a check is to say so.
    """
    base = calls.reach()
    if base is None:
        return None
    for seen in (pattern(), pattern()[:1].expand(pattern().shape)):
        for axes in MASK_AXES:
            form = _form(calls, name, axes, base, seen[..., : base.shape[-1]])
            if form is not None:
                return form
    return None


def _form(calls: Calls, name: str, axes: str, base: Tensor, pattern: Tensor) -> Mask | None:
    bound = calls.binding
    if ("H" in axes and "H" not in bound.layout) or (bound.one_query and "L" in axes):
        return None
    allowed = pattern if "B" in axes else pattern[:1]
    allowed = allowed if "L" in axes or bound.one_query else allowed[:, :1]
    for says in _SAYS:
        form = Mask(axes, says)
        roles = {**bound.roles, name: "mask"}
        other = Calls(calls.callee, bound.replace(masks={name: form}, roles=roles))
        seen = other.reach(allowed)
        if seen is not None and torch.equal(seen, allowed.expand(base.shape) & base):
            return form
    return None


def length_form(calls: Calls, name: str) -> Mask | None:
    """Whether an argument takes the number of keys of each item, or of each query."""
    base, bound = calls.reach(), calls.binding
    if base is None:
        return None
    lens = torch.tensor([2, 7, 4]).clamp_max(base.shape[-1])
    rows = torch.tensor([[1, 2, 3, 4, 5], [7, 6, 5, 4, 3], [2, 2, 7, 7, 1]])
    found = None
    for axes, given in (("B", lens), ("BL", rows.clamp_max(base.shape[-1]))):
        roles = {**bound.roles, name: "lengths"}
        form = Mask(axes, "lengths")
        other = Calls(calls.callee, bound.replace(masks={name: form}, roles=roles))
        seen = other.reach(valid_lens=given)
        places = torch.arange(base.shape[-1])
        expected = places < (given[:, None, None] if axes == "B" else given[..., None])
        if seen is not None and torch.equal(seen, expected.expand(base.shape) & base):
            found = form
    return found


@dataclass
class Facts:
    """The fields of a spec that calls show, and remarks."""

    fields: dict[str, Any] = field(default_factory=dict)
    conventions: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def facts_of(callee: Callee, binding: Binding) -> Facts:
    """Ask everything of a bound callee."""
    calls, found = Calls(callee, binding), Facts()
    found.conventions.update(_masks(calls))
    found.conventions.update(_hidden(calls))
    found.conventions.update(_causality(calls))
    found.conventions.update(_positions(calls))
    dtypes, raised = _dtypes(calls)
    if raised:
        found.notes.append(_not_tried(raised))
        found.fields["dtypes"] = dtypes
    if _is_random(calls):
        found.notes.append(RANDOM)
    _formula(calls, found)
    return found


def _masks(calls: Calls) -> dict[str, Any]:
    forms = calls.binding.masks.values()
    words = [
        *("boolean" for form in forms if form.says not in ("lengths",)),
        *("floating" for form in forms if form.says == "added"),
        *("lengths" for form in forms if form.says == "lengths"),
    ]
    masks = [form for form in forms if form.says != "lengths"]
    if masks and not calls.binding.one_query and all(form.by_key for form in masks):
        words.append("keys")
    return {"masks": tuple(dict.fromkeys(words))}


def _hiding(calls: Calls, left: int) -> dict[str, Any] | None:
    """The mask or the lengths that leave the first keys; ``None`` if it takes neither."""
    forms = calls.binding.masks.values()
    slots = calls.tensors()[1].shape[-2]
    if any(form.says != "lengths" for form in forms):
        return {"attn_mask": (torch.arange(slots) < left).expand(1, slots)}
    return {"valid_lens": torch.full((3,), left)} if forms else None


def _hidden(calls: Calls) -> dict[str, Any]:
    """What a row without keys gives, what hidden slots may hold, and the value of the mask."""
    nothing = _hiding(calls, 0)
    if nothing is None:
        return {}
    found: dict[str, Any] = {"empty_rows": _empty_rows(calls, nothing)}
    query, key, value = calls.tensors()
    for poisoned in (key, value):
        poisoned[..., 1:, :] = math.nan
        output = calls([query, key, value], **(_hiding(calls, 1) or {}))
        if output is None or not bool(output.isfinite().all()):
            found["hidden_slots"] = "finite"
            break
        poisoned[..., 1:, :] = 0.0
    low = _mask_value(calls)
    if low is not None and any(True for _ in _parameters(calls)):
        low = max(low, _ABOVE)  # its scores are not q·k, and either sign may lie far from zero
    return found | ({} if low is None else {"mask_value": low})


_ABOVE = -999_999.0


def _parameters(calls: Calls) -> Any:
    made = calls.callee.at()
    return made.parameters() if isinstance(made, nn.Module) else ()


def _empty_rows(calls: Calls, nothing: Mapping[str, Any]) -> str:
    output = calls(**nothing)
    if output is None:
        return "refused"
    if bool(output.isnan().any()):
        return "nan"
    if bool((output == 0).all()):
        return "zeros"
    query, key, value = calls.tensors()
    equal = calls([query, key[..., :1, :].expand(key.shape), value])
    return "mean" if equal is not None and _close(output, equal) else "nan"


def _mask_value(calls: Calls) -> float | None:
    """The finite score that hides a key, where a dot product reaches below it."""

    def hidden(score: float) -> float:
        query, key, value = calls.tensors()
        size = math.sqrt(score) / calls.callee.width**0.25
        # values as large as the query, which may be added to the output and normed with it
        one = size * (value * 0 + torch.linspace(1, 2, value.shape[-1]))
        query, key = query * 0 + size, key * 0 + size
        values = one * 0, one, torch.cat([one[..., :1, :] * 0, one[..., 1:, :]], -2)
        hiding = _hiding(calls, 1) or {}
        outputs = [calls([query, keys, v], **hiding) for keys in (key, -key) for v in values]
        return share_of_last(outputs)

    found = least_size(hidden)
    return None if found is None else -float(f"{found:.2g}")


def _causality(calls: Calls) -> dict[str, Any]:
    """Whether no query sees later keys, though nobody asks."""
    seen = calls.reach(None, 5, 5)
    if seen is None or not torch.equal(
        seen, torch.ones(5, 5, dtype=torch.bool).tril().expand(seen.shape)
    ):
        return {}
    return {"causal": "always"}


def _positions(calls: Calls) -> dict[str, Any]:
    """Whether the order of keys counts."""
    query, key, value = calls.tensors()
    plain, turned = calls([query, key, value]), calls([query, key.roll(1, -2), value.roll(1, -2)])
    if plain is None or turned is None or calls.binding.square:
        return {}
    return {} if _close(plain, turned) else {"positions": "absolute"}


def _dtypes(calls: Calls) -> tuple[tuple[str, ...], dict[str, str]]:
    raised: dict[str, str] = {}
    hiding = _hiding(calls, 2) or {}
    for name in DTYPES:
        if calls(dtype=name, **hiding) is None:
            raised[name] = calls.raised
    return tuple(name for name in DTYPES if name not in raised), raised


def _is_random(calls: Calls) -> bool:
    """Whether two calls in evaluation differ."""
    query, key, value = calls.tensors()
    module = Attention(calls.callee.at(), calls.binding).eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            one, two = (module(query, key, value) for _ in range(2))
    except Exception:
        return False
    return not torch.equal(one, two)


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
    pools = _close(constant, value[..., :1, :] * 0 + 3)
    if weights is not None:
        pools = pools and _close(output, weights @ value)
        accepts.append("return_weights")
    found.fields["accepts"] = tuple(accepts)
    if pools:
        found.fields["laws"] = ("pools_values",)
    if pools and is_scaled_dot(calls):
        found.fields |= {"reference": scaled_dot_rows, "formula": SCALED_DOT["formula"]}
    else:
        found.notes.append("no reference: a wrong but self-consistent formula would pass")


def is_scaled_dot(calls: Calls) -> bool:
    """Whether it computes ``softmax(q·k / √E) v``."""
    query, key, value = calls.tensors()
    output = calls([query, key, value])
    plain = nn.functional.scaled_dot_product_attention(query, key, value)
    return output is not None and _close(output, plain)


def _close(got: Tensor, expected: Tensor) -> bool:
    expected = expected.expand(got.shape) if expected.dim() == got.dim() else expected
    return got.shape == expected.shape and torch.allclose(got, expected, _CLEAR, _CLEAR)


def layer_facts(callee: Callee, binding: Binding) -> Facts:
    """Ask everything of a bound layer."""
    calls, found = LayerCalls(callee, binding), Facts()
    seen = calls.reach() if "Y" not in binding.layout else None
    if seen is not None:
        causal = not bool(seen.triu(1).any())
        found.fields["causal"] = causal
        found.notes.append(f"{'' if causal else 'not '}causal (found by trying)")
    accepts = ("padding_mask",) if binding.masks else ()
    found.fields["accepts"] = accepts + (("source",) if binding.memory else ())
    hidden, source = calls.tensors()
    given = source if binding.memory else None
    raised: dict[str, str] = {}
    for name in DTYPES:
        if calls(hidden, given, dtype=name) is None:
            raised[name] = calls.raised
    if raised:
        found.notes.append(_not_tried(raised))
        found.fields["dtypes"] = tuple(name for name in DTYPES if name not in raised)
    if binding.masks:
        real = torch.ones(hidden.shape[:2], dtype=torch.bool)
        real[-1] = False
        output = calls(hidden, given, real)
        if output is None or not bool(output.isfinite().all()):
            found.conventions["empty_rows"] = "nan"
    if (parts := calls.parts()) > 1:
        found.notes.append(f"its output of {parts}·E features is folded to E")
    if calls.is_random():
        found.notes.append(RANDOM)
    if binding.memory:
        moved, plain = calls(hidden, -1.5 * source), calls(hidden, source)
        if plain is not None and moved is not None and torch.equal(plain, moved):
            found.notes.append("**its second sequence changes no output**")
    return found


RANDOM = "**it draws random numbers in evaluation, as dropout does**"


def _not_tried(raised: Mapping[str, str]) -> str:
    return f"not tried in {' and '.join(raised)}, where it raises {next(iter(raised.values()))}"
