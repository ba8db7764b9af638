"""The result of a probe: answers, the line for the command, and a spec."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.calling.adapted import name_of
from attnbench.calling.keywords import FIRST, MEANINGS, Keywords, keywords_of, order_of
from attnbench.calling.probing.mask_questions import ONE_ROW
from attnbench.calling.probing.probed_calls import Answer, Calls
from attnbench.calling.probing.questions import QUESTIONS
from attnbench.calling.styles.constructors import constructor_arguments
from attnbench.calling.styles.fitting import fits, fitting
from attnbench.calling.styles.renaming import parsed, renamed
from attnbench.calling.styles.style_choice import adapted
from attnbench.calling.styles.textbook_calls import SLOTS, has_textbook_names
from attnbench.errors import StyleError
from attnbench.specs import DTYPES, MechanismSpec
from attnbench.specs.conventions import Conventions, format_conventions

_MEANINGS = {own: what for what, names in {**FIRST, **MEANINGS}.items() for own in names}
_SCALE = "1/sqrt(E)"
_STYLE_OF = {"(B, H, L, E)": "sdpa", "(B, L, H, E)": "flash"}
_OF_FUNCTIONS = tuple(_STYLE_OF.values())
"""Styles to which a probe says the conventions; others find them out themselves."""

_CLAIMS = {
    "groups": ("enable_gqa", "neighbours"),
    "window": ("window_size", "(left, right), own key besides"),
    "softcap": ("softcap", "before the mask"),
    "dropout": ("dropout_p", "on weights, rescaled"),
    "weights": ("dropout_p", "before dropout"),
}
"""Questions, each with what is passed only if that is the answer."""


@dataclass(frozen=True)
class Probe:
    """What small calls showed of a callee.

    Args:
        name: the callee's name.
        answers: the answers, by question.
        conventions: the conventions that were inferred, under the names that specs use.
        style: the style of call; ``None`` where none passes what the callee takes.
        callee: what a spec is made of.
        call: what its arguments are called, where the style knows them by other names.
    """

    name: str
    answers: Mapping[str, Answer]
    conventions: Mapping[str, Any]
    style: str | None
    callee: Any
    call: str | None = None

    @property
    def options(self) -> str | None:
        """The options of ``attnbench check``; ``None`` where no style fits, or none says enough."""
        if self.style is None or self._scores_otherwise:
            return None
        if self.style not in _OF_FUNCTIONS:
            return f"--as {self.style}"
        known = adapted(self.callee, self.style, call=self.call).conventions
        usual = {**vars(Conventions()), **known}
        given = [
            f"--convention {format_conventions({key: value})}"
            for key, value in self.conventions.items()
            if repr(value) != repr(usual[key])
        ]
        renaming = [] if self.call is None else [f'--call "{self.call}"']
        dtypes = [] if self._dtypes is None else [f"--dtype {one}" for one in self._dtypes]
        return " ".join([f"--as {self.style}", *renaming, *given, *dtypes])

    @property
    def _scores_otherwise(self) -> Answer | None:
        """What shows that a reference of scaled dot-product attention is wrong for it."""
        if self.style not in _OF_FUNCTIONS:
            return None
        scale, extra = self.answers["scale"], self.answers["extra_keys"]
        if extra.value:
            return extra
        return None if scale.value == _SCALE else scale

    @property
    def _dtypes(self) -> tuple[str, ...] | None:
        """The dtypes that it takes; ``None`` if it takes all."""
        taken: tuple[str, ...] | None = self.answers["dtypes"].value
        return None if taken is None or len(taken) == len(DTYPES) else taken

    @property
    def proposal(self) -> str:
        """A sentence that says how to name it to a command, or why no style calls it."""
        if (other := self._scores_otherwise) is not None:
            shown = f"{other.question}: {other.value or other.shown}"
            return (
                f"No option says what small calls show ({shown}): write beside it\n"
                "  from attnbench.adapters import probe\n"
                f"  SPEC = probe({self.name}).spec"
            )
        if self.style is not None:
            return f"Small calls show how it is called: {self.options}"
        layout = self.answers["layout"].value
        if inspect.isclass(self.callee) and layout in _STYLE_OF:
            given = _filled(self.callee, 8).items()
            made = ", ".join(f"{name}={value}" for name, value in given)
            return (
                f"A class is not called as {_STYLE_OF[layout]}, and an instance is: "
                f"write beside it\n  from attnbench.adapters import probe\n"
                f"  SPEC = probe({self.name}({made})).spec"
            )
        found = [self.answers["layout"]]
        if (groups := self.answers.get("groups")) and groups.value == "stride":
            found.append(groups)
        facts = "; ".join(f"{a.question}: {a.value or a.shown}" for a in found)
        return (
            f"No style calls {self.name} as small calls show it ({facts}): "
            "wrap it in a function of query, key and value that returns the output."
        )

    @property
    def spec(self) -> MechanismSpec:
        """A spec with the conventions that were inferred, and without flags of another meaning.

        Raises:
            StyleError: the callee is a spec itself, or no style passes what it takes.
        """
        if isinstance(self.callee, MechanismSpec):
            raise StyleError(f"{self.name} is a spec already: give it the conventions.")
        if self.style is None:
            raise StyleError(self.proposal)
        if self.style not in _OF_FUNCTIONS:
            return adapted(self.callee, self.style)  # type: ignore[no-any-return]
        fields: dict[str, Any] = {"conventions": dict(self.conventions), "dtypes": self._dtypes}
        fields["name"] = self.name
        if self._scores_otherwise:
            fields["reference"] = None
        made: MechanismSpec = adapted(self.callee, self.style, call=self.call, **fields)
        return made


def probe(function: Any, *, call: str | None = None) -> Probe:
    """Infer by small calls which conventions a function of query, key and value follows.

    Args:
        function: a function, a module, a spec of a mechanism, or a class, which is made with the
            sizes that its constructor asks for by their usual names.
        call: what its arguments are called, as ``"f(queries=query, keys=key, values=value)"``.

    Raises:
        StyleError: it is not callable, or nothing tells its arguments.
    """
    if isinstance(function, MechanismSpec):
        named = {name: name for name in ("attn_mask", *function.accepts)}
        calls = Calls(lambda size: function.make(size, size, size), Keywords(tuple(named)))
        calls.named = named
        name = function.name
    elif inspect.isclass(function):
        sample, name = _instance(function, 8), name_of(function)
        keywords = keywords_of(sample)
        if keywords is None:
            raise StyleError(f"nothing tells the arguments of {name}; wrap it in a function.")
        calls = Calls(lambda size: _instance(function, size), keywords)
    else:
        called = function if call is None else renamed(function, call)
        keywords = keywords_of(called) if callable(called) else None
        if keywords is None:
            raise StyleError(f"nothing tells the arguments of {function!r}; wrap it in a function.")
        calls = Calls(lambda size: called, keywords)
        name = name_of(function)
    for question, (calls.question, ask) in QUESTIONS.items():
        calls.answers[question] = ask(calls)
        if calls.answers["layout"].status != "inferred":
            break
    answers = calls.answers
    conventions = _conventions(answers, takes_lengths="valid_lens" in calls.named)
    if inspect.isclass(function):
        return Probe(name, answers, conventions, _style_of_class(function), function, call)
    style = _STYLE_OF.get(str(answers["layout"].value))
    by_stride = answers.get("groups") and answers["groups"].value == "stride"
    if by_stride and "enable_gqa" not in calls.named and style == "flash":
        style = None  # that style has no other word for groups than to call with them
    if style is None or calls.usual or isinstance(function, MechanismSpec):
        shown = None if isinstance(function, MechanismSpec) or call else _style_by_names(function)
        return Probe(name, answers, conventions, shown, function, call)
    call = _call_as_shown(function, style, call, answers)
    if fits(function if call is None else renamed(function, call), style) is not None:
        style = None
    return Probe(name, answers, conventions, style, function, call)


def _filled(made: Any, size: int) -> dict[str, Any]:
    """The arguments with which a class is made."""
    given = constructor_arguments(made, size, size, size, SLOTS)
    if isinstance(given, str):
        raise StyleError(
            f"{name_of(made)} is a class whose constructor asks for {given!r}, which is no usual "
            "name of a size: make an instance beside it, and name that."
        )
    return given


def _instance(made: Any, size: int) -> Any:
    given = _filled(made, size)
    try:
        return made(**given)
    except Exception as error:
        sizes = ", ".join(f"{name}={value}" for name, value in given.items())
        raise StyleError(
            f"{name_of(made)}({sizes}) raises {type(error).__name__}: {error}; make an instance "
            "beside it, and name that."
        ) from error


def _style_of_class(made: Any) -> str | None:
    if has_textbook_names(made):
        return "textbook"
    keywords = keywords_of(made.forward) if hasattr(made, "forward") else None
    masked = keywords is not None and "attn_mask" in keywords
    return "multihead" if masked and fits(made, "multihead") is None else None


def _style_by_names(function: Any) -> str | None:
    """The style that its argument names alone show; ``None`` for none, or for several."""
    if has_textbook_names(function):
        return "textbook"
    found = [style for style in fitting(function) if style not in _OF_FUNCTIONS]
    return found[0] if len(found) == 1 else None


def _call_as_shown(
    function: Any, style: str, call: str | None, answers: Mapping[str, Answer]
) -> str | None:
    """How its arguments are called, without those of another meaning than a style's."""
    other = {
        flag
        for question, (flag, meaning) in _CLAIMS.items()
        if answers[question].status == "inferred" and answers[question].value != meaning
    }
    hides = answers["boolean"].value == "True = hides"
    turned = {"attn_mask": "~attn_mask"} if hides else {}
    if call is not None:
        order, own = parsed(call)
        passed = [*(("", meaning) for meaning in order), *own.items()]
    else:
        keywords = keywords_of(function)
        assert keywords is not None  # it was called by them
        passed = [(name, name) for name in keywords.names if name in _MEANINGS]
        as_usual = order_of(keywords.names) in ([], [0, 1, 2]) and fits(function, style) is None
        if as_usual and not turned and not other & {*keywords.named}:
            return None
    if style == "flash":
        turned["is_causal"] = "causal"  # which is its name there
    meant = [(own, _MEANINGS.get(meaning, meaning)) for own, meaning in passed]
    passed_as = [
        f"{own}={turned.get(meaning, meaning)}" if own else turned.get(meaning, meaning)
        for own, meaning in meant
        if meaning not in other
    ]
    return f"f({', '.join(passed_as)})"


def _conventions(answers: Mapping[str, Answer], *, takes_lengths: bool) -> dict[str, Any]:
    found = {
        key: answer.value
        for key, answer in answers.items()
        if answer.status == "inferred" and hasattr(Conventions, key)
    }
    boolean, floating = answers.get("boolean"), answers.get("floating")
    if boolean is None or floating is None or boolean.status == "ambiguous":
        return found
    forms = ["boolean"] if boolean.status == "inferred" else []  # a hiding one is turned
    forms += ["keys"] if boolean.value == ONE_ROW else []
    forms += ["floating"] if floating.value == "added to the scores" else []
    if found.get("mask_value") == -math.inf:
        del found["mask_value"]
    if not forms and floating.status == "ambiguous":
        return found
    by_default = forms == ["boolean", "floating"]
    forms += ["lengths"] if takes_lengths or by_default else []
    return found | {"masks": tuple(forms)}
