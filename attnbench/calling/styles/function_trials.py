"""What a few calls of a function of query, key and value tell, where its signature does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnbench.calling.results import is_plain, output_and_more
from attnbench.calling.styles.callee import Maker
from attnbench.calling.styles.parameters import Keywords
from attnbench.errors import headline

_HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def sampled(
    make: Maker, heads: int = 2, query: Tensor | None = None, grad: bool = False, **given: Any
) -> Any:
    """The result of a small call with 5 keys and 3 queries; ``None`` if it gives no output.

    It is in float32, or else in the first half type in which it does not raise.
    """
    query = torch.zeros(1, heads, 3, 4) if query is None else query
    key = given.pop("key", torch.zeros(1, 2, 5, 4))
    for dtype in (torch.float32, *_HALF.values()):
        q, k = query.to(dtype).requires_grad_(grad), key.to(dtype)
        others = {name: _in_dtype(value, dtype) for name, value in given.items()}
        try:
            with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(grad):
                found = make(4, 4, 4).train()(q, k, k, **others)
        except (Exception, SystemExit):  # noqa: S112  # it is the checks that tell what it raises
            continue
        return found if is_plain(output_and_more(found)[0]) else None
    return None


def _output(make: Maker, **given: Any) -> Any:
    """The output of such a call without what comes with it; ``None`` if it gives none."""
    found = sampled(make, **given)
    return None if found is None else output_and_more(found)[0]


def _in_dtype(value: Any, dtype: torch.dtype) -> Any:
    is_floating = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(dtype) if is_floating else value


def half_types_only(make: Maker) -> tuple[tuple[str, ...], str] | None:
    """The half types that it takes, and what it raises in float32; ``None`` if it takes that."""

    def raised(dtype: torch.dtype) -> str | None:
        query, key = (torch.zeros(1, 2, length, 4, dtype=dtype) for length in (3, 5))
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                make(4, 4, 4)(query, key, key)
        except (Exception, SystemExit) as error:
            return headline(error)[:120]
        return None

    error = raised(torch.float32)
    if error is None:
        return None
    taken = tuple(name for name, dtype in _HALF.items() if raised(dtype) is None)
    return (taken, error) if taken else None


def second_output(make: Maker) -> str | None:
    """What comes with the output: ``weights``, a log-sum, ``unmoved``, ``more``, or ``None``.

    A log-sum is not 0 where 5 scores are, as the largest is; and a vector that is added to all
    keys, which leaves the weights and what is made of them alone, changes it.
    """
    found = sampled(make, return_weights=True)
    if found is None or found[1] is None:
        return None
    kinds = {(1, 2, 3, 5): "weights", (1, 2, 3): "lse", (1, 3, 2): "lse_turned"}
    kind = kinds.get(tuple(found[1].shape), "more") if is_plain(found[1]) else "more"
    if not kind.startswith("lse"):
        return kind
    query = torch.linspace(-1.0, 1.0, 24).reshape(1, 2, 3, 4)
    moved = sampled(make, query=query, key=torch.ones(1, 2, 5, 4), return_weights=True)
    there = sampled(make, query=query, return_weights=True)
    if moved is None or there is None or not bool(found[1].any()):
        return "more"
    return "unmoved" if torch.allclose(moved[1], there[1].to(moved[1]), atol=1e-4) else kind


def takes_full_masks_only(make: Maker) -> bool:
    """Whether it raises for a mask ``(L, S)``, and not for one ``(B, H, L, S)``."""
    mask = torch.ones(1, 2, 3, 5, dtype=torch.bool)
    return sampled(make, attn_mask=mask[0, 0]) is None and sampled(make, attn_mask=mask) is not None


def is_causal_square(make: Maker) -> bool:
    """Whether it takes as many queries as keys only, and no output changes with later keys."""
    key = torch.linspace(-1.0, 1.0, 40).reshape(1, 2, 5, 4)
    other = torch.cat([key[..., :2, :], -2 * key[..., 2:, :]], -2)
    calls = ((key[..., :3, :], key), (key, key), (key, other))
    few, one, two = (_output(make, query=query, key=keys) for query, keys in calls)
    if one is None or two is None or not one.shape == two.shape == key.shape:
        return False
    if few is not None and few.shape == (1, 2, 3, 4):
        return False
    changed = (one - two).abs().amax((0, 1, 3)) > 1e-6
    return bool((changed == torch.tensor([False, False, True, True, True])).all())


def takes_boolean_only(make: Maker) -> bool:
    """Whether it takes boolean masks, and raises for floating ones or hides keys where they are 0.

    A function may take floating ones only without gradients, where it makes another call.
    The masks show the first of 5 keys, so that its value is the output, unless 1 is added to its
    score.
    """
    key = torch.linspace(0.0, 1.0, 40).reshape(1, 2, 5, 4)
    mask, query, shown = torch.eye(1, 5).expand(3, 5), key[..., :3, :], key[..., [0, 0, 0], :]
    boolean = _output(make, query=query, key=key, attn_mask=mask.bool())
    floating = _output(make, query=query, key=key, attn_mask=mask)
    if sampled(make, query=query.clone(), key=key, grad=True, attn_mask=mask) is None:
        return boolean is not None
    if boolean is None or floating is None or not boolean.shape == floating.shape == shown.shape:
        return boolean is not None and floating is None
    return all(torch.allclose(found.to(shown), shown, atol=1e-4) for found in (boolean, floating))


def lets_nan_through(make: Maker) -> bool:
    """Whether NaN in keys and values that a boolean mask hides reaches the output."""
    key = torch.linspace(0.0, 1.0, 40).reshape(1, 2, 5, 4)
    key[..., 1:, :] = torch.nan
    shown = torch.eye(1, 5, dtype=torch.bool).expand(3, 5)
    found = _output(make, query=torch.ones(1, 2, 3, 4), key=key, attn_mask=shown)
    return isinstance(found, Tensor) and bool(found.isnan().any())


def takes_one_mask(function: Callable[..., Any], keywords: Keywords) -> bool:
    """Whether it raises if given both a mask and ``is_causal``, as torch's function does."""
    if "attn_mask" not in keywords or "is_causal" not in keywords:
        return False
    mask, tensor = torch.ones(2, 2, dtype=torch.bool), torch.zeros(1, 1, 2, 2)
    value = torch.zeros(1, 1, 2, 3)  # of a size for which torch raises
    both = keywords.spelt({"attn_mask": mask, "is_causal": True})
    try:
        function(tensor, tensor, value, **both)
    except (Exception, SystemExit):  # whatever it raises, it does not take both
        return True
    return False


def takes_groups(make: Maker) -> bool:
    """Whether a call with two key heads for four query heads succeeds; one broadcasts anywhere."""
    found = sampled(make, heads=4, enable_gqa=True)
    return isinstance(found, Tensor) and tuple(found.shape) == (1, 4, 3, 4)


def mask_value(make: Maker) -> float | None:
    """The finite score that a boolean mask gives a key; ``None`` where it hides all."""
    one = torch.ones(1, 2, 5, 4)
    hidden, mask = one.clone(), (torch.arange(5) < 1).expand(3, 5)
    hidden[..., :1, :] = 0.0

    def output(query: Tensor, key: Tensor, value: Tensor) -> Tensor | None:
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                found = output_and_more(make(4, 4, 4).eval()(query, key, value, attn_mask=mask))[0]
        except (Exception, SystemExit):  # it is the checks that tell what it raises
            return None
        return found if is_plain(found) else None

    def share(score: float) -> float:
        size = (score / 2) ** 0.5
        key, query = one * size, one[..., :3, :] * size
        values = (one * 0, one, hidden)
        return share_of_last([output(query, k, v) for k in (key, -key) for v in values])

    found = least_size(share)
    return None if found is None else -float(f"{found:.2g}")


def gives_mean(make: Maker) -> bool:
    """Whether a row of a boolean mask without keys gives the mean of all values."""
    key = torch.linspace(-1.0, 1.0, 40).reshape(1, 2, 5, 4)
    mask = torch.zeros(3, 5, dtype=torch.bool)
    found = _output(make, query=torch.zeros(1, 2, 3, 4), key=key, attn_mask=mask)
    mean = key.mean(-2, keepdim=True).expand(1, 2, 3, 4)
    return isinstance(found, Tensor) and torch.allclose(found.to(mean), mean, atol=1e-4)


def least_size(weight: Callable[[float], float]) -> float | None:
    """The size from which the weight of hidden keys is over a half; ``None`` for any and none."""
    lowest, highest = 6, 109
    if weight(2.0**lowest) > 0.5 or weight(2.0**highest) <= 0.5:
        return None
    while highest - lowest > 1:  # from some size on, every weight is over a half
        power = (lowest + highest) // 2
        lowest, highest = (lowest, power) if weight(2.0**power) > 0.5 else (power, highest)
    low, high = 2.0**lowest, 2.0**highest
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (low, middle) if weight(middle) > 0.5 else (middle, high)
    near = [n for n in (65504.0, float(f"{high:.2g}")) if abs(high - n) < 2e-3 * n]
    return near[0] if near else high


def share_of_last(outputs: Sequence[Tensor | None]) -> float:
    """The largest share that hidden keys have, of outputs in threes; 0 where there is none.

    Of three outputs the first is of values of 0, the second of 1, and the third of 1 for hidden
    keys alone: projections and biases may stand between the weights and the output.
    """
    shares = [0.0]
    for i in range(0, len(outputs), 3):
        none, every, hidden = outputs[i : i + 3]
        if none is None or every is None or hidden is None:
            return 0.0
        whole, own = (float((t - none).nan_to_num().abs().amax()) for t in (every, hidden))
        shares.append(own / whole if whole else 0.0)
    return max(shares)
