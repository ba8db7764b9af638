"""The call of what textbooks teach: batches ``(B, L, E)``, with lengths or a mask."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from attnbench.calling.adapted import name_of, refusals
from attnbench.calling.caches import drop_graphs
from attnbench.calling.keywords import FIRST, Keywords, keywords_of, order_of
from attnbench.calling.results import output_and_more
from attnbench.calling.styles.constructors import constructor_arguments
from attnbench.calling.styles.fitting import better
from attnbench.errors import RefusalError, StyleError

LENGTHS = ("valid_lens", "valid_len", "valid_length", "valid_lengths", "lengths", "lens")
SLOTS = 5
"""Number of keys of a module that is made for one number of them."""


class Form:
    """The form in which a callee takes its arguments.

    Args:
        order: which of query, key and value its first three arguments are.
        by_head: whether its mask has an axis for the heads, ``(B, 1, L, S)``.
        lengths: name of the argument for lengths; ``None`` for none.
        mask: name of the argument for a mask.
        single: whether it takes one query at a time, and one key vector for all slots.
        alone: whether it takes a batch of one only.
        flat: whether it takes one number a query, key and value: ``(n,)``, ``(n, S)``, ``(n, S)``.
        one_length: whether it takes lengths ``(B,)`` only, and none for each query.
        needs: whether it needs its mask or lengths, so that it gets those that hide nothing.
    """

    def __init__(self, keywords: Keywords) -> None:
        names = keywords.names
        self.lengths = next((name for name in names if name in LENGTHS), None)
        self.mask = keywords.named.get("attn_mask")
        self.order = order_of(names) or [0, 1, 2]
        self.by_head = self.single = self.alone = self.flat = False
        self.one_length = self.needs = False

    def in_words(self) -> list[str]:
        """What is unusual about it."""
        texts = {
            f"one query at a time, with one key vector and {SLOTS} values": self.single,
            "one number a query, key and value: (n,), (n, S) and (n, S)": self.flat,
            "a batch of one at a time": self.alone and not self.single,
            "its mask has an axis for heads: (B, 1, L, S)": self.by_head,
            "one length an item: (B,)": self.one_length,
            "a call without a mask gets one that hides nothing": self.needs,
        }
        return [text for text, holds in texts.items() if holds]


def has_textbook_names(target: Any) -> bool:
    """Whether names show the style: plural or capital ones, lengths, or ``mask`` beside sizes."""
    called = target.forward if inspect.isclass(target) and hasattr(target, "forward") else target
    keywords = keywords_of(called) if callable(called) else None
    if keywords is None:
        return False
    names = [name for name in keywords.names if name != "self"]
    if not order_of(names):
        return False
    plural = {name for known in FIRST.values() for name in known[1::2]}
    if plural >= {*names[:3]} or any(name in LENGTHS for name in names):
        return True
    sized = inspect.isclass(target) and names[3:] == ["mask"]
    return sized and not isinstance(constructor_arguments(target, 8, 8, 8, SLOTS), str)


class TextbookMaker:
    """The spec's ``make``."""

    def __init__(self, make: Any) -> None:
        self.make, self.form, self.dropout = make, Form(Keywords(())), 0.0
        self.__qualname__ = name_of(make)

    def callee(
        self, query_size: int, key_size: int, value_size: int, dropout: float | None = None
    ) -> Any:
        """The function, a copy of the module, or what the class makes.

        Args:
            query_size, key_size, value_size: Eq, Ek and Ev.
            dropout: the share that the class is made with; ``None`` for the usual one.
        """
        if isinstance(self.make, nn.Module):
            return copy.deepcopy(self.make)
        if not (inspect.isclass(self.make) or not _takes_tensors(self.make)):
            return self.make
        share = self.dropout if dropout is None else dropout
        sizes = query_size, key_size, value_size, SLOTS
        given = constructor_arguments(self.make, *sizes, dropout=share)
        if isinstance(given, str):
            raise StyleError(
                f"{name_of(self.make)} cannot be called as textbook: what its argument {given!r} "
                "should be is not known; name a functools.partial that gives it, or an instance."
                f"{better(self.make)}"
            )
        return self.make(**given)

    def __call__(self, query_size: int, key_size: int, value_size: int) -> nn.Module:
        """A module for these sizes."""
        sizes = query_size, key_size, value_size
        made = functools.partial(self.callee, *sizes)
        module = _Textbook(made(), self.form, made)
        if any(is_lazy(parameter) for parameter in module.parameters()):
            with torch.no_grad(), contextlib.suppress(Exception):  # the next call raises it again
                module(*(torch.zeros(1, SLOTS, size) for size in sizes))
        return module


def _takes_tensors(function: Any) -> bool:
    keywords = keywords_of(function)
    return bool(keywords and order_of(keywords.names))


class _Textbook(nn.Module):
    """A callee as a mechanism's module."""

    def __init__(self, callee: Any, form: Form, made: Callable[..., Any]) -> None:
        super().__init__()
        self.callee, self.form, self._made = callee, form, made

    def _dropping(self, dropout: float) -> Any:
        """What the class makes for that share, with the parameters and buffers of the callee."""
        with torch.random.fork_rng(devices=[]):
            other = self._made(dropout=dropout)
        for name, module in self.callee.named_modules():
            own = other.get_submodule(name)
            own._parameters, own._buffers = module._parameters, module._buffers
        return other.train(self.training)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        valid_lens: Tensor | None = None,
        dropout_p: float = 0.0,
        return_weights: bool = False,
    ) -> Any:
        """The output ``(..., L, Ev)``, and the weights ``(..., L, S)`` on request."""
        callee = self._dropping(dropout_p) if dropout_p else self.callee
        lead, shape = query.shape[:-2], (*query.shape[:-1], key.shape[-2])
        batch = [tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (query, key, value)]
        more: dict[str, Any] = {}
        if valid_lens is not None:
            if self.form.one_length and valid_lens.dim() == 2:
                raise RefusalError(f"{name_of(self.callee)} takes one length an item, (B,)")
            own = valid_lens.reshape(valid_lens.shape[0], *[1] * (len(lead) - 1), -1)
            rows = own.expand(*lead, own.shape[-1]).reshape(-1, own.shape[-1])
            more["lengths"] = rows if valid_lens.dim() == 2 else rows[:, 0]
        if attn_mask is not None:
            axes = (1, *shape[-2:]) if self.form.by_head else shape[-2:]
            more["mask"] = attn_mask.expand(shape).reshape(-1, *axes)
        calls = self._apart(batch, more) if self.form.alone or self.form.single else [(batch, more)]
        found = [self._call(callee, *call) for call in calls]
        output = torch.cat([output for output, _ in found]).reshape(*query.shape[:-1], -1)
        if not return_weights:
            return output
        return output, torch.cat([weights for _, weights in found]).reshape(shape)

    def _apart(
        self, batch: list[Tensor], more: dict[str, Any]
    ) -> list[tuple[list[Tensor], dict[str, Any]]]:
        """The calls for each item, or for each query."""
        calls = []
        for item in range(batch[0].shape[0]):
            query, key, value = (tensor[item : item + 1] for tensor in batch)
            given = {name: tensor[item : item + 1] for name, tensor in more.items()}
            if self.form.single:
                rows = [query[:, row : row + 1] for row in range(query.shape[1])]
                calls += [([row, key[:, :1], value], given) for row in rows]
            else:
                calls.append(([query, key, value], given))
        return calls

    def _call(self, callee: Any, tensors: list[Tensor], more: dict[str, Any]) -> tuple[Any, Any]:
        (rows, count), slots = tensors[0].shape[:2], tensors[2].shape[1]
        if self.form.flat:
            each = [tensor[..., 0].repeat_interleave(count, 0) for tensor in tensors[1:]]
            tensors = [tensors[0].reshape(-1), *each]
        axes = (rows, 1, count, slots) if self.form.by_head else (rows, count, slots)
        names = {"lengths": self.form.lengths, "mask": self.form.mask}
        whole = {
            "lengths": torch.full((rows,), slots, device=tensors[0].device),
            "mask": torch.ones(axes, dtype=torch.bool, device=tensors[0].device),
        }
        given = {
            name: more.get(what, whole[what] if self.form.needs else None)
            for what, name in names.items()
            if name
        }
        on_cpu = tensors[0].device.type == "cpu"
        with refusals(name_of(callee), masked=bool(more), on_cpu=on_cpu):
            tensors = [tensors[place] for place in self.form.order]
            output, weights = output_and_more(callee(*tensors, **given))
        weights = getattr(callee, "attention_weights", None) if weights is None else weights
        if self.form.flat:
            output = output.reshape(-1, count, 1)
            weights = None if weights is None else weights.reshape(-1, count, weights.shape[-1])
        drop_graphs(callee)
        return output, weights


def refuse_missing_weights(make: Any, given: bool, accepts: Any) -> None:
    """Raise if weights are declared that no call gives.

    Args:
        make: what is called.
        given: whether weights are handed back, or kept.
        accepts: what its spec says that it takes.

    Raises:
        StyleError: they are declared, and not given.
    """
    if "return_weights" in (accepts or ()) and not given:
        raise StyleError(
            f'{name_of(make)}: accepts names "return_weights", but no weights (B, L, S) are found '
            "in (output, weights) or in attention_weights: hand some back, or leave it out."
        )
