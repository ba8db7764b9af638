"""Invariants on torch's ways to transform a call: compile and vmap.

Compiling takes a tenth of a second to seconds, so these look at few cases: the sizes and masks that
make a graph of their own.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from attnbench import Case, Inputs, InvariantViolation, RefusalError, Subject
from attnbench.errors import headline
from attnbench.strategies import CaseStrategy, listed
from attnbench.testing import (
    KINDS,
    Baseline,
    benign,
    current_profile,
    fails,
    graph_breaks,
    knows_heads,
    leaves_of,
    reject,
    same_gradients,
)
from attnbench_plugins.properties import invariant

_GUARD, _SIZED = "GuardOnDataDependentSymNode", re.compile(r"Size-like symbols: (?!none)")

_HEADS = Case((2, 3), 4, 6, 8, 6, 5, mask="boolean")
_CASES = (
    _HEADS,
    _HEADS.replace(mask="causal_padding", seed=1),
    Case((2,), 3, 3, 4, 4, 4, mask="none"),
    _HEADS.replace(mask="floating", dtype="bfloat16"),
    Case((1,), 1, 7, 8, 8, 8, mask="causal"),
    Case((3,), 17, 16, 8, 8, 4, mask="boolean", seed=2),
)


class _Call(nn.Module):
    """A subject's call as a module that takes only tensors, as torch's transformations need."""

    def __init__(self, base: Baseline) -> None:
        super().__init__()
        _ = base.output  # first of all: a subject may keep what it is transformed with
        self.module = base.module
        self.names = [name for name, _ in base.inputs.tensors()]
        self.given: Inputs = base.inputs.replace(**dict.fromkeys(self.names))
        self._run = base.subject.output

    def forward(self, *tensors: Tensor) -> Tensor:
        """The output of the inputs' tensors, in the order of their names."""
        named = dict(zip(self.names, tensors, strict=True))
        return self._run(self.module, self.given.replace(**named))


def _tensors(base: Baseline) -> tuple[Tensor, ...]:
    return tuple(tensor for _, tensor in base.inputs.tensors())


_NUMBERS = itertools.count()


def _own_code() -> Callable[..., Tensor]:
    """The forward function of a call with code of its own, whose graphs no other subject's join.

    What is compiled is kept by code, up to a limit. To forget all of it between subjects would
    make kernels, too, compile their loops anew.
    """
    forward = _Call.forward
    code = forward.__code__.replace(co_name=f"call_{next(_NUMBERS)}")
    return types.FunctionType(code, forward.__globals__)


_UNSUPPORTED = (
    "must override the setup_context",
    "does not have vmap support",
    "not compiled with CUDA",
    "arguments don't support automatic differentiation",
)
"""What torch says of a ``torch.autograd.Function`` that is not written for its transforms, of code
that asks for a GPU, and of ``out=``, which has no gradients.
"""


@contextmanager
def in_one_sentence(what: str, *, may_raise: bool = False) -> Iterator[None]:
    """Convert exceptions of a transformation to one sentence, and silence its warnings.

    Args:
        what: what is done.
        may_raise: whether it may raise, which then counts as a refusal.
    """
    level = logging.getLogger("torch").level
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (InvariantViolation, RefusalError):
        raise
    except Exception as error:
        text = f"{what} raised {headline(error)}"
        # a loud refusal harms nobody; a size that follows values has no fake tensor, and no branch
        # on it can be exported
        name, sized = type(error).__name__, _SIZED.search(str(error))
        dynamic = name == "DynamicOutputShapeException" or (name == _GUARD and sized)
        if may_raise or dynamic or any(words in str(error) for words in _UNSUPPORTED):
            raise RefusalError(text) from None
        raise InvariantViolation(
            f"{text}; exempt the subject with a reason if this is not to be had"
        ) from None
    finally:
        logging.getLogger("torch").setLevel(level)


def _some(subject: Subject) -> CaseStrategy:
    """The first case, and the second unless the profile is quick; all of them in thorough."""
    number = {"quick": 1, "thorough": len(_CASES)}.get(current_profile().name, 2)
    return listed(*(subject.legal(case) for case in _CASES[:number]), enough=1)


@invariant(kinds=KINDS, cases=_some)
def compiled_equals_eager(subject: Subject, case: Case) -> None:
    """torch.compile changes neither output nor gradients."""
    backend = "aot_eager" if current_profile().name == "quick" else "inductor"
    try:
        _compiled_by(backend, subject, case)
    except InvariantViolation:
        if backend == "inductor" or fails(_compiled_by, "inductor", subject, case):
            with in_one_sentence("here (attnbench list --machine) torch.compile", may_raise=True):
                torch.compile(lambda number: number + 1, backend=backend)(torch.ones(2))
            raise
        raise RefusalError(
            f"only backend {backend!r}, which is for debugging, fails; 'inductor' agrees"
        ) from None


def _compiled_by(backend: str, subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    expected = base.output
    with in_one_sentence(f"torch.compile (backend {backend!r})"):
        call = functools.partial(torch.compile(_own_code(), backend=backend), _Call(base))
        broken = graph_breaks()
        graded = subject.conventions.gradients
        if not (graded and current_profile().name == "quick"):  # whose one call has gradients
            got = call(*_tensors(base))
            base.expect(got.detach(), f"compiled ({backend}), output", "the call as it is")
        if not graded:
            return
        inputs, leaves = leaves_of(base.module, base.inputs)
        plain = base.run(inputs)  # first, as what has no gradients refuses it
        trained = call(*(tensor for _, tensor in inputs.tensors()))
        if graph_breaks() != broken:  # graphs of code that all subjects share, up to a limit
            torch.compiler.reset()
    assert base.output is expected
    base.expect(
        trained.detach(), f"compiled ({backend}) with gradients, output", "the call as it is"
    )
    weight, change = base.other(trained), f"compiled ({backend})"
    same_gradients(trained, plain, leaves, weight, change, "the call as it is", eps=base.eps)


@invariant(
    cases=benign,
    masks=("none", "boolean", "boolean_shared", "causal", "floating", "padding"),
    regimes=("normal",),
    leads=(1, 2),
    max_features=17,
    applies=knows_heads,
)
def vmap_equals_batch(subject: Subject, case: Case) -> None:
    """torch.func.vmap over items or heads gives what a batch of them gives."""
    base = Baseline(subject, case)
    call = _Call(base)
    shape = (*base.inputs.query.shape[:-1], case.kv_len)
    # over the last leading dimension, so that lengths, which go with the first, stay whole
    axis = len(case.lead) - 1
    dims: list[int | None] = [axis, axis, axis]
    for name in call.names[3:]:
        tensor = getattr(base.inputs, name)
        whole = name == "attn_mask" and tuple(tensor.shape) == shape
        if name == "valid_lens" and axis == 0:
            reject("a length alone is no batch of lengths")
        dims.append(axis if whole else None)
    with in_one_sentence("torch.func.vmap"):
        got = torch.func.vmap(call, tuple(dims), axis)(*_tensors(base))
    base.expect(got.detach(), "under vmap over items or heads, output", "the call as it is")
