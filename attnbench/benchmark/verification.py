"""Whether a timed subject is right: before, while and after it is timed.

In a large case, 64 query rows spread over its items are compared with the references. The rows of a
mechanism may depend on each other, so for a mechanism whole items are compared, and one is enough.
With parameters per head, an item contains all heads, since a head alone would get the first's.

A mechanism is its own reference in float64, unless its spec says that it computes scaled
dot-product attention: then the reference is the textbook formula, which shares no code with it.

Of a layer, only the last item of a batch is compared; its reference runs alone, in one call without
a cache, since the other items must not affect it. A decoding call is compared in the item's last
row, any other call in all rows.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnbench.attention.attend import attend
from attnbench.benchmark.timed_calls import Step, StepInputs
from attnbench.benchmark.timing.samples import Samples
from attnbench.calling.formulas import scaled_dot_rows
from attnbench.errors import headline
from attnbench.invariants.toolkit.layer_rounding import floor_of, rounding_of
from attnbench.oracle.budget import Oracle, expected
from attnbench.oracle.textbook import TEXTBOOK
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs, LayerInputs

ROWS = 64
"""Number of query rows that are compared if a case has more."""
_TIMED_ROWS, _GRADIENT_ROWS = 8, 16
"""The same of a timed call, and of gradients."""

_AT_ONCE = 2**22  # most elements of (rows, S, Ev) that the reference holds at a time
_MOST_ITEMS = 4  # of a mechanism, each costs several runs of the whole module in float64
_MOST_PAIRS = 2**26  # of a query and a key in a mechanism's item, for gradients in float64
_WIDE = ("float64", "float32")
_SCALAR_WORK = 2**15  # most products of features that are computed in Python floats
_MOVES, _UNITS = 4, 32.0
"""Number of random moves of inputs and parameters by one unit, and allowed error in such units.

A gradient is a sum over queries or keys whose terms may cancel, and a kernel may add them in
another order.
"""


class Unverified(Exception):  # noqa: N818 -- a result for a row, not an error of attnbench
    """A timed subject must not be ranked; the message says why."""


@dataclass(frozen=True)
class Agreement:
    """The result of a comparison.

    Args:
        error_abs: largest absolute error.
        ratio: largest error over the allowed error; at most 1 if they agree.
        rows: number of query rows compared.
    """

    error_abs: float
    ratio: float
    rows: int

    @property
    def agrees(self) -> bool:
        """Whether the subject may be ranked."""
        return self.ratio <= 1.0


def is_scaled_dot(subject: Subject) -> bool:
    """Whether the spec of a mechanism says that it computes scaled dot-product attention."""
    return subject.maker.reference is scaled_dot_rows


def _by_items(subject: Subject) -> bool:
    """Whether whole items are compared, since rows may depend on each other."""
    return subject.scoring is None and not is_scaled_dot(subject)


@dataclass(frozen=True)
class Part:
    """Some query rows of one item of a call; with parameters per head, of all heads of it."""

    subject: Subject
    whole: Inputs
    item: int
    rows: Sequence[int]

    def _dims(self, tensor: Tensor) -> int:
        return _item_dims(self.subject, tensor)

    def of_query(self, tensor: Tensor) -> Tensor:
        """The rows ``(1, rows, E)`` of ``(*lead, L, E)``, or ``(1, H, rows, E)``."""
        inner = tensor.shape[self._dims(tensor) :]
        return tensor.reshape(-1, *inner)[self.item][..., self.rows, :].unsqueeze(0)

    def of_key(self, tensor: Tensor) -> Tensor:
        """All rows of the item of key or value, which grouped heads share."""
        inner = tensor.shape[self._dims(tensor) :]
        return tensor.reshape(-1, *inner)[self.key_item].unsqueeze(0)

    @property
    def key_item(self) -> int:
        """The item of key and value that belongs to that of the query."""
        if not self.whole.enable_gqa or self.subject.conventions.per_head:
            return self.item
        heads, kv_heads = self.whole.query.shape[-3], self.whole.key.shape[-3]
        batch, head = divmod(self.item, heads)
        return batch * kv_heads + head // (heads // kv_heads)

    @property
    def inputs(self) -> Inputs:
        """The inputs of the part; masks, lengths and causality are combined into one mask."""
        query, key = self.whole.query, self.whole.key
        mask = self.whole.mask.as_tensor()
        if mask is not None:
            outer = query.shape[: self._dims(query)]
            place = tuple(map(int, np.unravel_index(self.item, outer)))
            mask = mask.broadcast_to((*query.shape[:-1], key.shape[-2]))[place]
            mask = mask[..., self.rows, :].unsqueeze(0)
        return Inputs(
            self.of_query(query),
            self.of_key(key),
            self.of_key(self.whole.value),
            attn_mask=mask,
            enable_gqa=self.whole.enable_gqa and self.subject.conventions.per_head,
        )

    def oracle(self, module: nn.Module) -> Oracle:
        """The expected output of the part."""
        if not is_scaled_dot(self.subject):
            return Oracle(self.subject, module, self.inputs)
        oracle = expected(self.inputs)
        oracle.eps = self.subject.eps(self.whole.query.dtype)
        return oracle


def _item_dims(subject: Subject, tensor: Tensor) -> int:
    """The number of leading sizes that index items: all, or all but the heads'."""
    leading = tensor.dim() - 2
    return max(0, leading - 1) if subject.conventions.per_head else leading


def parts(
    subject: Subject, inputs: Inputs, max_rows: int = ROWS, chance: random.Random | None = None
) -> Iterator[Part]:
    """Yield the parts of a call to compare, few enough rows each to fit into memory at once."""
    dims, q_len = _item_dims(subject, inputs.query), inputs.query.shape[-2]
    items, heads = math.prod(inputs.query.shape[:dims]), math.prod(inputs.query.shape[dims:-2])
    size = heads * inputs.key.shape[-2] * max(inputs.value.shape[-1], inputs.key.shape[-1])
    by_items, step = _by_items(subject), max(1, _AT_ONCE // size)
    most = _MOST_ITEMS if q_len > 1 else max_rows
    if by_items:
        most, step = min(_MOST_ITEMS, math.ceil(max_rows / q_len), step // q_len), q_len
    chosen = _choose(items, max(1, min(items, most)), chance)
    count = q_len if by_items else min(q_len, math.ceil(max_rows / len(chosen)))
    for item in chosen:
        rows = _choose(q_len, count, chance)
        for start in range(0, count, step):
            yield Part(subject, inputs, item, rows[start : start + step])


def _choose(count: int, size: int, chance: random.Random | None) -> list[int]:
    """``size`` numbers below ``count``: drawn, or evenly spread from the first to the last."""
    if chance is not None:
        return sorted(chance.sample(range(count), size))
    if size == 1:
        return [count - 1]
    return sorted({round(i * (count - 1) / (size - 1)) for i in range(size)})


def agreement(
    subject: Subject,
    module: nn.Module,
    inputs: Inputs,
    output: Tensor,
    max_rows: int = ROWS,
    chance: random.Random | None = None,
    *,
    with_scalar: bool = True,
) -> Agreement:
    """Compare an output ``(..., L, Ev)`` with the references, on enough rows to trust it.

    Args:
        subject, module, inputs, output: the call and its result.
        max_rows: number of query rows that are compared if there are more.
        chance: draws items and rows; by default, they are spread evenly.
        with_scalar: whether the reference in Python floats, which is slow, is one of them.
    """
    error = ratio = 0.0
    count = 0
    for part in parts(subject, inputs, max_rows, chance):
        if output.shape[:-1] != inputs.query.shape[:-1]:
            return Agreement(math.inf, math.inf, 0)
        oracle = part.oracle(module)
        block = part.of_query(output.detach()).cpu().double()
        if block.shape != oracle.output.shape:
            return Agreement(math.inf, math.inf, 0)
        errors = (block - oracle.output).abs()
        budget = oracle.budget()
        block_ratio = ratio_of_errors(errors, budget)
        if block_ratio > 1.0:  # a quick budget suffices to pass; to fail, the full one is computed
            budget = oracle.budget(sure=True)
            block_ratio = ratio_of_errors(errors, budget)
        if count == 0 and with_scalar:
            block_ratio = max(block_ratio, _scalar_ratio(subject, oracle, block, budget))
        error, ratio = max(error, _largest(errors)), max(ratio, block_ratio)
        count += len(part.rows)
    return Agreement(error, ratio, count)


def _scalar_ratio(subject: Subject, oracle: Oracle, output: Tensor, budget: Tensor) -> float:
    """The error ratio to the reference in Python floats, on as many rows as are cheap.

    Only this reference shows that the module computes the function of its name, since the float64
    reference runs the same module.
    """
    inputs = oracle.inputs
    work = inputs.key.shape[-2] * inputs.query.shape[-1]
    if _by_items(subject):
        work *= inputs.query.shape[-2]  # a mechanism's reference computes all rows at once
    if not oracle.has_scalar or work > _SCALAR_WORK:
        return 0.0
    rows = oracle.rows(_SCALAR_WORK // inputs.query.shape[-1])
    errors = (oracle.select(output, rows) - oracle.scalar(rows)).abs()
    return ratio_of_errors(errors, oracle.select(budget.broadcast_to(output.shape), rows))


def _largest(values: Tensor) -> float:
    largest = float(values.max()) if values.numel() else 0.0
    return math.inf if math.isnan(largest) else largest


def ratio_of_errors(errors: Tensor, budget: Tensor | float) -> float:
    """The largest error over the allowed error; infinite if either is not a finite number."""
    ratio = torch.where(errors == 0, torch.zeros_like(errors), errors / budget)
    is_finite = torch.isfinite(errors + budget)
    return _largest(torch.where(is_finite, ratio, math.inf))


def layer_agreement(
    subject: LayerSubject, module: nn.Module, inputs: LayerInputs, output: Tensor
) -> Agreement:
    """Compare the output of a call with that of the whole sequence in the widest dtype."""
    hidden = inputs.hidden
    with torch.no_grad():
        if isinstance(inputs, StepInputs):
            hidden = torch.cat([inputs.past, hidden], 1)
        rows, sequence = output.shape[1], hidden[-1:].cpu()
        module_copy = copy.deepcopy(module).cpu()
        dtype_name = next((name for name in _WIDE if name in subject.dtypes), subject.dtypes[0])
        dtype = getattr(torch, dtype_name)
        target, _ = subject.call(copy.deepcopy(module_copy).to(dtype), sequence.to(dtype))
        errors = (output[-1:].cpu().double() - target[:, -rows:].double()).abs()
        ratio = ratio_of_errors(errors, floor_of(subject, target, hidden.dtype))
        if not ratio <= 1.0:  # a fixed tolerance suffices to pass; to fail, measure the rounding
            rounding = rounding_of(subject, module_copy, sequence)[:, -rows:]
            ratio = ratio_of_errors(errors, rounding)
    return Agreement(_largest(errors), ratio, rows)


def gradient_ratio(
    subject: Subject,
    module: nn.Module,
    inputs: Inputs,
    timed: Sequence[Tensor] = (),
    chance: random.Random | None = None,
) -> float:
    """The largest error of a gradient over the allowed error; at most 1 if they agree.

    The upstream gradient is zero except in a few query rows, so that all returned gradients come
    from them: those of the queries, of the keys and values that they see, and of every parameter.
    That of a timed call is all ones. There, the gradients of the queries are compared, and those of
    keys and values if nothing but these queries adds to them.

    Args:
        subject, module, inputs: the call.
        timed: the gradients of query, key and value that a timed call returned.
        chance: draws item and rows; by default, they are spread evenly.

    Raises:
        ValueError: the case is too large for gradients in float64.
    """
    query, key, value = inputs.query, inputs.key, inputs.value
    is_mechanism = subject.scoring is None
    if is_mechanism and query.shape[-2] * key.shape[-2] > _MOST_PAIRS:
        raise ValueError("the gradients of an item this long do not fit into memory in float64")
    part = next(parts(subject, inputs, chance=chance))
    part = Part(subject, inputs, part.item, _gradient_rows(part, bool(timed)))
    shape = (*query.shape[:-1], value.shape[-1])
    inner = shape[_item_dims(subject, query) :]
    upstream = torch.ones(1, *inner[:-2], len(part.rows), inner[-1], dtype=torch.float64)
    if timed:
        gradients = [part.of_query(timed[0])]
        if len(part.rows) == query.shape[-2] and query.shape[:-2] == key.shape[:-2]:
            gradients += map(part.of_key, timed[1:3])
    else:
        upstream.normal_(generator=torch.Generator().manual_seed(0))
        everywhere = torch.zeros(shape, dtype=torch.float64)
        everywhere.view(-1, *inner)[part.item][..., part.rows, :] = upstream[0]
        gradients = _gradients(subject, module, inputs, everywhere, plain=False)
        gradients[:3] = part.of_query(gradients[0]), *map(part.of_key, gradients[1:3])
    return _ratio_of_gradients(part, module, upstream, gradients)


def _gradient_rows(part: Part, is_timed: bool) -> Sequence[int]:
    """The rows from which gradients come: of a timed call, all of the item if they fit.

    In a timed call all rows add to the gradients of keys and values. Where the reference cannot
    hold them at once, only the gradients of the queries in the part are compared.
    """
    query, key, value = part.whole.query, part.whole.key, part.whole.value
    if is_timed:
        heads = math.prod(query.shape[part._dims(query) : -2])
        fits = heads * query.shape[-2] * key.shape[-2] * value.shape[-1] <= _AT_ONCE
        return range(query.shape[-2]) if fits else part.rows
    step = 1 if part.subject.scoring is None else math.ceil(len(part.rows) / _GRADIENT_ROWS)
    return part.rows[::step]


def _ratio_of_gradients(
    part: Part, module: nn.Module, upstream: Tensor, gradients: Sequence[Tensor]
) -> float:
    """The largest error over the allowed error, for as many gradients as there are."""
    subject = part.subject
    oracle = Oracle(subject, module, part.inputs)
    targets = _gradients(subject, oracle.module, oracle.inputs, upstream, plain=True)
    step = max(oracle.eps, 2.0**-24)
    moves = [
        _gradients(subject, moved_module, moved_inputs, upstream, plain=True)
        for moved_module, moved_inputs in oracle.moved(step, _MOVES)
    ]
    largest = max(float(t.abs().max()) for t in targets)  # in one, all terms may cancel
    ratio = 0.0
    for n, (gradient, target) in enumerate(zip(gradients, targets, strict=False)):
        change = max(float((move[n] - target).abs().max()) for move in moves) * oracle.eps / step
        allowed = _UNITS * (change + oracle.eps * largest) + oracle.tiny
        errors = (gradient.detach().cpu().double() - target).abs()
        ratio = max(ratio, ratio_of_errors(errors, allowed))
    return ratio


def _gradients(
    subject: Subject, module: nn.Module, inputs: Inputs, upstream: Tensor, *, plain: bool
) -> list[Tensor]:
    """Gradients of query, key, value and each parameter; zeros for those that are not reached."""
    leaves = inputs.map(lambda tensor: tensor.detach().requires_grad_())
    tensors = [leaves.query, leaves.key, leaves.value]
    variables = tensors + [p for p in module.parameters() if p.requires_grad]
    with torch.enable_grad():
        if plain and subject.scoring is not None:
            output = attend(module, *tensors, attn_mask=leaves.attn_mask, kernel="plain")
        else:
            output = subject.output(module, leaves)
        grads = torch.autograd.grad(output, variables, upstream.to(output), allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for g, w in zip(grads, variables, strict=True)]


def _agreement(
    subject: Subject, module: nn.Module, inputs: Inputs, output: Tensor, **chosen: Any
) -> Agreement:
    """Compare an output with the reference for this kind of subject."""
    with torch.no_grad():
        if isinstance(subject, LayerSubject) and isinstance(inputs, LayerInputs):
            return layer_agreement(subject, module, inputs, output)
        return agreement(subject, module, inputs, output, **chosen)


def rating(subject: Subject, module: nn.Module, inputs: Inputs, direction: str) -> dict[str, Any]:
    """The status and errors of a subject; a wrong one is still measured, but never ranked."""
    try:
        with torch.no_grad():
            if isinstance(subject, LayerSubject) and isinstance(inputs, StepInputs):
                output = Step(subject, module, inputs).alone()[0]
            else:
                output = subject.output(module, inputs)
        result = _agreement(subject, module, inputs, output)
        slope_ratio = 0.0
        if direction == "forward_backward" and result.agrees:
            slope_ratio = gradient_ratio(subject, module, inputs)
    except Exception as error:
        reason = f"the reference could not be computed: {headline(error)}"
        return {"status": "unverified", "reason": reason}
    values = {
        "error_abs": result.error_abs,
        "error_ratio": max(result.ratio, slope_ratio),
        "error_rows": result.rows,
    }
    if result.agrees and slope_ratio <= 1.0:
        return {"status": "ok", "reason": "", **values}
    finding = (
        f"gradients differ from those of float64 by up to {slope_ratio:.3g} times"
        if result.agrees
        else f"off the float64 reference by up to {result.error_abs:.3g}, {result.ratio:.3g} times"
    )
    reason = f"{finding} the allowed error; see: {subject.check_command}"
    return {"status": "unverified", "reason": reason, **values}


def verify(
    subject: Subject, module: nn.Module, inputs: Inputs, direction: str, samples: Samples
) -> None:
    """Compare what was timed with the reference, after the clock has stopped.

    Raises:
        Unverified: the output of a timed call is wrong, is not a plain tensor of its own, or
            changed after the call had returned.
    """
    if fault := samples.form_fault():
        raise Unverified(fault)
    if not samples.items:
        raise Unverified("no output of a timed call was kept, so that none could be compared")
    chance = random.SystemRandom()  # a subject that knew the rows could compute only those
    if direction != "forward_backward":
        # all are held to one module in float64, and that by one of them to the other reference
        held = chance.choice(samples.items)
        rows = {"max_rows": _TIMED_ROWS, "chance": chance}
        for sample in samples.items:
            (output,) = sample.copies
            how = {**rows, "with_scalar": sample is held}
            result = _agreement(subject, module, sample.inputs, output, **how)
            if not result.agrees:
                raise Unverified(
                    f"the output of a timed call is off by up to {result.error_abs:.3g}, "
                    f"{result.ratio:.3g} times the allowed error, though an untimed one was right: "
                    "it depends on earlier calls or on being timed"
                )
        return
    if not gradient_ratio(subject, module, inputs) <= 1.0:
        raise Unverified("its gradients are wrong after it was timed, and were right before")
    sample = chance.choice(samples.items)
    shapes = [tensor.shape for tensor in (inputs.query, inputs.key, inputs.value)]
    if [tensor.shape for tensor in sample.copies[:3]] != shapes:
        return  # one is missing, such as that of an unused query
    ratio = gradient_ratio(subject, module, sample.inputs, sample.copies, chance)
    if not ratio <= 1.0:
        raise Unverified(
            f"a gradient of a timed call is off by {ratio:.3g} times the allowed error, though "
            "those of untimed calls were right: it depends on the upstream gradient or on being "
            "timed"
        )


def is_blind() -> bool:
    """Whether a wrong output passes as right, because code replaced the comparison."""
    try:
        query, key, value = torch.arange(96.0, device="cpu").sin().view(3, 4, 8)
        module = TEXTBOOK.maker.make(8, 8)
        with torch.device("cpu"):
            return agreement(TEXTBOOK, module, Inputs(query, key, value), value + 1).agrees
    except Exception:
        return True
