"""A subject in the judge's process whose calls are answered by the candidate's.

It has no gradients. In float64 it answers with the right output: that is what the references of the
invariants run, and no code of the candidate may have a part in a reference.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench import Inputs
from attnbench.adapters import flash, sdpa
from attnbench.errors import UsageError
from attnbench.testing import expected, keywords_of, resolve
from attnbench_judge.process.confined import Confined

STYLES: Mapping[str, tuple[Callable[..., Any], str]] = {
    "sdpa": (sdpa, "top_left"),
    "flash": (flash, "bottom_right"),
}
"""For each style of call that can be judged, its adapter and where causality ends."""

_ACCEPTED = ("is_causal", "scale", "enable_gqa")
_SCALES = "the judge's own calls give scales, positive ones: torch's function gives NaN for others"
_REPEATED = (
    "calls_leave_no_trace",
    "many_calls_agree",
    "outputs_are_final",
    "weights_sum_to_one",
)
_IN_OTHERS = "the judge's own calls come again in any order, and outputs are read again later"
"""Why invariants that take half of all calls, or that wait, are left out."""
_ERRORS = (NotImplementedError, AssertionError, ValueError, TypeError)


class Proxy:
    """A function that a confined process computes, and the subject that the invariants see.

    Args:
        cell: the process; the function is its first callee, of which its side tells name and
            arguments.
        style: a key of :data:`STYLES`, which only torch's own function needs not be told.
        conventions: which it follows.

    Raises:
        UsageError: the style is missing, or cannot be judged.
        StyleError: the callee's arguments do not fit it.
    """

    def __init__(self, cell: Confined, style: str | None, conventions: Mapping[str, Any]) -> None:
        described = cell.callees[0]
        if style is None and described.get("name") == "scaled_dot_product_attention":
            style = "sdpa"
        if style is None or style not in STYLES:
            what = "no style is given" if style is None else f"style {style} cannot be judged"
            raise UsageError(f"{what}: add --as {' or --as '.join(STYLES)}.")
        self.cell, self.style = cell, style
        adapter, causal = STYLES[style]
        self.causal = conventions.get("causal", causal)

        def function(*tensors: Tensor, **given: Any) -> Any:
            return self._call(*tensors, **given)

        function.__name__ = "candidate"  # its own name may be anything
        function.__doc__ = str(described.get("text"))
        # what is no signature makes inspect raise, as for functions without one
        function.__signature__ = _signature(described.get("arguments")) or 0  # type: ignore[attr-defined]
        keywords = keywords_of(function)
        self.names: Mapping[str, str] = {} if keywords is None else keywords.named
        spec = adapter(
            function,
            conventions={"hidden_slots": "finite", "gradients": False, **conventions},
            dtypes=("float32", "bfloat16", "float16"),
        )
        exempt = {"scale_multiplies_scores": _SCALES, **dict.fromkeys(_REPEATED, _IN_OTHERS)}
        kept = tuple(one for one in spec.accepts if one in _ACCEPTED)
        (self.subject,) = resolve(replace(spec, accepts=kept, exempt={**spec.exempt, **exempt}))

    @property
    def grouped(self) -> bool:
        """Whether it takes grouped heads: by a keyword, or in the style of flash without one."""
        return "enable_gqa" in (self.subject.accepts if self.style == "flash" else self.names)

    def _call(self, *tensors: Tensor, **given: Any) -> Any:
        if tensors[0].dtype == torch.float64:
            return self._right(*tensors, **given)
        answer = self.cell.call(tensors, given, back=True)
        if answer.raised is not None:
            name, text = answer.raised
            kind = next((error for error in _ERRORS if error.__name__ == name), RuntimeError)
            raise kind(text if kind.__name__ == name else f"{name}: {text}")
        assert answer.output is not None
        return answer.output.clone()  # which the invariants may change

    def _right(self, *tensors: Tensor, **given: Any) -> Tensor:
        meanings = {name: meaning for meaning, name in self.names.items()}
        keywords = {meanings[name]: value for name, value in given.items()}
        turned = self.style == "flash"
        query, key, value = (t.transpose(1, 2) if turned else t for t in tensors)
        output = expected(Inputs(query, key, value, causal=self.causal, **keywords)).output
        return output.transpose(1, 2) if turned else output


def _signature(arguments: Any) -> Any:
    try:
        return inspect.Signature(
            [
                inspect.Parameter(name, kind, default=None if optional else inspect.Parameter.empty)
                for name, kind, optional in (
                    (str(name), list(inspect._ParameterKind)[int(kind)], bool(optional))
                    for name, kind, optional in arguments
                )
            ]
        )
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
