"""Small calls of a callee in its own layout, and what they show of its weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling.keywords import Keywords, order_of
from attnbench.calling.results import is_plain, output_and_more
from attnbench.errors import headline

BATCH, HEADS = 2, 4
_CLEAR = 1e-6
_ROUNDED = 1e-2
"""What half types may change; another convention changes more."""

ALLOWED = torch.tensor([[1, 0, 1, 0, 1], [0, 1, 1, 0, 0], [1, 1, 0, 0, 1]], dtype=torch.bool)
"""A mask of 3 queries and 5 keys that is neither symmetric nor its own opposite."""

LAYOUTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "(B, H, L, E)": lambda t: t,
    "(B, L, H, E)": lambda t: t.transpose(1, 2),
    "(B, L, E)": lambda t: t.flatten(0, 1),
    "(L, B, E)": lambda t: t.flatten(0, 1).transpose(0, 1),
}
"""How tensors ``(B, H, L, E)`` are turned to a layout."""


@dataclass(frozen=True)
class Answer:
    """What was found out about one convention.

    Args:
        question: what was asked.
        status: ``"inferred"``, ``"not taken"`` or ``"ambiguous"``.
        value: the answer, if it was inferred.
        shown: the call that shows it, or what is unclear.
    """

    question: str
    status: str
    value: Any
    shown: str


class Calls:
    """Calls a callee with tensors ``(B, H, L, E)``.

    Args:
        make: ``make(E)`` gives the callee, whose results are in its own layout.
        keywords: its arguments.
    """

    def __init__(self, make: Callable[[int], Any], keywords: Keywords) -> None:
        self.make, self.named, self.names = make, keywords.named, keywords.names
        self.required = {one for one, own in self.named.items() if own in keywords.required}
        self.order = order_of(self.names) or [0, 1, 2]
        self.usual: Mapping[str, Callable[[Tensor, Tensor], Any]] = {}
        """What each call is given of query and key, where it is given nothing else."""
        self.layout, self.training = "(B, H, L, E)", False
        self.raised, self.moved = "", False
        self.other = ""
        """What came where an output was expected."""
        self.passed = torch.float32
        """The dtype in which it is given what a question says in float32."""
        self.dtype = torch.float32
        """The dtype of the last output."""
        self.question = ""
        """What is being asked."""
        self.answers: dict[str, Answer] = {}
        """The answers so far, by question."""
        self.hide: Callable[[Tensor], dict[str, Any]] | None = None
        """The mask for what ``(L, S)`` allows, once its form is known."""
        self.low = False
        """Whether a floating mask is to hold torch.finfo's min, and not -inf."""

    def inferred(self, value: Any, shown: str) -> Answer:
        """An answer that a call shows."""
        return Answer(self.question, "inferred", value, shown)

    def not_taken(self, shown: str) -> Answer:
        """The callee has nothing of the kind, or refuses it."""
        return Answer(self.question, "not taken", None, shown)

    def ambiguous(self, shown: str) -> Answer:
        """The calls fit none of the answers, or several."""
        return Answer(self.question, "ambiguous", None, shown)

    def result(self, tensors: Sequence[Tensor], **given: Any) -> Any:
        """What the callee returns; ``None`` where it raises. Keywords are meanings or names."""
        turn, self.raised = LAYOUTS[self.layout], ""
        given = {one: make(*tensors[:2]) for one, make in self.usual.items()} | given
        dtype = tensors[0].dtype if tensors[0].dtype != torch.float32 else self.passed
        mask = given.get("attn_mask")
        if mask is not None and mask.is_floating_point():
            given["attn_mask"] = mask.to(dtype)
        spelt = {self.named.get(name, name): value for name, value in given.items()}
        try:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(0)
                callee = self.make(tensors[0].shape[-1])
                if isinstance(callee, nn.Module):
                    callee = copy.deepcopy(callee).to(dtype).train(self.training)
                    if self.moved:
                        _move_zeros(callee)
                own = [turn(tensors[i]).to(dtype).clone() for i in self.order]
                return callee(*own, **spelt)
        except (Exception, SystemExit) as error:  # whatever it raises, it does not take this
            self.raised = headline(error)[:120]
            return None

    def output(self, tensors: Sequence[Tensor], **given: Any) -> Tensor | None:
        """The output ``(B, H, L, Ev)`` in the query's dtype; ``None`` if it has another form."""
        result = self.result(tensors, **given)
        found, _ = output_and_more(result)
        wanted = (*tensors[0].shape[:-1], tensors[2].shape[-1])
        template = LAYOUTS[self.layout](torch.empty(wanted))
        if not is_plain(found) or found.shape != template.shape:
            parts = result if isinstance(result, tuple | list) else [result]
            forms = [str(tuple(t.shape)) if is_plain(t) else type(t).__name__ for t in parts]
            self.other = f"it returns {', '.join(forms)}, and not {tuple(template.shape)} first"
            return None
        self.dtype, found = found.dtype, found.detach().to(tensors[0].dtype)
        if self.layout == "(B, L, H, E)":
            return found.transpose(1, 2)
        return (found.transpose(0, 1) if self.layout == "(L, B, E)" else found).reshape(wanted)

    def tensors(
        self, q_len: int = 3, kv_len: int = 5, size: int = 8, heads: int = HEADS
    ) -> list[Tensor]:
        """Query, key and value of fixed random numbers."""
        generator = torch.Generator().manual_seed(1)
        shapes = [(HEADS, q_len), (heads, kv_len), (heads, kv_len)]
        return [torch.randn(BATCH, *shape, size, generator=generator) for shape in shapes]

    def reach(self, q_len: int = 3, kv_len: int = 5, **given: Any) -> Tensor | None:
        """Which outputs ``(L, S)`` change with a value; ``None`` where the call is refused."""
        query, key, value = self.tensors(q_len, kv_len)
        before = self.output([query, key, value], **given)
        columns = []
        for slot in range(kv_len):
            other = value.clone()
            other[..., slot, :] += 2
            after = self.output([query, key, other], **given)
            if before is None or after is None:
                return None
            columns.append(~((after - before).abs().amax((0, 1, 3)) <= _CLEAR))
        return torch.stack(columns, -1)

    def weights(self, tensors: Sequence[Tensor], **given: Any) -> Tensor | None:
        """The weights ``(B, H, L, S)`` of an output that pools values, read from unit vectors."""
        query, key, value = tensors
        slots, size = value.shape[-2:]
        unit = torch.eye(slots, size, dtype=value.dtype).expand(value.shape)
        found = self.output([query, key, unit], **given)
        return None if found is None else found[..., :slots]

    def slope(self, size: int, **given: Any) -> float | None:
        """The factor of q·k in the scores; ``None`` where they are no multiple of it."""
        query, key, value = self.tensors(4, 4, size)
        found = self.weights([query, key, value], **given)
        if found is None or not bool((found[..., -1, :] > 0).all()):
            return None
        logs, dots = found[..., -1, :].log(), (query @ key.mT)[..., -1, :]
        logs, dots = (t - t.mean(-1, keepdim=True) for t in (logs, dots))
        factor = float((logs * dots).sum() / dots.square().sum())
        fits = torch.allclose(logs, factor * dots, 1e-2, 1e-2 * max(1.0, abs(factor)))
        return factor if fits and math.isfinite(factor) else None


def _move_zeros(module: nn.Module) -> None:
    """Give parameters that start at zero other values: a bias of zeros passes for no bias."""
    with torch.no_grad():
        for parameter in module.parameters():
            if not bool(parameter.any()):
                parameter.normal_()


def same(got: Tensor | None, expected: Tensor) -> bool:
    """Whether a call that was not refused shows exactly this."""
    return got is not None and torch.equal(got, expected)


def alike(got: Tensor | None, expected: Tensor | None) -> bool:
    """Whether two calls that were not refused give the same but for rounding."""
    if got is None or expected is None:
        return False
    return torch.allclose(got, expected, _ROUNDED, _ROUNDED)
