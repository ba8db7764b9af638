"""Invariants on the tokens that an output may depend on: not other items, later or far ones."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench import Case, InvariantViolation
from attnbench.testing import LayerCase, LayerSubject, change_by_length, reject
from attnbench_plugins.properties import layer_invariant
from attnbench_plugins.properties.caches.stage import TOKENS
from attnbench_plugins.properties.layer_faults import no_gradient

_MASKS = ("none", "padding", "left_padding")


@layer_invariant()
def items_are_independent(layer: LayerCase) -> None:
    """What an item gets depends neither on the order of the batch nor on the other items."""
    batch = layer.case.lead[0]
    if batch < 2:
        reject("the only item is always alone")
    expected = layer.run(layer.hidden)
    order = torch.randperm(batch, generator=layer.generator)
    item = layer.choose(batch)
    mates = layer.other(layer.hidden)
    mates[item] = layer.hidden[item]
    only = slice(item, item + 1)
    alike = layer.run(layer.hidden[only].repeat(batch, 1, 1))
    for got, want, change in (
        (layer.run(mates)[only], expected[only], f"item {item} among others"),
        (alike, alike[:1].expand_as(alike), f"{batch} times item {item}"),
        (alike[:1], expected[only], f"item {item} among its equals"),
        (layer.run(layer.hidden[order]), expected[order], f"items in order {order.tolist()}"),
        (layer.run(layer.hidden[only]), expected[only], f"item {item} alone"),
    ):

        def allowed(count: int = got.shape[0]) -> Tensor:
            return layer.rounding.amax(0, keepdim=True).expand(count, -1, -1)

        other = f"the same item in its batch of {batch}"
        what = f"for {change}, output"
        layer.expect(got, want, layer.real(got), what, other, allowed=allowed)


def _is_causal(subject: LayerSubject) -> str | None:
    return None if subject.spec.causal else "it is not causal"


@layer_invariant(masks=_MASKS, regimes=("normal",), min_q_len=2, applies=_is_causal)
def later_tokens_are_invisible(layer: LayerCase) -> None:
    """An output of a causal layer does not change with later tokens, nor, where no cache shows it,
    with how many there are, unless a scale chosen by the length may do so.
    """
    length = layer.case.q_len
    if length < 2:
        reject("the only token has no future")
    own = 1 + layer.choose(length - 1)
    later = torch.arange(length, device=layer.hidden.device) >= own
    hidden = torch.where(later[:, None], layer.other(layer.hidden), layer.hidden)
    expected, got = layer.run(layer.hidden, layer.mask), layer.run(hidden, layer.mask)
    real = layer.real(layer.hidden, layer.mask) & ~later[:, None]
    given = "" if layer.mask is None else " and a padding_mask"
    what = f"with other tokens from {own} on{given}, output"
    other = "the output before they were changed"
    layer.expect(got, expected, real, what, other)
    no_gradient(layer, real, later[:, None], f"the outputs before {own} by the later hidden")
    spec, changes = layer.subject.spec, change_by_length(layer.subject)
    if layer.subject.conventions.positions == "relative" and spec.cache is None and not spec.grid:
        changes = "moved"
    if layer.mask is None and changes == "moved":
        layer.expect(
            layer.run(layer.hidden[:, :own]),
            expected[:, :own],
            real[:, :own],
            f"without the tokens from {own} on, output",
            "the output with them",
            allowed=lambda: layer.rounding[:, :own],
        )


def _counts_positions(subject: LayerSubject) -> str | None:
    spec = subject.spec
    if spec.grid or spec.causal or subject.width is not None:
        return "it is causal, takes a grid, or declares a window"
    positions = subject.conventions.positions
    return None if positions == "none" else f"positions are {positions} (convention positions)"


@layer_invariant(regimes=("normal",), min_q_len=2, applies=_counts_positions)
def tokens_permute_freely(layer: LayerCase) -> None:
    """Where positions do not count, tokens in another order give their outputs in that order."""
    order = torch.randperm(layer.case.q_len, generator=layer.generator)
    got, expected = layer.run(layer.hidden[:, order]), layer.run(layer.hidden)[:, order]
    layer.expect(
        got,
        expected,
        layer.real(got),
        f"for tokens in the order {order.tolist()}, output",
        "the output of the same token in its own order",
        allowed=lambda: layer.rounding[:, order],
    )


@layer_invariant(
    regimes=("normal",),
    min_q_len=2,
    applies=lambda subject: None if subject.width is not None else "it declares no window",
)
def outputs_see_no_more_than_the_window(layer: LayerCase) -> None:
    """An output depends on no tokens outside the declared window, at several lengths."""
    window, width = layer.subject.spec.window, layer.subject.width
    assert width is not None
    longest = min(layer.subject.capacity, TOKENS)
    if longest <= width:
        reject("the window is as wide as the longest sequence")
    # a layer may divide a sequence into windows, so a length may be one more than a multiple
    for length in {min(longest, n) for n in (width + 1, width + 2, 2 * width + 1, 2 * width + 3)}:
        moved = _moved_outputs(layer, layer.case.replace(lead=(1,), q_len=length, kv_len=length))
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


def _moved_outputs(layer: LayerCase, case: Case) -> Tensor:
    """``(L, L)``: whether a change of the first index's token moves the second one's output."""
    hidden = layer.subject.inputs(case).hidden
    own = torch.arange(case.q_len)
    changed = hidden.repeat(case.q_len, 1, 1)  # item j of a batch has another token j
    changed[own, own] = layer.other(changed[own, own])
    limits = layer.limits(hidden)
    return ((layer.run(changed) - layer.run(hidden)).double().abs().cpu() > limits).any(-1)


@layer_invariant(regimes=("normal",), dtypes=("float32",))
def outputs_depend_on_their_token(layer: LayerCase) -> None:
    """Each output changes with its own token, however long the sequence is, and where a cache keeps
    earlier tokens, some output changes with the first.
    """
    length = layer.case.q_len
    _stay_in_place(layer)
    _remember_the_first(layer)
    items = max(2, length)  # two also where one token is all: a layer may mix its items
    expected = layer.run(layer.hidden[:1].repeat(items, 1, 1))
    still, own = torch.ones(length, dtype=torch.bool), torch.arange(length)
    for _ in range(3):
        changed = layer.hidden[:1].repeat(items, 1, 1)
        changed[own, own] = layer.other(changed[own, own])
        got = layer.run(changed)
        still &= (got[own, own] == expected[0]).all(-1).cpu()
    if bool(still.any()):
        if layer.hidden.shape[-1] == 1 and not bool((got != expected).any()):
            reject("behind a norm of one feature no output depends on any token")
        token = int(still.nonzero()[0])
        others = layer.other(layer.hidden[:1].repeat(items, 1, 1))
        others[:, token] = layer.hidden[:1, token]
        mixed = bool((layer.run(others)[0, token] != expected[0, token]).any())
        if mixed and layer.subject.spec.causal and still.nonzero().tolist() == [[1]]:
            return  # a token may see itself only where it is alone, as in Reformer
        beside = "; it does depend on the other tokens" * mixed
        raise InvariantViolation(
            f"of {length} tokens, output {token} = {expected[0, token, 0].item():.6g}, ... is the "
            f"same for four values of token {token}, but should depend on its own token{beside}"
        )


def _stay_in_place(layer: LayerCase) -> None:
    """Raise if exchanging the first two tokens only exchanges the outputs of two other ones."""
    one = layer.hidden[:1]
    if layer.subject.spec.causal or layer.case.q_len < 3:
        return
    exchanged = torch.cat([one[:, :2].flip(1), one[:, 2:]], 1)
    before, after = layer.run(one)[0], layer.run(exchanged)[0]
    differs = (after.double() - before.double()).abs().cpu() > layer.limits(one)[0]
    moved = differs.any(-1).nonzero().flatten().tolist()
    if len(moved) != 2 or 0 in moved or 1 in moved:
        return
    if torch.allclose(after[moved], before[moved[::-1]]):
        raise InvariantViolation(
            f"of {layer.case.q_len} tokens, exchanging tokens 0 and 1 exchanges outputs {moved[0]} "
            f"and {moved[1]} and leaves all others: output {moved[0]} is that of token 0"
        )


def _remember_the_first(layer: LayerCase) -> None:
    """Raise if, in a layer with a cache, no output but the first changes with the first token."""
    spec, length = layer.subject.spec, layer.case.q_len
    apart = {"source", "extras"} & {*spec.accepts}  # which may keep tokens from each other
    if spec.cache is None or apart or length < 4 or layer.subject.width == 1:
        return
    if layer.hidden.shape[-1] < 4:
        return  # behind a norm of so few features hardly anything depends on a token
    longest = layer.other(layer.hidden[:, :1].expand(-1, layer.subject.capacity, -1))
    for hidden in (layer.hidden, longest, longest.flip(1)):  # what skips tokens sees some of many
        changed = hidden.clone()
        changed[:, 0] = layer.other(changed[:, 0])
        if not torch.equal(layer.run(changed)[:, 1:], layer.run(hidden)[:, 1:]):
            return
    raise InvariantViolation(
        f"of {length} tokens, no output but the first changes with token 0, though a cache keeps "
        "earlier tokens for later ones"
    )
