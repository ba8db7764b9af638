"""The result of a probe: answers, the line for the command, and a spec."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from attnbench.errors import StyleError
from attnbench.specs import MechanismSpec
from attnbench.specs.conventions import format_conventions
from attnbench.subject.probing.probed_calls import Answer, Calls
from attnbench.subject.probing.questions import QUESTIONS, find_layout
from attnbench.subject.styles.callee import name_of
from attnbench.subject.styles.functions import flash, sdpa
from attnbench.subject.styles.renaming import renamed
from attnbench.subject.styles.signature import keywords_of

_STYLES: Mapping[str, Callable[..., MechanismSpec]] = MappingProxyType(
    {"sdpa": sdpa, "flash": flash}
)
_STYLE_OF = MappingProxyType({"(B, H, L, E)": "sdpa", "(B, L, H, E)": "flash"})
_KEPT = MappingProxyType(
    {
        "causal": "causal",
        "empty_rows": "empty_rows",
        "hidden_slots": "hidden_slots",
        "mask_value": "mask_value",
        "internal_dtype": "internal_dtype",
        "gradients": "gradients",
    }
)
"""Conventions, and the questions that answer them."""
_CLAIMS = MappingProxyType(
    {
        "groups": ("enable_gqa", "neighbours"),
        "window": ("window_size", "(left, right), own key besides"),
        "softcap": ("softcap", "before the mask"),
    }
)
"""Questions, each with what a spec accepts only if that is the answer."""


@dataclass(frozen=True)
class Probe:
    """What small calls showed of a callee.

    Args:
        name: of the callee.
        answers: by question.
        conventions: those that were inferred, under the names that specs use.
        style: the style of call; ``None`` where none passes what the callee takes.
        callee: what a spec is made of.
    """

    name: str
    answers: Mapping[str, Answer]
    conventions: Mapping[str, Any]
    style: str | None
    callee: Any

    @property
    def options(self) -> str | None:
        """The options of ``attnbench check``; ``None`` where no style fits."""
        if self.style is None:
            return None
        given = [f"--convention {format_conventions({k: v})}" for k, v in self.conventions.items()]
        return " ".join([f"--as {self.style}", *given])

    @property
    def spec(self) -> MechanismSpec:
        """A spec with the conventions that were inferred, and without flags of another meaning.

        Raises:
            StyleError: the callee is a spec itself, or no style passes what it takes.
        """
        if isinstance(self.callee, MechanismSpec):
            raise StyleError(f"{self.name} is a spec already: give it the conventions.")
        if self.style is None:
            found = self.answers["layout"], self.answers.get("boolean")
            said = "; ".join(f"{a.question}: {a.value or a.shown}" for a in found if a)
            raise StyleError(f"no style calls {self.name} ({said}): wrap it in a function.")
        fields: dict[str, Any] = {"conventions": dict(self.conventions)}
        if self.answers["scale"].value != "1/sqrt(E)":
            fields["reference"] = None
        made = _STYLES[self.style](self.callee, **fields)
        other = {
            flag
            for question, (flag, meaning) in _CLAIMS.items()
            if self.answers[question].status == "inferred"
            and self.answers[question].value != meaning
        }
        accepts = tuple(flag for flag in made.accepts if flag not in other)
        return replace(made, accepts=accepts)


def probe(function: Any, *, call: str | None = None) -> Probe:
    """Infer by small calls which conventions a function of query, key and value follows.

    Args:
        function: a function, a module, or a spec of a mechanism.
        call: what its arguments are called, as ``"f(queries=query, keys=key, values=value)"``.

    Raises:
        StyleError: it is not callable, or nothing tells its arguments.
    """
    if isinstance(function, MechanismSpec):
        named = {name: name for name in ("attn_mask", *function.accepts)}
        calls = Calls(lambda size: function.make(size, size, size), named, tuple(named))
        name = function.name
    else:
        function = function if call is None else renamed(function, call)
        keywords = keywords_of(function) if callable(function) else None
        if keywords is None:
            raise StyleError(f"nothing tells the arguments of {function!r}; wrap it in a function.")
        calls = Calls(lambda size: function, keywords.named, keywords.names)
        name = name_of(function)
    answers = {"layout": find_layout(calls)}
    if answers["layout"].status == "inferred":
        answers |= {key: ask(calls) for key, ask in QUESTIONS.items()}
    conventions = _conventions(answers, takes_lengths="valid_lens" in calls.named)
    hides = answers.get("boolean", answers["layout"]).value == "True = hides"
    unfit = hides or isinstance(function, MechanismSpec)
    style = None if unfit else _STYLE_OF.get(str(answers["layout"].value))
    return Probe(name, answers, conventions, style, function)


def _conventions(answers: Mapping[str, Answer], *, takes_lengths: bool) -> dict[str, Any]:
    found = {
        key: answers[question].value
        for key, question in _KEPT.items()
        if question in answers and answers[question].status == "inferred"
    }
    boolean, floating = answers.get("boolean"), answers.get("floating")
    if boolean is None or floating is None or "ambiguous" in (boolean.status, floating.status):
        return found
    forms = ["boolean"] if str(boolean.value).startswith("True = may") else []
    forms += ["keys"] if str(boolean.value).endswith("one row") else []
    forms += ["floating"] if floating.value == "added to the scores" else []
    if found.get("mask_value") == -math.inf:
        del found["mask_value"]
    if forms == ["boolean", "floating"]:
        return found  # as by default, with lengths where they are taken
    forms += ["lengths"] if takes_lengths else []
    return found | {"masks": tuple(forms)}
