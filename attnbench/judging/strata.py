"""What the judge's own calls are drawn from: a stratum for each thing that may go wrong alone.

A judgement has calls of every stratum, so that what a kernel does wrong in one of them never
depends on chance; sizes within a stratum, values and order are drawn.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.judging.fresh_calls import Stream
from attnbench.specs.conventions import Conventions
from attnbench.subject.tensors import make_inputs

_SIZES = (8, 16, 24, 32, 40, 64, 80, 96, 128)
_LARGE = (160, 192, 256, 320, 512)
_PAIRS = 2**20
"""Most pairs of a query and a key in a call, unless one head has more."""
_SHORT, _MIDDLE, _LONG = (2, 1024), (129, 1024), (1100, 4096)
_FEW = (2, 48)


@dataclass(frozen=True)
class Stratum:
    """Ranges, each drawn from log-uniformly.

    Args:
        name: what is special about it.
        queries, keys: lengths; without ``queries``, there are as many as keys.
        batch, heads: leading sizes.
        sizes: feature sizes.
        mask: a kind of mask of a case, or of :func:`_mask`.
        scale: of the scores, instead of ``1/√E``.
        layout: ``"packed"``, ``"misaligned"`` or ``"plain"``.
        alone: whether one tensor is query, key and value.
        halves: whether it is called in a half type, too.
    """

    name: str
    queries: tuple[int, int] | None = _SHORT
    keys: tuple[int, int] = _SHORT
    batch: tuple[int, int] = (1, 1)
    heads: tuple[int, int] = (1, 4)
    sizes: tuple[int, ...] = _SIZES
    mask: str = "none"
    scale: tuple[float, float] | None = None
    layout: str = "plain"
    alone: bool = False
    halves: bool = False


STRATA = (
    Stratum("any lengths", halves=True),
    Stratum("more than 128 keys", _SHORT, _MIDDLE, halves=True),
    Stratum("L = S", None, halves=True),
    Stratum("L = 1", (1, 1), halves=True),
    Stratum("one tensor is query, key and value", None, alone=True, halves=True),
    Stratum("causal, L = S", None, mask="causal", halves=True),
    Stratum("causal, L > S", (49, 512), _FEW, mask="causal"),
    Stratum("causal, L < S", _FEW, (49, 512), mask="causal"),
    Stratum("boolean mask (B, H, L, S)", _FEW, _MIDDLE, mask="boolean", halves=True),
    Stratum("boolean mask (B, 1, 1, S)", None, mask="key_padding", halves=True),
    Stratum("mask (L, S)", mask="two dimensions"),
    Stratum("mask (H, L, S)", mask="three dimensions"),
    Stratum("mask with a stride of 0", mask="expanded"),
    Stratum("floating mask", _FEW, _SHORT, mask="floating", halves=True),
    Stratum("floating mask, rows far below 0", (6, 48), _FEW, mask="lowered"),
    Stratum("scale below 0.04", _FEW, _SHORT, scale=(0.01, 0.04)),
    Stratum("scale from 0.04 to 2", scale=(0.04, 2.0), halves=True),
    Stratum("scale above 2", _FEW, _SHORT, scale=(2.0, 20.0)),
    Stratum("negative scale", _FEW, _SHORT, scale=(-2.0, -0.1)),
    Stratum("scale and a mask", _FEW, _SHORT, mask="floating", scale=(0.01, 20.0)),
    Stratum("causal with a scale", None, mask="causal", scale=(0.01, 20.0)),
    Stratum("more than 1100 queries", _LONG, _FEW, heads=(1, 1), sizes=(8, 16, 32)),
    Stratum("more than 1100 keys", _FEW, _LONG, heads=(1, 1), sizes=(8, 16, 32)),
    Stratum("more than 128 features", _FEW, _FEW, sizes=_LARGE, halves=True),
    Stratum("8 to 40 heads", _FEW, _FEW, heads=(8, 40)),
    Stratum("32 heads", _FEW, _FEW, heads=(32, 32)),
    Stratum("B > 1, H > 1, L and S of 128 and more", (128, 256), (128, 256), (2, 3), (2, 4)),
    Stratum("views of one packed tensor", None, layout="packed"),
    Stratum("pointers that are not aligned", layout="misaligned"),
)


def streams_of(
    names: Mapping[str, str],
    style: str,
    conventions: Conventions,
    chance: random.Random,
    generator: torch.Generator,
) -> Iterator[tuple[str, Stream | None]]:
    """The name and a stream of each stratum; ``None`` where the callee does not take such calls.

    Args:
        names: what the callee takes, to its own name of it.
        style: style of call.
        conventions: which it follows.
        chance, generator: draw sizes, and values.
    """
    narrow = chance.sample(("bfloat16", "float16"), 2)
    for stratum in STRATA:
        narrow = narrow[::-1]
        for dtype in ("float32", narrow[0])[: 1 + stratum.halves]:
            case = _case(stratum, dtype, chance)
            keywords = _keywords(stratum, case, names, conventions, chance, generator)
            if keywords is None:
                yield stratum.name, None
                continue
            yield (
                stratum.name,
                Stream(
                    case,
                    keywords,
                    style,
                    generator,
                    causal=conventions.causal,
                    layout=stratum.layout,
                    alone=stratum.alone,
                    name=stratum.name,
                ),
            )


def _drawn(chance: random.Random, least: float, most: float) -> float:
    """A number of a range, by its logarithm; both ends have the same sign."""
    sign = math.copysign(1.0, least)
    return sign * math.exp(chance.uniform(math.log(abs(least)), math.log(abs(most))))


def _case(stratum: Stratum, dtype: str, chance: random.Random) -> Case:
    """A case of sizes that nobody could know; many keys are no multiple of a power of two."""

    def count(ends: tuple[int, int]) -> int:
        return round(_drawn(chance, *ends))

    kv_len = count(stratum.keys)
    kv_len += 1 if kv_len % 8 == 0 and stratum.keys == _MIDDLE else 0
    q_len = kv_len if stratum.queries is None else count(stratum.queries)
    batch, heads = count(stratum.batch), count(stratum.heads)
    if stratum.batch == (1, 1):
        heads = max(1, min(heads, _PAIRS // (q_len * kv_len)))
    size, seed = chance.choice(stratum.sizes), chance.getrandbits(31)
    mask = stratum.mask if stratum.mask in ("causal", "boolean", "key_padding") else "none"
    return Case((batch, heads), q_len, kv_len, size, size, size, dtype, mask=mask, seed=seed)


def _keywords(
    stratum: Stratum,
    case: Case,
    names: Mapping[str, str],
    conventions: Conventions,
    chance: random.Random,
    generator: torch.Generator,
) -> dict[str, Any] | None:
    given: dict[str, Any] = {}
    if stratum.mask == "causal":
        ends = {"top_left": True, "bottom_right": case.q_len <= case.kv_len}
        aligned = case.q_len == case.kv_len or ends.get(conventions.causal, False)
        if "is_causal" not in names or not aligned:
            return None
        given["is_causal"] = True
    elif stratum.mask != "none":
        mask = _mask(stratum.mask, case, generator)
        form = "boolean" if mask.dtype == torch.bool else "floating"
        if "attn_mask" not in names or form not in conventions.masks:
            return None
        given["attn_mask"] = mask
    if stratum.scale is not None:
        if "scale" not in names:
            return None
        given["scale"] = _drawn(chance, *stratum.scale)
        if given["scale"] < 0 and not _torch_takes(given["scale"], case):
            return None
    return given


def _torch_takes(scale: float, case: Case) -> bool:
    """Whether torch's fused attention gives numbers for a negative scale, as the formula does."""
    inputs = make_inputs(case)
    tensors = (inputs.query, inputs.key, inputs.value)
    found = torch.nn.functional.scaled_dot_product_attention(*tensors, scale=scale)
    return bool(found.isfinite().all())


def _mask(kind: str, case: Case, generator: torch.Generator) -> Tensor:
    """A mask in which every query has a key."""
    lead, pair = case.lead, (case.q_len, case.kv_len)
    if kind in ("boolean", "key_padding"):
        mask = make_inputs(case).attn_mask
        assert mask is not None
        return mask
    if kind in ("floating", "lowered"):
        dtype = getattr(torch, case.dtype)
        bias = torch.randn(*lead, *pair, generator=generator)
        if kind == "floating":
            return bias.masked_fill(~_open(generator, *lead, *pair), -math.inf).to(dtype)
        return (bias + _floors(generator, case.q_len)).clamp_min(torch.finfo(dtype).min)
    shapes = {"two dimensions": pair, "three dimensions": (lead[1], *pair)}
    if kind in shapes:
        return _open(generator, *shapes[kind])
    return _open(generator, lead[0], 1, 1, case.kv_len).expand(*lead, *pair)


def _open(generator: torch.Generator, *shape: int) -> Tensor:
    """A boolean mask that leaves some keys, at least one a query."""
    allowed = torch.rand(*shape, generator=generator) < 0.6
    keep = torch.randint(shape[-1], (*shape[:-1], 1), generator=generator)
    return allowed.scatter(-1, keep, True)


def _floors(generator: torch.Generator, rows: int) -> Tensor:
    """``(rows, 1)``: what whole rows of padding get: -30000 to -300000, or the least number."""
    far = -3e4 * 10 ** torch.rand(rows, 1, generator=generator)
    kinds = (torch.arange(rows) + int(torch.randint(3, (), generator=generator))) % 3
    least = torch.full_like(far, torch.finfo(torch.float32).min)
    places = kinds.unsqueeze(-1)
    return torch.where(places == 0, 0.0, torch.where(places == 1, far, least))
