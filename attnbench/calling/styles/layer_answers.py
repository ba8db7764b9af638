"""What a few calls of a module on hidden states tell, where its signature leaves it open."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling.caches import Held, held_cache, tuples_like
from attnbench.calling.keywords import keywords_of
from attnbench.calling.styles.argument_names import FORMS, LENGTHS, OFFSETS, SLOTS
from attnbench.errors import UsageError, headline
from attnbench.specs import DTYPES, CacheSpec, LayerSpec

_ROWS, _FIRST, _LENGTH = 3, 7, 9


def tried(spec: LayerSpec) -> tuple[Any, Tensor]:
    """A module of a small size and tokens ``(3, 9, E)`` for it; ``None`` if it cannot be made."""
    try:
        size = 8 if spec.sizes is None else spec.sizes(8)
        dtype = "float32" if spec.dtypes is None or "float32" in spec.dtypes else spec.dtypes[0]
        with torch.random.fork_rng(devices=[]):
            module = spec.make(size).to(getattr(torch, dtype)).eval()
    except UsageError:
        raise
    except Exception:
        return None, torch.empty(0)
    generator = torch.Generator().manual_seed(0)
    return module, torch.randn(_ROWS, _LENGTH, size, generator=generator).to(getattr(torch, dtype))


def refuse_masks(layer: str, names: Sequence[str]) -> None:
    """Raise where an argument of a layer may be a mask in a form that nothing tells."""
    for name in names:
        if "mask" in name or name in LENGTHS:
            raise UsageError(
                f"{layer}: forward takes {name!r}, which may say what is padding: give "
                f"mask={name!r} with form= one of {', '.join(FORMS)}, or mask=None to leave "
                "padding untried."
            )


def refuse_positions(spec: LayerSpec, names: Sequence[str], given: Collection[str | None]) -> None:
    """Raise where an argument of a layer may be positions, and nothing says what it is given."""
    for name in names:
        usual = name in (*OFFSETS, *SLOTS)
        if name in given:
            continue
        if spec.cache is None and usual:
            raise UsageError(
                f"{spec.name}: forward takes {name!r}, where tokens after cached ones begin, and "
                "no argument for a cache: give kept='module', where the module holds it; "
                "cache_name=, the argument that takes it; or cache_name=None, to leave it untried."
            )
        alike = any(part in name for part in ("pos", "offset", "rotary"))
        if spec.cache is not None and alike and not usual and name != "position_ids":
            raise UsageError(
                f"{spec.name}: forward takes {name!r}, which may be where the tokens after cached "
                f"ones are: give positions={name!r} if it takes (B, L), cached_keywords= for a "
                "constant, or positions=None where the module counts by itself."
            )


def refuse_unknown(spec: LayerSpec, module: Any, given: Collection[str | None]) -> None:
    """Raise where the forward of a layer's module needs an argument that no call gives."""
    keywords = keywords_of(module.module)
    usual = {*OFFSETS, *SLOTS, "position_ids", module.mask, module.cache, *given}
    for name in keywords.required[1:] if keywords and "extras" not in spec.accepts else ():
        if name not in usual:
            raise UsageError(
                f"{spec.name}: forward needs {name!r}, and nothing says what that is: give "
                f"keywords={{{name!r}: ...}} for a constant, source={name!r} for a second sequence "
                f"(B, S, E), positions={name!r} for positions (B, L), or wrap it in a module that "
                "needs the tokens alone."
            )


@torch.no_grad()
def is_causal(module: Callable[..., Tensor], hidden: Tensor) -> bool:
    """Whether no output changes with later tokens, wherever these begin, with equal dropout."""

    def run(tokens: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return module(tokens)

    expected = run(hidden)
    for own in range(1, hidden.shape[1]):
        other = torch.cat([hidden[:, :own], -hidden[:, own:].roll(1, -1)], 1)
        gap = (run(other) - expected)[:, :own].abs().amax()
        if not float(gap) <= 64 * torch.finfo(hidden.dtype).eps * float(expected.abs().amax()):
            return False
    return True


@torch.no_grad()
def with_dtypes(spec: LayerSpec, module: nn.Module, hidden: Tensor, **beside: Tensor) -> LayerSpec:
    """A layer without the dtypes that lack a number of it, as float16 lacks -1e9.

    Where an item without a real token, and it alone, gives NaN in any dtype, its spec says so.
    """
    real = torch.ones(hidden.shape[:2], dtype=torch.bool)
    real[-1] = False
    masked = {"padding_mask": real} if "padding_mask" in spec.accepts else {}
    raised: dict[str, str] = {}
    for name in DTYPES if spec.dtypes is None else spec.dtypes:
        dtype = getattr(torch, name)
        others = {key: tensor.to(dtype) for key, tensor in beside.items()}
        try:
            output = copy.deepcopy(module).to(dtype)(hidden.to(dtype), **masked, **others)
            if masked and bool(output[-1].isnan().any() and output[:-1].isfinite().all()):
                spec = replace(spec, conventions={"empty_rows": "nan", **spec.conventions})
        except Exception as error:  # any other a check reports
            if "without overflow" in str(error) and spec.dtypes is None:
                raised[name] = headline(error)[:120]
    if not raised:
        return spec
    note = f"not tried in {' and '.join(raised)}, where it raises {next(iter(raised.values()))}"
    left = tuple(name for name in DTYPES if name not in raised)
    return replace(spec, dtypes=left, notes=(*spec.notes, note))


@torch.no_grad()
def refuse_no_cache(
    module: nn.Module, spec: CacheSpec, hidden: Tensor, request: str, **beside: Tensor
) -> None:
    """Raise where a module gives no cache back, or cannot be called with it.

    Args:
        module: a module with the interface of a layer.
        spec: the cache of a layer, which takes what a call gives back.
        hidden: tokens of a first and a second call.
        request: the arguments that ask for a cache, for the error.
        beside: what both calls get besides, such as a second sequence.
    """
    options = (
        "give cache=attnbench.CacheSpec(new=...), where it is changed in place; kept='module', "
        "where the module holds it; or cache_name=None, to leave it untried."
    )
    held: Held = spec.new(module, _ROWS)
    what = "asked for one"
    try:
        module(hidden[:, :_FIRST], cache=held, **beside)
        if held.value is None:
            raise UsageError(f"{request}, but gives none back: {options}")
        what = "given what it gave back"
        module(hidden[:, _FIRST:], cache=held, **beside)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{request}, but raises when it is {what} ({type(error).__name__}: {error}): {options}"
        ) from error


def with_tuples(spec: LayerSpec, hidden: Tensor, *, tuples: bool, **beside: Tensor) -> LayerSpec:
    """A layer that gives back tuples, with the operations on them that a call shows are known."""
    if spec.cache is None or not tuples:
        return spec
    with contextlib.suppress(Exception), torch.no_grad():  # which a check reports
        module = spec.make(hidden.shape[-1]).to(hidden.dtype).eval()
        held: Held = spec.cache.new(module, _ROWS)
        module(hidden[:, :_FIRST], cache=held, **beside)
        if held.value is not None:
            known = tuples_like(held.value, _ROWS, _FIRST)
            lacking = {"slots none are cropped": known.crop, "rows none are selected": known.select}
            notes = [
                f"of its cache's {what} (found by trying)" for what in lacking if not lacking[what]
            ]
            return replace(spec, cache=held_cache(known, "returned"), notes=(*spec.notes, *notes))
    return spec
