"""The likely cause of a subject's failures, and the failure that shows it best.

A *clue* is a cause that an error itself names, a mistake that reproduces the wrong outputs, or a
violated invariant. ``causes.json`` lists the invariants in order, the most specific first, each
with the cause that it points at, or none. A wrong cause is worse than none, so that an invariant
that many mistakes violate counts only if few others failed with it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from attnbench.cases.case import Case
from attnbench.checking.cause.failing_calls import (
    count_of_wide,
    fails_narrow,
    is_decisive,
    is_forward,
    is_open,
)
from attnbench.checking.known_causes import (
    cause_of_mistake,
    is_form,
    known_causes,
    mistake_of,
    shown_by,
    table,
)
from attnbench.checking.outcomes import KEEPS_CONTRACT, Failure, Outcome

_NAMING_SHARE = 0.3
"""Share of the failures, unless the contract is one, that must name a cause themselves."""

_MOST_FAILURES = 3
"""With more failures that point elsewhere, an invariant on outputs in general is no clue."""

_DISTURBING = ("inputs_changed", "dropout_in_evaluation", "not_deterministic")
"""These named causes come before any mistake, since the next call is not what it seems."""

NAN_ONLY = ("hidden_slots_may_hold_nan", "hidden_slots_may_hold_nan_in_training")
"""Only NaN in padding violates these, so that other failures have another cause."""

_SCALAR, _FORMULA, _NARROW = "agrees_with_scalar_reference", "scores_formula", "half_precision"

_FINER = {_FORMULA, "side_ignored_padded", "side_ignored_cached", "side_ignored_before"}
"""Causes that an error may name instead of the one that its invariant points at."""

_FLOAT32 = "computed_in_float32"
"""This mistake shows in float64 alone."""

_COMBINED = "options_combined"
"""This named cause says that each option is right without the others."""

_ALL_MASKS = {"mask_ignored", "all_masks_ignored", "causality_ignored", "lengths_ignored"}
"""Different failures that show several of these have one cause: no kind of mask is applied."""

_OF_SCORES = (None, _NARROW, "not_finite", "log_sum", "splits", "stored_scales")
"""Causes of specific invariants that other scores violate as well."""

_STATE = "calls_leave_no_trace"
"""What fails this has another cause than rounding, and other calls go wrong by it."""

_NUMERIC = ("agrees_with_float64", "finite_at_extremes", "gradients_are_finite_at_extremes")
"""With the general ones, these point at half precision if they fail with half types only."""

_OPEN = (_SCALAR, "constant_values_come_back", "weights_sum_to_one", "output_lies_within_values")
"""What these say of a call without any mask is no mistake of masks."""

_ELEMENTARY = (("weights_sum_to_one", "none", "causal"), ("keys_permute_freely", "none"))
"""What these say of a call with such a mask is true, whatever it comes from."""

_KEYS = "every_attendable_key_matters"
"""Where a large value changes nothing at all, its key is not read; rounding leaves something."""


@dataclass(frozen=True)
class Clue:
    """A clue that points at a cause.

    Args:
        kind: ``says`` (an error names it), ``makes`` (a mistake explains it), or ``fails``.
        what: the cause that is named, the mistake, or the invariant.
        cause: a key of ``causes`` in ``causes.json``.
    """

    kind: str
    what: str
    cause: str


@functools.cache
def _general() -> frozenset[str]:
    return frozenset(dict(known_causes()["general"]))


def clue_of(outcomes: Iterable[Outcome]) -> Clue | None:
    """The first clue in the failures of one subject; ``None`` without any."""
    found = {o.invariant: o.failure for o in outcomes if o.failure is not None}
    failures = {n: _as_its_property(failure) for n, failure in found.items()}
    failures = {n: failure for n, failure in failures.items() if n not in NAN_ONLY} or failures
    if any(_FLOAT32 in failure.mistakes for failure in failures.values()):
        cases = {n: Case.from_id(f.case) for n, f in failures.items() if f.case is not None}
        double = {name for name, case in cases.items() if case.dtype == "float64"}
        others = {n: failure for n, failure in failures.items() if n not in double}
        failures = others or failures  # what fails in other dtypes too has another cause
    half = failures.get(KEEPS_CONTRACT)
    if half and fails_narrow(half) and count_of_wide(failures) > _MOST_FAILURES * (not half.raised):
        failures = {n: failure for n, failure in failures.items() if n != KEEPS_CONTRACT}
    options = [n for n in known_causes()["accepts"] if n in failures]
    if any(failures[name].named != _COMBINED for name in options):  # one is wrong alone
        failures = {n: failure for n, failure in failures.items() if failure.named != _COMBINED}
    cause_named = _named_cause(_forward(failures))
    if cause_named in _DISTURBING:
        return Clue("says", cause_named, cause_named)
    state = failures.get(_STATE)
    if state and KEEPS_CONTRACT not in failures and not (state.named or state.raised):
        return Clue("fails", _STATE, "state_kept")  # what was kept is wrong in other calls
    exact, deviating = _mistakes(failures)
    if (made := _made(exact)) is not None:
        return _rather(made, failures)
    if cause_named is None:
        cause_named = next((f.named for f in _forward(failures).values() if is_decisive(f)), None)
    if cause_named in (None, _FORMULA) and (made := _made(deviating)) is not None:
        return made
    if cause_named is not None:
        return _rather(Clue("says", cause_named, cause_named), failures)
    if KEEPS_CONTRACT in failures:  # any other call fails as the contract's does
        return None
    wide = {n: failure for n, failure in failures.items() if not fails_narrow(failure)}
    return _clue_in_table(wide or failures, failures)  # half types lose nothing in wide ones


def _as_its_property(failure: Failure) -> Failure:
    """A failure that names a form of its property's cause, as if it named nothing."""
    return replace(failure, named=None) if is_form(failure.named) else failure


def _rather(clue: Clue, failures: Mapping[str, Failure]) -> Clue:
    """A clue, or the failure that tells more than its cause."""
    for name in known_causes()["rather"].get(clue.cause, ()):
        if name in failures:
            return Clue("fails", name, failures[name].named or str(dict(table())[name]))
    return clue


def _mistakes(failures: Mapping[str, Failure]) -> tuple[list[str], list[str]]:
    """The mistakes that give the output, and those that only say how weights deviate, which say
    nothing where a function contradicts itself, and in a failure of a specific invariant.
    """
    causes = known_causes()
    specific, others = dict(causes["specific"]), {*causes["accepts"], *causes["with_options"]}
    others |= {n for n, cause in specific.items() if cause in _OF_SCORES}
    wide = {name for name, failure in failures.items() if not fails_narrow(failure)}
    made = [(n, mistake_of(name)) for n, f in failures.items() for name in f.mistakes[:1]]
    exact = [name for _, name in made if name not in causes["deviations"]]
    exact = [name for name in exact if not wide or cause_of_mistake(name) != _NARROW]
    if any(is_open(failures[name]) for name in wide.intersection(_OPEN)):
        exact = [name for name in exact if cause_of_mistake(name) not in causes["of_masks"]]
    told = [name for n, name in made if name in causes["deviations"] and n not in specific]
    return exact, [] if wide & specific.keys() - others else told


def _made(mistakes: list[str]) -> Clue | None:
    """The clue that mistakes are, if they have one cause: others only resemble one of them."""
    if _ALL_MASKS.issuperset(mistakes) and len({*mistakes}) > 1:
        mistakes = ["all_masks_ignored"]
    causes = set(map(cause_of_mistake, mistakes))
    return Clue("makes", mistakes[0], *causes) if len(causes) == 1 else None


def _forward(failures: Mapping[str, Failure]) -> Mapping[str, Failure]:
    """The failures that are of no gradient, if a specific one is: wrong outputs have wrong ones."""
    forward = dict(filter(is_forward, failures.items()))
    specific = dict(known_causes()["specific"]).keys()
    return forward if forward.keys() & specific else failures


def _clue_in_table(
    candidates: Mapping[str, Failure], failures: Mapping[str, Failure]
) -> Clue | None:
    """The first clue of the table among some of the failures."""
    wide_count = count_of_wide(failures)
    causes = dict(table())
    for name, default in table():
        candidate = candidates.get(name)
        default = candidate.named if candidate and candidate.named in _FINER else default
        if (
            candidate is None
            or candidate.raised
            or _follows(name, failures)
            or (default and candidate.named not in (None, default))
        ):
            continue
        unread = name == _KEYS and candidate.got == 0
        narrow = not unread and fails_narrow(candidate) and name in (*_NUMERIC, *_general())
        cause = _NARROW if narrow else default or candidate.named
        if cause == _NARROW and wide_count > _MOST_FAILURES:
            continue
        others = [
            n
            for n in candidates
            if n == name or (causes.get(n) != default and not _follows(n, failures))
        ]
        many = len(others) > _MOST_FAILURES and default is not None
        if cause is not None and not (name in _general() and many):
            return Clue("fails", name, cause)
        scalar = failures.get(_SCALAR)  # all else follows from scores of another formula
        is_formula = scalar is not None and scalar.named == _FORMULA
        return Clue("says", _FORMULA, _FORMULA) if is_formula else _elementary(candidates)
    return None


def _elementary(failures: Mapping[str, Failure]) -> Clue | None:
    """What an elementary failure says is true whatever else fails, unless gradients follow."""
    is_forward_wrong = any(map(is_forward, failures.items()))
    for named, *masks in _ELEMENTARY if is_forward_wrong else (("gradients_are_right", "none"),):
        case = failures[named].case if named in failures else None
        if case and Case.from_id(case).mask in masks and not failures[named].named:
            return Clue("fails", named, str(dict(table())[named]))
    return None


def _follows(name: str, failures: Mapping[str, Failure]) -> bool:
    """Whether an invariant fails because another one does, perhaps in calls with an operation.

    Pages and packed documents are called with options too, and are right without if all else is.
    What a reference tells without any mask is not about masks.
    """
    causes = known_causes()
    scalar = failures.get(_SCALAR)
    if scalar is not None and is_open(scalar) and name in causes["with_masks"]:
        return True
    options = causes["accepts"].keys() & failures.keys()
    optional = name in causes["with_options"] and options and _SCALAR not in failures
    program = failures[name].program if name in failures else ""
    others = {n for word, n in causes["follows_with"].get(name, {}).items() if word in program}
    return bool(optional) or not failures.keys().isdisjoint({causes["follows"].get(name), *others})


def _named_cause(failures: Mapping[str, Failure]) -> str | None:
    """The cause that the contract's failure names, or else enough of the failures."""
    contract = failures.get(KEEPS_CONTRACT)
    if contract is not None and contract.named is not None:
        return contract.named
    padding = failures.get("padded_tokens_are_inert")
    if padding is not None and padding.named is not None:  # it says why padding is not inert
        return padding.named
    named = {name: f.named for name, f in failures.items() if name not in _NUMERIC}
    causes = [cause for cause in named.values() if cause is not None]
    for cause in dict.fromkeys(causes):
        if causes.count(cause) >= _NAMING_SHARE * len(failures):
            return cause
    return None


def with_cause(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Add the likely cause to the failure of each subject that shows it best."""
    outcomes = list(outcomes)
    for subject in dict.fromkeys(o.subject for o in outcomes if o.failure is not None):
        places = [i for i, outcome in enumerate(outcomes) if outcome.subject == subject]
        clue = clue_of([outcomes[i] for i in places])
        lead = None if clue is None else _best_failure(clue, [outcomes[i] for i in places])
        found = [o.failure.mistakes for o in outcomes if o.subject == subject and o.failure]
        for i in places:
            outcome = outcomes[i]
            if outcome.failure is not None:
                failure = replace(outcome.failure, cause=None)
                if clue is not None and outcome is lead:
                    own = (str(failure.named),) * is_form(failure.named) + failure.mistakes
                    every = sum(found, ()) if clue.kind == "makes" else own
                    failure = replace(failure, cause=clue.cause, mistakes=_of(clue, every))
                outcomes[i] = replace(outcome, failure=failure)
    return tuple(outcomes)


def _of(clue: Clue, mistakes: Iterable[str]) -> tuple[str, ...]:
    """Mistakes, each once, those with the cause of a clue first."""
    once = dict.fromkeys(mistakes)
    return tuple(sorted(once, key=lambda name: cause_of_mistake(name) != clue.cause))


def _best_failure(clue: Clue, outcomes: Sequence[Outcome]) -> Outcome:
    """The failure that shows a cause: one of its topic, one that names it, or the first."""
    order = {name: i for i, (name, _) in enumerate(table())}
    places = {name: i for i, name in enumerate(shown_by(clue.cause))}

    def rank(outcome: Outcome) -> tuple[int, bool, int]:
        failure = outcome.failure
        assert failure is not None
        name = outcome.invariant
        bears_it = {
            "says": failure.named == clue.cause,
            "makes": bool(failure.mistakes),
            "fails": name == clue.what,
        }[clue.kind]
        return places.get(name, len(places)), not bears_it, order.get(name, len(order))

    return min((o for o in outcomes if o.failure is not None), key=rank)
