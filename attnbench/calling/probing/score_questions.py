"""Questions about scores: their scale, grouped heads, windows and softcap."""

from __future__ import annotations

import torch

from attnbench.calling.probing.probed_calls import ALLOWED, Answer, Calls, same

_WINDOWS = ("window_size", "window", "sliding_window")


def scale_of_scores(calls: Calls) -> Answer:
    """The factor of q·k, and how it depends on E."""
    found = (calls.slope(4), calls.slope(16))
    if "scale" in calls.usual:
        return calls.not_taken("the caller has to give it")
    if found[0] is None or found[1] is None:
        return calls.ambiguous("the scores that the weights show are no multiple of q·k")
    for value, power in (("1/sqrt(E)", 0.5), ("1", 0.0), ("1/E", 1.0)):
        if all(abs(f * e**power - 1) < 1e-2 for f, e in zip(found, (4, 16), strict=True)):
            return calls.inferred(value, "the ratios of weights at E=4 and E=16")
    return calls.inferred(f"{found[0]:.3g} at E=4, {found[1]:.3g} at E=16", "the ratios of weights")


def scale_argument(calls: Calls) -> Answer:
    """Whether an argument replaces the scale."""
    if "scale" not in calls.named:
        return calls.not_taken("no argument is a scale")
    found = calls.slope(4, scale=0.3)
    if found is not None and abs(found - 0.3) < 3e-3:
        return calls.inferred("replaces the scale", "scale=0.3 gives 0.3·q·k")
    return calls.ambiguous(f"scale=0.3 gives {found if found is None else f'{found:.3g}'}·q·k")


def grouped_heads(calls: Calls) -> Answer:
    """Whether neighbouring query heads share a key head, or every second one."""
    query, key, value = calls.tensors(heads=2)
    given = {"enable_gqa": True} if "enable_gqa" in calls.named else {}
    before = calls.output([query, key, value], **given)
    if before is None or calls.layout in ("(B, L, E)", "(L, B, E)"):
        return calls.not_taken("two key heads for four query heads are refused")
    value[:, 0] += 2
    after = calls.output([query, key, value], **given)
    assert after is not None
    changed = ((after - before).abs() > 1e-6).flatten(2).any(-1)[0].nonzero().flatten().tolist()
    value_of = {(0, 1): "neighbours", (0, 2): "stride"}.get(tuple(changed))
    if value_of is None:
        return calls.ambiguous(f"query heads {changed} read key head 0 of 2")
    return calls.inferred(value_of, f"query heads {changed} read key head 0 of 2")


def window_edges(calls: Calls) -> Answer:
    """Which keys a window leaves."""
    own = next((one for one in _WINDOWS if one in calls.names), None)
    if own is None:
        return calls.not_taken("no argument is a window")
    ahead = torch.arange(6) - torch.arange(6)[:, None]
    pair = {
        "(left, right), own key besides": (ahead >= -2) & (ahead <= 1),
        "(left, right), own key counted": (ahead > -2) & (ahead < 1),
    }
    one = {
        "one number of keys, own counted, causal": (ahead > -2) & (ahead <= 0),
        "one number of keys before the own, causal": (ahead >= -2) & (ahead <= 0),
        "one distance, inclusive": ahead.abs() <= 2,
        "one distance, exclusive": ahead.abs() < 2,
    }
    causal = {"is_causal": True} if "is_causal" in calls.named else {}
    for argument, meanings in (((2, 1), pair), (2, one)):
        found = calls.reach(6, 6, **{own: argument})
        both = calls.reach(6, 6, **{own: argument}, **causal) if causal else None
        for value, expected in meanings.items():
            if same(found, expected):
                if argument == (2, 1):
                    value += _rest_of_window(calls, own)
                return calls.inferred(value, f"L=S=6: the keys that {own}={argument} leaves")
        if same(found, torch.ones_like(ahead, dtype=torch.bool)) and both is not None:
            fit = [v for v, e in meanings.items() if same(both, e & (ahead <= 0))]
            return calls.ambiguous(f"only with {causal}: {' or '.join(fit) or 'neither'}")
        if found is not None:
            return calls.ambiguous(f"what {own}={argument} leaves is no known meaning")
    return calls.ambiguous(f"neither {own}=(2, 1) nor {own}=2 is taken")


def _rest_of_window(calls: Calls, own: str) -> str:
    """What else is unlike flash-attention's window: of 0 keys besides the own, and -1 for all."""
    every = torch.ones(4, 4, dtype=torch.bool)
    for limits, left in (((-1, 0), every.tril()), ((0, -1), every.triu())):
        if not same(calls.reach(4, 4, **{own: limits}), left):
            return ", -1 is a limit"
    place = torch.arange(5) - torch.arange(3)[:, None]
    if same(calls.reach(3, 5, **{own: (-1, 0)}), place <= 2):
        return ""
    return ", from the top left"


def softcap_order(calls: Calls) -> Answer:
    """Whether scores are capped before or after the mask."""
    if "softcap" not in calls.named:
        return calls.not_taken("no argument caps the scores")
    if calls.hide is not None:
        found, base = calls.reach(**calls.hide(ALLOWED), softcap=1.0), ALLOWED
    elif "is_causal" in calls.named:
        base = torch.ones(4, 4, dtype=torch.bool).tril()
        found = calls.reach(4, 4, is_causal=True, softcap=1.0)
    else:
        return calls.ambiguous("no mask is known to hide")
    if same(found, base):
        return calls.inferred("before the mask", "hidden keys stay hidden under softcap=1")
    if found is not None and bool(found.all()):
        return calls.inferred("after the mask", "softcap=1 brings hidden keys back")
    return calls.ambiguous("what a mask hides under softcap=1 is unclear")
