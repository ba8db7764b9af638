"""Common parts of all adapters: specs, folding of leading sizes, and refusals."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.errors import RefusalError, first_line, headline
from attnbench.specs import MechanismSpec
from attnbench.subject.styles.signature import Keywords

_OWN = "by the adapter: it tests the adapter and not the callee; --invariant with its name runs it"
UNASKED = dict.fromkeys(
    (
        "compiled_equals_eager",
        "copies_agree",
        "exported_equals_eager",
        "fake_tensors_tell_the_shape",
        "vmap_equals_batch",
    ),
    _OWN,
)
"""Invariants that would test the adapter; run only if they are named."""

_REFUSAL = re.compile(
    r"not (?:yet |currently )?(?:implemented|supported)|un(?:supported|implemented)"
    r"|only supports?\b|(?:does|do)(?: not|n't) support|no available kernel"
    r"|only .*\b(?:is|are) supported",
    re.IGNORECASE,
)

_MASK_REFUSAL = re.compile(r"masks? (?:must|should|has to|have to|needs? to) be\b", re.IGNORECASE)

_NEEDS_GPU = re.compile(
    r"not compiled with CUDA|no NVIDIA|(?:must|should) be (?:on )?(?:a )?(?:cuda|gpu)"
    r"|(?:expected|only) .*\b(?:cuda|gpu)\b|0 active drivers",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptedSpec(MechanismSpec):
    """A mechanism that an adapter made of a callee.

    Args:
        style: name of the adapter.
        callee: the function or module that is called.
        unasked: invariants that would test the adapter; exempt unless they are named.
        notes: what the adapter found out by calling, for the report's first line.
        idle_dropout: whether it takes a share to drop, and is made with none.
    """

    style: str
    callee: Any = None
    unasked: frozenset[str] = frozenset(UNASKED)
    notes: tuple[str, ...] = ()
    idle_dropout: bool = False


def name_of(callee: Any) -> str:
    """A name for a subject: that of the function or class, or of a module's class."""
    name = getattr(callee, "__name__", None) or getattr(callee, "func", callee)
    text = name if isinstance(name, str) else getattr(name, "__name__", type(name).__name__)
    return re.sub(r"\W", "", text) or "callee"


def spec_of(
    style: str,
    callee: Any,
    known: Mapping[str, Any],
    given: Mapping[str, Any],
    notes: tuple[str, ...] = (),
) -> MechanismSpec:
    """Make the spec of an adapter from the fields that it knows and those given by its caller.

    Args:
        style: name of the adapter.
        callee: the function or module that is called.
        known: fields that the adapter knows; ``conventions`` and ``exempt`` are merged with the
            given ones.
        given: fields from the adapter's caller, which override the known ones.
        notes: what the adapter found out by calling.
    """
    fields: dict[str, Any] = {"name": name_of(callee), **known, **given}
    for name in ("conventions", "exempt"):
        fields[name] = {**known.get(name, {}), **given.get(name, {})}
    fields["exempt"] = {**UNASKED, **fields["exempt"]}
    return AdaptedSpec(style=style, callee=callee, notes=notes, **fields)


@contextmanager
def refusals(name: str, *, masked: bool) -> Iterator[None]:
    """Convert exceptions by which a callee refuses a call to :class:`RefusalError`.

    Args:
        name: name of the callee.
        masked: whether the call has a mask or is causal. Without either, saying what a mask must
            be is no reason to raise.
    """
    try:
        yield
    except RefusalError:
        raise
    except (AssertionError, NotImplementedError, RuntimeError, ValueError, TypeError) as error:
        message = headline(error)
        line = first_line(str(error))
        if _NEEDS_GPU.search(line):
            raise RefusalError(
                f"{name} needs a GPU ({message}): check it with --device cuda"
            ) from error
        said_so = _REFUSAL.search(line) or (masked and _MASK_REFUSAL.search(line))
        if isinstance(error, NotImplementedError) or said_so:
            raise RefusalError(f"{name} refuses it: {message}") from error
        raise


class Callee(nn.Module):
    """The module of a mechanism that calls a callee; a callee that is a module is copied.

    Args:
        callee: a function or a module.
        keywords: keywords of the callee.
        settings: further facts that the adapter has found out.
    """

    def __init__(self, callee: Callable[..., Any], keywords: Keywords, **settings: Any) -> None:
        super().__init__()
        self.callee, self.keywords, self.settings = callee, keywords, settings
        self.callee_name = name_of(callee)

    def call(self, *tensors: Tensor, **given: Any) -> Any:
        """Call the callee with arguments named by meaning; raises its refusals."""
        masked = "attn_mask" in given or bool(given.get("is_causal"))
        with refusals(self.callee_name, masked=masked):
            return self.callee(*tensors, **self.keywords.spelt(given))


def fold(tensor: Tensor, *, heads: bool = False) -> Tensor:
    """Reshape ``(*lead, n, E)`` to ``(B, H, n, E)``; a single leading size is B, or H if asked."""
    lead = tensor.shape[:-2]
    if len(lead) == 2:
        return tensor
    if len(lead) == 1:
        return tensor.unsqueeze(0 if heads else 1)
    if not lead:
        return tensor[None, None]
    return tensor.flatten(0, -4)


def stored_scale(scale: Any, tensor: Tensor, name: str, *, heads: bool) -> Any:
    """A scale of a key or value ``(*lead, S, ·)``: ``(B, H, S, 1)`` or 0-dimensional.

    Of the name ``k_descale`` or ``v_descale`` it is ``(B, H)``, as in flash-attention.

    Raises:
        RefusalError: it is by token, which ``(B, H)`` cannot say.
    """
    by_head = name.endswith("descale")
    if not isinstance(scale, Tensor) or not (scale.dim() or by_head):
        return scale
    wide = fold(scale.expand(*tensor.shape[:-1], 1), heads=heads)
    if not by_head:
        return wide
    if not bool((wide == wide[..., :1, :]).all()):
        raise RefusalError(f"{name} is (B, H), and takes no scale by token")
    return wide[..., 0, 0].float()


def unfold(tensor: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Reshape ``(B, H, n, E)`` to ``(*lead, n, E)``, or leave it if the numbers of items differ."""
    if not isinstance(tensor, Tensor) or tensor.dim() != 4 or len(lead) == 2:
        return tensor
    wanted = (*lead, *tensor.shape[-2:])
    count = tensor.shape[0] * tensor.shape[1]
    return tensor.reshape(wanted) if torch.Size(lead).numel() == count else tensor


def fold_mask(mask: Tensor, lead: tuple[int, ...], *, heads: bool = False) -> Tensor:
    """Reshape a mask that broadcasts to ``(*lead, L, S)`` to broadcast to ``(B, H, L, S)``."""
    if mask.dim() == 2 or (len(lead) == 2 and mask.dim() == 4):
        return mask
    mask = mask.reshape(*[1] * (len(lead) + 2 - mask.dim()), *mask.shape)
    if len(lead) <= 2:
        return fold(mask, heads=heads)
    own = mask.shape[:-3]
    if all(size == 1 for size in own):
        return mask.reshape(1, *mask.shape[-3:])
    return mask.expand(*lead[:-1], *mask.shape[-3:]).flatten(0, -4)


class Maker:
    """The ``make`` of a spec, for a function or an existing module.

    Args:
        module: class of the modules to make.
        callee: a function, or a module, which is copied for each.
        keywords: keywords of the callee.
        settings: further arguments of ``module``.
    """

    def __init__(
        self, module: type[Callee], callee: Any, keywords: Keywords, **settings: Any
    ) -> None:
        self.module, self.callee, self.keywords = module, callee, keywords
        self.settings = settings
        self.__qualname__ = name_of(callee)

    def __call__(self, query_size: int, key_size: int, value_size: int) -> nn.Module:
        """Make a module; the sizes are ignored, since they follow from its tensors."""
        held = isinstance(self.callee, nn.Module)
        callee = copy.deepcopy(self.callee) if held else self.callee
        return self.module(callee, self.keywords, **self.settings)
