"""Outcomes of invariants on subjects, and the failures in them, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

from attnbench.specs import Clue

STATUSES = ("passed", "failed", "skipped", "inconclusive", "error", "crashed", "timeout")
"""All statuses; a report is ok if it has only ``passed`` and ``skipped``."""

GOOD = ("passed", "skipped")

KEEPS_CONTRACT = "keeps_the_contract"
"""The invariant that runs first; if it fails, others may be meaningless."""

CANARY = "canary"
"""The name of a subject that must fail; all of its outputs are NaN."""

CHANGED = "code of the subject changed the suite, so that nothing it says counts: {}"
"""The reason of the outcomes of a process whose suite was changed."""

FIRST = (
    "agrees_with_scalar_reference",
    "masking_equals_deleting",
    "calls_may_be_cut_anywhere",
    "selected_rows_go_on_as_their_sequences",
    "padded_rows_decode_as_alone",
    "left_padding_is_inert",
    "weights_sum_to_one",
    "decode_equals_prefill",
    "item_alone_equals_item_in_batch",
    "agrees_with_float64",
)
"""The invariants that run next, since most of the wrong code that was tried fails one of them."""

COMPILING = "compiled_equals_eager"
"""The invariant that runs last, since it imports the compiler for a second."""


def running_order(invariant: str) -> tuple[int, int]:
    """A sort key for names of invariants: the contract first, and slow ones last."""
    early = (KEEPS_CONTRACT, *FIRST)
    if invariant in early:
        return 0, early.index(invariant)
    return (2, 0) if invariant == COMPILING else (1, 0)


@dataclass(frozen=True)
class Failure:
    """The data of an invariant's failure. Fields that do not apply are empty.

    Args:
        invariant: name of the property.
        quantity: what has a wrong value, as an expression.
        place: index of the worst element of the quantity.
        got: its value there, a number or words.
        expected: the value that it should have, a number or words such as ``"at least 0"``.
        allowed: largest allowed difference.
        multiple: the difference as a multiple of the allowed one.
        raised: name of the exception, if the subject raised one.
        source_line: file and line of the subject's code that raised it.
        fault: what is wrong with the answer itself, whichever property is checked: ``raised``,
            ``form`` (of the result), ``nan``, ``changes`` (its input) or ``random``.
        case: id of the case at which it failed.
        smallest: whether no smaller case was found.
        replayed: whether the case comes from the database of earlier failures.
        device_lost: whether every call on its device fails since, as after an illegal access.
        program: the calls that were made of a cache, in words.
        by_design: what the spec declares if the subject is meant to be so.
        hint: what usually breaks the property.
        region: which elements are wrong, and how, in words.
        where: where alone it shows, of the cases that were tried, in words.
        script: a script in plain torch that reproduces the failure.
        clues: what explainers say, the first difference first.
    """

    invariant: str = ""
    quantity: str = ""
    place: tuple[int, ...] = ()
    got: float | str | None = None
    expected: float | str | None = None
    allowed: float | None = None
    multiple: float | None = None
    raised: str | None = None
    source_line: str | None = None
    fault: str = ""
    case: str | None = None
    smallest: bool = False
    replayed: bool = False
    device_lost: bool = False
    program: str = ""
    by_design: str = ""
    hint: str = ""
    region: str = ""
    where: str = ""
    script: str | None = None
    clues: tuple[Clue, ...] = ()

    @property
    def is_nan_alone(self) -> bool:
        """Whether both of what is compared are NaN, of which no property says more."""
        return str(self.got) == str(self.expected) == "nan"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one invariant on one subject.

    Args:
        subject: address of the subject.
        invariant: name of the invariant.
        status: one of :data:`STATUSES`.
        reason: why it was skipped, what was violated, or how many cases of each kind were seen.
        cases: number of cases on which it held or failed.
        seconds: seconds that it took.
        failure: what was found, if the status is ``failed``.
        command: the command that runs this check again, unless it passed or was skipped.
        seed: seed of the drawn cases; ``None`` draws the same cases every time.
        note: a line about the run itself, such as who could not explain its failure.
        undeclared: whether it was skipped as a law that the subject does not declare.
    """

    subject: str
    invariant: str
    status: str
    reason: str = ""
    cases: int = 0
    seconds: float = 0.0
    failure: Failure | None = None
    command: str | None = None
    seed: int | None = None
    note: str = ""
    undeclared: bool = False

    @property
    def counterexample(self) -> str | None:
        """Id of the case at which the invariant failed."""
        return self.failure.case if self.failure else None

    @property
    def reproduce(self) -> str | None:
        """The script that reproduces the failure, or else the command that does."""
        return (self.failure.script if self.failure else None) or self.command

    @property
    def ok(self) -> bool:
        """Whether it passed or was skipped."""
        return self.status in GOOD

    def noted(self, note: str) -> Outcome:
        """The outcome with a further note."""
        return replace(self, note="; ".join(filter(None, (self.note, note))))

    def to_data(self) -> dict[str, Any]:
        """The fields as plain data; NaN and infinities, which JSON lacks, become text."""
        data: dict[str, Any] = _plain(asdict(self))
        return data

    @classmethod
    def from_data(cls, row: Mapping[str, Any]) -> Outcome:
        """Read an outcome from a row of :meth:`to_data`."""
        failure = row["failure"]
        if failure is not None:
            values = {name: failure[name] for name in Failure.__dataclass_fields__}
            clues = tuple(Clue(**clue) for clue in failure["clues"])
            failure = Failure(**{**values, "place": tuple(failure["place"]), "clues": clues})
        return cls(**{**row, "failure": failure})


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def notes_of(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """The notes of outcomes, each once."""
    return tuple(dict.fromkeys(outcome.note for outcome in outcomes if outcome.note))


def key_of(outcome: Outcome) -> tuple[str, str]:
    """The subject and the invariant, which identify an outcome in a check."""
    return outcome.subject, outcome.invariant


_RANKS = (
    (
        "item_alone_equals_item_in_batch",
        "leading_sizes_fold",
        "masks_broadcast",
        "output_is_linear_in_values",
        "queries_permute_freely",
        "query_alone_equals_query_among_others",
        "valid_lengths_count_the_keys",
        "weights_sum_to_one",
    ),
    (
        "causal_and_padding_combine",
        "every_attendable_key_matters",
        "hidden_keys_stay_hidden_at_extreme_scores",
        "mask_forms_agree",
        "output_lies_within_values",
    ),
    (
        "bias_is_added_to_scores",
        "bias_of_all_keys_hides_none",
        "common_shift_of_scores_changes_nothing",
        "empty_rows_give_zeros",
        "empty_rows_have_finite_gradients",
        "grouped_heads_equal_expanded_heads",
        "key_given_again_equals_bias_of_log_2",
        "keys_permute_freely",
        "rounding_has_no_bias",
    ),
    (
        "leading_padding_equals_deleting",
        "scale_multiplies_scores",
        "trailing_padding_equals_deleting",
    ),
    (
        "decode_equals_prefill",
        "future_does_not_leak",
        "masked_slots_are_inert",
        "masked_weights_are_zero",
        "masking_equals_deleting",
    ),
    ("finite_at_extremes",),
    ("agrees_with_float64", "autocast_agrees"),
    (
        "agrees_with_scalar_reference",
        "bilinear",
        "bounded_by_one",
        "layer_agrees_with_reference",
        "monotone_in_distance",
        "query_independent",
        "rotation_invariant",
        "translation_invariant",
        "unit_variance",
    ),
    (
        "bias_gets_its_gradient",
        "dropout_acts_on_weights",
        "dropout_differs_between_blocks",
        "dropout_is_independent",
        "dropout_keeps_the_mean",
        "gradients_are_as_accurate_as_the_output",
        "gradients_are_finite_at_extremes",
        "gradients_are_right",
        "gradients_are_right_with_dropout",
        "gradients_reach_every_parameter",
        "one_tensor_equals_three_copies",
        "second_derivatives_are_right_or_refused",
        "vmap_equals_batch",
        "weights_are_those_before_dropout",
    ),
    ("hidden_slots_may_hold_nan", "hidden_slots_may_hold_nan_in_training"),
)
"""Properties that many mistakes violate, the most specific first; others are more specific."""

_RANK_OF = {name: rank for rank, names in enumerate(_RANKS, 1) for name in names}


def lead_of(outcomes: Sequence[Outcome]) -> Outcome:
    """The failure to describe: a broken contract, or else the most specific property.

    If most checks raised, it is one that raised, where most did, since the others say little. Of an
    answer that is NaN where nothing else is wrong, any property says little, and the contract says
    it best.
    """
    failures = [o for o in outcomes if o.failure is not None] or list(outcomes[:1])
    lines = {id(o): o.failure.source_line for o in failures if o.failure and o.failure.raised}
    leads = [o for o in failures if id(o) not in lines]
    if len(lines) > len(leads):
        ((most, _),) = Counter(lines.values()).most_common(1)
        raising = [o for o in failures if id(o) in lines]
        leads = [o for o in raising if lines[id(o)] == most or o.invariant == KEEPS_CONTRACT]
    return min(leads, key=_rank)


def _rank(outcome: Outcome) -> int:
    failure = outcome.failure
    is_nan = failure is not None and (
        failure.fault == "nan" or "nan" in (str(failure.got), str(failure.expected))
    )
    rank = -1 if outcome.invariant == KEEPS_CONTRACT else _RANK_OF.get(outcome.invariant, 0)
    return rank + (len(_RANKS) + 2) * is_nan
