"""Invariants on masking: a key that is hidden might as well not be there."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.hookspecs import hookimpl
from attnbench.inputs import Inputs
from attnbench.invariants.compare import holds, reject, same
from attnbench.invariants.deriving import (
    FREE_MASKS,
    all_keys_free,
    benign,
    build,
    generator,
    output,
    resizes,
    select_keys,
)
from attnbench.specs import Invariant
from attnbench.subject import Subject

_HIDING = tuple(mask for mask in FREE_MASKS if mask not in ("none", "bias"))
_POISONS = (math.nan, math.inf, -math.inf)


def some_rows(allowed: Tensor, case: Case) -> list[tuple[int, ...]]:
    """Indices ``(*lead, row)`` of a few rows: the first, the last, and one by chance."""
    shape = allowed.shape[:-1]
    count = math.prod(shape)
    chance = int(torch.randint(count, (), generator=generator(case)))
    flat = dict.fromkeys((0, count - 1, chance))
    return [tuple(int(i) for i in torch.unravel_index(torch.tensor(n), shape)) for n in flat]


def name_of(index: tuple[int, ...]) -> str:
    """``[0, 2, :]``, as one indexes a row of the output."""
    return f"[{', '.join(map(str, index))}, :]"


def _deleting(subject: Subject, case: Case) -> None:
    module, inputs = build(subject, case)
    allowed = inputs.allowed
    whole = output(subject, module, inputs)
    for index in some_rows(allowed, case):
        left = allowed[index].nonzero().squeeze(-1)
        only = select_keys(inputs, left)
        if inputs.attn_mask is None or inputs.attn_mask.dtype == torch.bool:
            only = all_keys_free(only)
        elif only.attn_mask is not None:  # rows that hide other keys do not matter here
            only = only.replace(attn_mask=only.attn_mask.masked_fill(only.attn_mask.isinf(), 0.0))
        got = output(subject, module, only)
        same(
            got[index],
            whole[index],
            f"with only keys {left.tolist()} given, output{name_of(index)}",
            f"masking all other keys of {case.kv_len}",
            subject=subject,
            module=module,
            inputs=inputs,
            taken=lambda tensor, index=index: tensor[index],  # type: ignore[misc]
        )


def _poisoned(inputs: Inputs, case: Case) -> tuple[Inputs, str]:
    """Junk in every slot that is hidden: NaN or Inf in padding, finite where some queries see it.

    Of the slots that only some queries see, one is changed; its own viewers are not compared.
    """
    allowed = inputs.allowed
    dead = ~allowed.any(-2).unsqueeze(-1)
    finite_only = inputs.attn_mask is not None and inputs.attn_mask.is_floating_point()
    poison = _POISONS[case.seed % 3] if not finite_only else 64.0
    where = ("key and value", "value", "key")[case.seed // 3 % 3]
    key, value = inputs.key, inputs.value
    if "key" in where:
        key = key.masked_fill(dead, poison)
    if "value" in where:
        value = value.masked_fill(dead, poison)
    return inputs.replace(key=key, value=value), f"{poison} in {where} of slots hidden from all"


def _inert(subject: Subject, case: Case) -> None:
    module, inputs = build(subject, case)
    allowed = inputs.allowed
    clean = output(subject, module, inputs)
    if bool((~allowed.any(-2)).any()):
        dirty, what = _poisoned(inputs, case)
        got = output(subject, module, dirty)
        same(
            got,
            clean,
            f"with {what}, output",
            "the same call without",
            subject=subject,
            module=module,
            inputs=inputs,
        )
    slot = _partly_hidden(allowed, case)
    if slot is None:
        return
    dirty = _with_junk(inputs, slot)
    got = output(subject, module, dirty)
    blind = ~allowed[..., slot].unsqueeze(-1)
    same(
        torch.where(blind, got, clean),
        clean,
        f"with other (finite) values in key and value of slot {slot}, hidden from this query, "
        "output",
        "the same call without",
        subject=subject,
        module=module,
        inputs=inputs,
    )


def _partly_hidden(allowed: Tensor, case: Case) -> int | None:
    """A slot that at least one query does not see; ``None`` if all see all."""
    slots = (~allowed).flatten(0, -2).any(0).nonzero().squeeze(-1)
    if slots.numel() == 0:
        return None
    return int(slots[int(torch.randint(slots.numel(), (), generator=generator(case)))])


def _with_junk(inputs: Inputs, slot: int) -> Inputs:
    """Large finite values in one slot of every item, of both signs."""
    half = inputs.query.dtype == torch.float16
    key, value = inputs.key.clone(), inputs.value.clone()
    sign = torch.where(torch.arange(key.shape[-1], device=key.device) % 2 == 0, 1.0, -1.0)
    key[..., slot, :] = (16.0 if half else 1024.0) * sign.to(key.dtype)
    value[..., slot, :] = torch.finfo(value.dtype).max ** 0.5
    return inputs.replace(key=key, value=value)


def _emptied(subject: Subject, case: Case) -> tuple[nn.Module, Inputs]:
    """Module, and inputs that leave some row no key, in the form that the case's mask names."""
    if case.mask == "causal":  # more queries than keys: the first ones come before every key
        longer = case.replace(mask="none", q_len=case.kv_len + 1 + case.seed % 3)
        if subject.legal(longer) != longer:
            reject("q_len cannot exceed kv_len")
        module, inputs = build(subject, longer)
        return module, inputs.replace(is_causal=True)
    module, inputs = build(subject, case)
    if case.mask == "empty_row":
        return module, inputs
    if inputs.valid_lens is not None:
        lens = inputs.valid_lens.clone()
        lens[case.seed % lens.shape[0]] = 0  # a whole item, or all its queries
        return module, inputs.replace(valid_lens=lens)
    mask = inputs.attn_mask
    assert mask is not None
    mask = mask.clone()
    if mask.dim() > 2 and case.seed % 2:
        mask[0] = False if mask.dtype == torch.bool else -math.inf  # a whole item
    else:
        mask[..., case.seed % mask.shape[-2], :] = False if mask.dtype == torch.bool else -math.inf
    return module, inputs.replace(attn_mask=mask)


def _empty_zero(subject: Subject, case: Case) -> None:
    module, inputs = _emptied(subject, case)
    got = output(subject, module, inputs)
    dead = ~inputs.allowed.any(-1, keepdim=True).expand_as(got)
    shown = got.masked_fill(~dead, 0.0)
    holds(shown == 0, "output", got, "0: the mask leaves no key to that query")
    alive = got.masked_fill(dead, 0.0)
    holds(alive.isfinite(), "output", got, "finite: only another query has no key left")


def _empty_gradient(subject: Subject, case: Case) -> None:
    module, inputs = _emptied(subject, case)
    inputs = inputs.map(lambda tensor: tensor.detach().requires_grad_())
    got = output(subject, module, inputs)
    torch.autograd.backward(got.sum())
    for name in ("query", "key", "value"):
        gradient = getattr(inputs, name).grad
        if gradient is not None:
            holds(
                gradient.isfinite(),
                f"gradient of {name}",
                gradient,
                "finite: some query has no key left",
            )
    for name, parameter in module.named_parameters():
        if parameter.grad is not None:
            holds(
                parameter.grad.isfinite(),
                f"gradient of parameter {name}",
                parameter.grad,
                "finite: some query has no key left",
            )


_EMPTYING = ("empty_row", "padding", "lengths_2d", "causal", "floating", "boolean", "key_padding")


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants on masking."""
    yield Invariant(
        name="masking_equals_deleting",
        statement="Hiding keys from a query gives what giving only the other keys gives.",
        check=_deleting,
        cases=lambda subject: benign(subject, min_kv_len=2),
        applies=lambda subject: resizes(subject, "kv_len"),
    )
    yield Invariant(
        name="masked_slots_are_inert",
        statement="Whatever key and value a hidden slot holds, the output is the same.",
        check=_inert,
        cases=lambda subject: benign(subject, masks=_HIDING, min_kv_len=2),
    )
    yield Invariant(
        name="empty_rows_give_zeros",
        statement="A query with no key left has zeros as its output, and the others are finite.",
        check=_empty_zero,
        cases=lambda subject: benign(subject, masks=_EMPTYING),
    )
    yield Invariant(
        name="empty_rows_have_finite_gradients",
        statement="A query with no key left makes no gradient NaN or infinite.",
        check=_empty_gradient,
        cases=lambda subject: benign(subject, masks=_EMPTYING),
    )
