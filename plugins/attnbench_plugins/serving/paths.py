"""Laws on two methods of a layer that compute the same."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench import Case, Invariant, InvariantViolation, Subject
from attnbench.strategies import CaseStrategy
from attnbench.testing import LayerCase, LayerSubject, layer_cases


def _two_paths(law: str, statement: str, hint: str) -> Invariant:
    """A law on two methods of a module that compute the same."""

    def check(subject: Subject, case: Case) -> None:
        layer = LayerCase(subject, case)
        names = layer.subject.spec.paths[law]
        lacking = [name for name in names if not callable(getattr(layer.module, name, None))]
        if lacking:
            raise InvariantViolation(
                f"paths[{law!r}] names {lacking[0]!r}, but the module has no such method"
            )
        one, two = names
        paths = {n: layer.module if n == "forward" else getattr(layer.module, n) for n in names}

        def judge(got: Tensor, start: int, way: str) -> None:
            layer.expect(
                got,
                whole[:, start:],
                real[:, start:],
                f"{way}, output",
                f"one call of {one}",
                allowed=lambda: layer.rounding[:, start:],
            )

        with torch.no_grad():
            whole = layer.subject.call(paths[one], layer.hidden, layer.mask)[0]
            real = layer.real(layer.hidden, layer.mask)
            judge(layer.subject.call(paths[two], layer.hidden, layer.mask)[0], 0, f"by {two}")
            if layer.subject.spec.cache is None or layer.mask is not None or case.q_len < 2:
                return
            cut = 1 + layer.choose(case.q_len - 1)
            for first, last in ((one, two), (two, one), (two, two)):
                cache = layer.subject.new_cache(layer.module, len(layer.hidden))
                _, cache = layer.subject.call(paths[first], layer.hidden[:, :cut], None, cache)
                got, _ = layer.subject.call(paths[last], layer.hidden[:, cut:], None, cache)
                judge(got, cut, f"{cut} tokens by {first} and the rest by {last}")

    def applies(subject: Subject) -> str | None:
        assert isinstance(subject, LayerSubject)
        known = law in subject.spec.paths
        return None if known else f"names no methods: give paths={{{law!r}: (one, other)}}"

    return Invariant(
        name=law,
        statement=statement,
        hint=hint,
        check=check,
        kinds=("layer",),
        cases=_wide_cases,
        applies=applies,
        law=True,
    )


def _wide_cases(subject: Subject) -> CaseStrategy:
    return layer_cases(
        subject, masks=("none", "padding"), regimes=("normal",), dtypes=("float32", "float64")
    )


chunked_equals_recurrent = _two_paths(
    "chunked_equals_recurrent",
    "In chunks and step by step, all is the same: by each of two methods, and where one goes on "
    "from the other.",
    "a state, a decay or the edge of a chunk differs between the two methods",
)
absorbed_equals_expanded = _two_paths(
    "absorbed_equals_expanded",
    "With projections absorbed and expanded, all is the same: by each of two methods, and where "
    "one goes on from the other.",
    "a factor, a norm or a position is applied on one of the two paths alone",
)
