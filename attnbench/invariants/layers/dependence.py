"""Invariants on the tokens that an output may depend on: not other items, later or far ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation
from attnbench.invariants.caches.stage import TOKENS
from attnbench.invariants.toolkit.comparisons import differentiate, reject
from attnbench.invariants.toolkit.decorator import hook_of, invariant
from attnbench.invariants.toolkit.layer_calls import Look, has_gradients, layer_cases
from attnbench.invariants.toolkit.layer_faults import sees_beyond_window, sees_the_future
from attnbench.invariants.toolkit.layer_rounding import gradient_floor, rounding_of
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_MASKS = ("none", "padding", "left_padding")


@invariant(kinds=("layer",), cases=layer_cases)
def items_are_independent(subject: Subject, case: Case) -> None:
    """What an item gets depends neither on the order of the batch nor on the other items."""
    look, batch = Look(subject, case), case.lead[0]
    if batch < 2:
        reject("the only item is always alone")
    expected = look.run(look.hidden)
    order = torch.randperm(batch, generator=look.generator)
    item = look.choose(batch)
    mates = look.other(look.hidden)
    mates[item] = look.hidden[item]
    only = slice(item, item + 1)
    for got, want, told, cause in (
        (look.run(mates)[only], expected[only], f"item {item} among others", "items_mixed"),
        (look.run(look.hidden[order]), expected[order], f"items in order {order.tolist()}", None),
        (look.run(look.hidden[only]), expected[only], f"item {item} alone", None),
    ):

        def allowed(count: int = got.shape[0]) -> Tensor:
            limits = rounding_of(look.subject, look.module, look.hidden)
            return limits.amax(0, keepdim=True).expand(count, -1, -1)

        found = look.differs(got, want, look.real(got), allowed)
        if found is not None:
            other = f"the same item in its batch of {batch}"
            look.accuse(found, got, want, f"for {told}, output", other, cause)


def _is_causal(subject: Subject) -> str | None:
    assert isinstance(subject, LayerSubject)
    return None if subject.spec.causal else "it is not causal"


@invariant(
    kinds=("layer",),
    cases=lambda subject: layer_cases(subject, masks=_MASKS, regimes=("normal",), min_q_len=2),
    applies=_is_causal,
)
def later_tokens_are_invisible(subject: Subject, case: Case) -> None:
    """An output of a causal layer does not change with later tokens."""
    look = Look(subject, case)
    length = case.q_len
    if length < 2:
        reject("the only token has no future")
    own = 1 + look.choose(length - 1)
    later = torch.arange(length, device=look.hidden.device) >= own
    hidden = torch.where(later[:, None], look.other(look.hidden), look.hidden)
    expected, got = look.run(look.hidden, look.mask), look.run(hidden, look.mask)
    real = look.real(look.hidden, look.mask) & ~later[:, None]
    found = look.differs(got, expected, real)
    if found is not None:
        given = "" if look.mask is None else " and a padding_mask"
        what = f"with other tokens from {own} on{given}, output"
        look.accuse(found, got, expected, what, "the output before they were changed")


@invariant(
    kinds=("layer",),
    cases=lambda subject: layer_cases(
        subject,
        masks=_MASKS,
        regimes=("normal",),
        min_q_len=2,
        dtypes=("float32", "float64"),
    ),
    applies=lambda subject: _is_causal(subject) or has_gradients(subject),
)
def later_tokens_take_no_gradient(subject: Subject, case: Case) -> None:
    """An output of a causal layer has no gradient with respect to a later token."""
    look = Look(subject, case)
    length = case.q_len
    if length < 2:
        reject("the only token has no future")
    own = 1 + look.choose(length - 1)
    hidden = look.hidden.detach().clone().requires_grad_()
    output, _ = look.subject.call(look.module, hidden, look.mask)
    if not output.requires_grad:
        reject("the output has no graph")
    weight = look.other(output.detach())
    weight[:, own:] = 0.0
    if look.mask is not None:
        weight = torch.where(look.mask.unsqueeze(-1), weight, torch.zeros_like(weight))
    (gradient,) = differentiate(output, [hidden], weight)
    if gradient is None:
        return
    late, allowed = gradient[:, own:].abs(), gradient_floor(look.subject, gradient)
    if not float(late.amax()) <= allowed and not sees_the_future(look.subject, case.mask):
        place = [int(i) for i in (~(late <= allowed)).nonzero()[0]]
        place[1] += own
        raise InvariantViolation(
            f"the gradient of the outputs before {own} by the later hidden{place} = "
            f"{gradient[tuple(place)].item():.6g}, but should be 0 (± {allowed:.2g})"
        )


def _has_window(subject: Subject) -> str | None:
    assert isinstance(subject, LayerSubject)
    return None if subject.width is not None else "it declares no window"


@invariant(
    kinds=("layer",),
    cases=lambda subject: layer_cases(subject, regimes=("normal",), min_q_len=2),
    applies=_has_window,
)
def outputs_see_no_more_than_the_window(subject: Subject, case: Case) -> None:
    """An output depends on no tokens outside the declared window, at several lengths."""
    look = Look(subject, case)
    window, width = look.subject.spec.window, look.subject.width
    assert width is not None
    longest = min(look.subject.capacity, TOKENS)
    if longest <= width:
        reject("the window is as wide as the longest sequence")
    # a layer may divide a sequence into windows, so a length may be one more than a multiple
    for length in {min(longest, n) for n in (width + 1, width + 2, 2 * width + 1, 2 * width + 3)}:
        moved = _moved_outputs(look, case.replace(lead=(1,), q_len=length, kv_len=length))
        for query in range(length):
            tokens = moved[:, query].nonzero().flatten().tolist()
            if not tokens:
                continue
            if isinstance(window, tuple):
                first, last = query - window[0], query + window[1]
                if tokens[0] < first or tokens[-1] > last:
                    raise InvariantViolation(
                        f"of {length} tokens, output {query} changes with the tokens {tokens}, but "
                        f"the window {window} reaches from {max(0, first)} to "
                        f"{min(length - 1, last)}"
                    )
            elif tokens[-1] - tokens[0] >= width:
                raise InvariantViolation(
                    f"of {length} tokens, output {query} changes with the tokens {tokens}, which "
                    f"span {tokens[-1] - tokens[0] + 1}, but the window says that it depends on no "
                    f"more than {width} neighbours"
                )


def _moved_outputs(look: Look, case: Case) -> Tensor:
    """``(L, L)``: whether a change of the first index's token moves the second one's output."""
    hidden = look.subject.inputs(case).hidden
    length = case.q_len
    changed = hidden.repeat(length, 1, 1)  # item j of a batch has another token j
    own = torch.arange(length)
    changed[own, own] = look.other(changed[own, own])
    limits = rounding_of(look.subject, look.module, hidden)
    return ((look.run(changed) - look.run(hidden)).double().abs().cpu() > limits).any(-1)


@invariant(
    kinds=("layer",),
    cases=lambda subject: layer_cases(subject, regimes=("normal",), dtypes=("float32",)),
)
def outputs_depend_on_their_token(subject: Subject, case: Case) -> None:
    """Each output changes with its own token, however long the sequence is."""
    look = Look(subject, case)
    length = case.q_len
    items = max(2, length)  # two also where one token is all: a layer may mix its items
    expected = look.run(look.hidden[:1].repeat(items, 1, 1))
    still = torch.ones(length, dtype=torch.bool)
    for _ in range(3):
        changed = look.hidden[:1].repeat(items, 1, 1)
        own = torch.arange(length)
        changed[own, own] = look.other(changed[own, own])
        got = look.run(changed)
        still &= (got[own, own] == expected[0]).all(-1).cpu()
    if bool(still.any()):
        token = int(still.nonzero()[0])
        others = look.other(look.hidden[:1].repeat(items, 1, 1))
        others[:, token] = look.hidden[:1, token]
        mixed = bool((look.run(others)[0, token] != expected[0, token]).any())
        beside = "; it does depend on the other tokens" if mixed else ""
        raise InvariantViolation(
            f"of {length} tokens, output {token} = {expected[0, token, 0].item():.6g}, ... is the "
            f"same for four values of token {token}, but should depend on its own token{beside}",
            cause="layer_tokens_mixed" if mixed else None,
        )


def _promises_no_move(subject: Subject) -> str | None:
    assert isinstance(subject, LayerSubject)
    positions, window = subject.conventions.positions, subject.width
    if positions == "absolute":
        return "positions are absolute (convention positions)"
    if _reorders(subject):
        return None
    if window is None or not subject.spec.causal:
        return "only beyond the window of a causal layer does a shift show by itself"
    return None if window < subject.capacity else f"its window of {window} holds every case"


def _moving_cases(subject: Subject) -> SearchStrategy[Case]:
    assert isinstance(subject, LayerSubject)
    least = 1 + (subject.width or 1)
    longest = max(17, 2 * least + 1)
    return layer_cases(subject, regimes=("normal",), min_q_len=least, max_len=longest)


@invariant(kinds=("layer",), cases=_moving_cases, applies=_promises_no_move)
def moved_tokens_keep_their_outputs(subject: Subject, case: Case) -> None:
    """Where a layer's positions are none, reordering the tokens reorders the outputs; where they
    are relative, outputs whose window does not reach the first tokens do not change without these.
    """
    look = Look(subject, case)
    whole, window = look.run(look.hidden), look.subject.width

    def limits() -> Tensor:
        return rounding_of(look.subject, look.module, look.hidden)

    if _reorders(look.subject):
        order = torch.randperm(case.q_len, generator=look.generator)
        got, expected = look.run(look.hidden[:, order]), whole[:, order]
        told = f"with tokens in the order {order.tolist()}, output"
        found = look.differs(got, expected, look.real(got), lambda: limits()[:, order])
    else:
        assert window is not None
        if sees_beyond_window(look.subject):
            reject("it sees tokens beyond its window, of which another invariant tells")
        if case.q_len <= window:
            reject("no output is beyond the window of the first token")
        cut = 1 + look.choose(case.q_len - window)
        rest = cut + window - 1
        got, expected = look.run(look.hidden[:, cut:])[:, window - 1 :], whole[:, rest:]
        told = f"without the first {cut} tokens, which no window holds, output"
        found = look.differs(got, expected, look.real(got), lambda: limits()[:, rest:])
    if found is not None:
        look.accuse(found, got, expected, told, "the same token in the whole sequence")


def _reorders(subject: LayerSubject) -> bool:
    """Whether reordering all tokens should only reorder the outputs."""
    free = subject.conventions.positions == "none" and subject.width is None
    return free and not subject.spec.causal


attnbench_invariants = hook_of(__name__)
