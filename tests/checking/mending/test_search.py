"""Changes of a subject's source with which all holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attnbench.cases.case import Case
from attnbench.checking.api import select_invariants
from attnbench.checking.mending import approval, search
from attnbench.checking.mending.approval import Judge, holds
from attnbench.checking.mending.edit_context import SMALLEST, Edit
from attnbench.checking.mending.running_code import RunLines
from tests.mended_subjects import ATTENTION, failing_of, found_for, subject_of

NAMES = ["weights_sum_to_one", "keys_permute_freely", "mask_forms_agree", "masking_equals_deleting"]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("torch.softmax(weights, dim=-1)", "torch.softmax(weights, dim=-2)"),
        ("masked_fill(~attn_mask, ", "masked_fill(attn_mask, "),
        ("shape[-1] ** -0.5", "shape[-2] ** -0.5"),
    ],
)
def test_the_line_of_a_mistake_is_among_those_whose_change_mends_all(
    tmp_path: Path, right: str, wrong: str
) -> None:
    subject = subject_of(tmp_path, ATTENTION.replace(right, wrong))
    names = [*NAMES, "agrees_with_scalar_reference"]
    found = found_for(subject, names)
    line = next(line for line in ATTENTION.splitlines() if right in line).strip()
    assert any(f": {line.replace(right, wrong)}\n+" in text for text in found), found


def test_a_change_with_which_something_else_fails_is_not_shown(tmp_path: Path) -> None:
    """Without the line, the function would pass what fails, but would ignore floating masks."""
    right = "weights = weights + attn_mask"
    subject = subject_of(tmp_path, ATTENTION.replace(right, f"{right}.roll(1, -1)"))
    found = found_for(subject, [*NAMES, "bias_is_added_to_scores"])
    assert len(found) == 1
    assert found[0].endswith(f"{right}.roll(0, -1)")


SCORING = """\
import attnbench
from torch import nn


class Product(nn.Module):
    def forward(self, query, key):
        return (query @ key.mT) * 3


def reference(module, query, key, factor):
    product = sum(q * k for q, k in zip(query, key))
    return product * factor


SPEC = attnbench.ScoringSpec(
    name="product",
    make=lambda q, k: Product(),
    reference={reference},
    equal_sizes=True,
)
"""


@pytest.mark.parametrize(
    "reference",
    [
        "functools.partial(reference, factor=2)",
        "lambda module, query, key: 2 * sum(q * k for q, k in zip(query, key))",
    ],
)
def test_the_reference_is_not_changed(tmp_path: Path, reference: str) -> None:
    source = f"import functools\n{SCORING.replace('{reference}', reference)}"
    subject = subject_of(tmp_path, source, "SPEC")
    names = ["agrees_with_scalar_reference", "weights_sum_to_one"]
    (found,) = found_for(subject, names)
    assert "return (query @ key.mT) * 3" in found
    assert found.endswith("return (query @ key.mT) * 2")


@pytest.mark.parametrize(("is_kept", "rank"), [(True, 2), (False, 2), (False, SMALLEST)])
def test_a_change_that_leaves_an_ordinary_call_as_it_is_is_preferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool, rank: int
) -> None:
    """Where no ordinary call is wrong, another change counts if it is one of the smallest."""
    first: dict[int, Edit] = {}

    def approves(
        _: object, place: Any, *, others: bool = False, briefly: bool = False
    ) -> bool | None:
        if others:
            return True
        if first.setdefault(place.edit.rank, place.edit) != place.edit:
            return False
        return None if place.edit.rank == rank else is_kept and place.edit.rank == 3

    monkeypatch.setattr("attnbench.checking.mending.approval.Judge.approves", approves)
    monkeypatch.setattr("attnbench.checking.mending.losses.Losses.of", lambda *_: "")
    wrong = ATTENTION.replace("torch.softmax(weights, dim=-1)", "torch.softmax(weights, dim=-2)")
    subject = subject_of(tmp_path, wrong)
    (found,) = found_for(subject, ["weights_sum_to_one"])
    assert first[3 if is_kept else rank].text.split("\n")[-1].strip() in found
    assert ("calls in which nothing failed" in found) is not is_kept
    first.clear()
    again = found_for(subject, ["weights_sum_to_one"], beside=["weights_sum_to_one"])
    assert again == ([found] if is_kept or rank == SMALLEST else [])


@pytest.mark.parametrize(("text", "approved"), [("(~attn_mask)", True), ("query", None)])
def test_a_change_of_calls_in_which_nothing_failed_is_not_tried_at_first(
    tmp_path: Path, text: str, approved: bool | None
) -> None:
    """The mask that is read with the opposite meaning is not read where there is none."""
    wrong = ATTENTION.replace("masked_fill(~attn_mask, ", "masked_fill(attn_mask, ")
    subject = subject_of(tmp_path, wrong)
    names = ["masking_equals_deleting"]
    failing, lines = failing_of(subject, names)
    decides = Judge(subject, select_invariants(names), failing, ())
    places = [place for place in search._places(lines) if place.edit.text == text]
    assert approved in [decides.approves(place) for place in places]


def test_where_nearly_every_call_is_wrong_none_has_to_stay_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one token alone, a property on several says nothing."""
    subject = subject_of(tmp_path, ATTENTION)
    failing = [(select_invariants(["weights_sum_to_one"])[0], Case((1,), 1, 1, 8, 8, 8))]
    for wrong, kept in (((1, 4, 12), False), ((4, 5, 12), False), ((5, 12), True)):
        monkeypatch.setattr(
            approval, "holds", lambda subject, one, case, wrong=wrong: case.q_len not in wrong
        )
        assert bool(Judge(subject, [], failing, ())._right) is kept


SUMMED = """\
import attnbench
from torch import nn


class Summed(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden, cache=None):
        total = hidden.cumsum(0) + (0 if cache is None else cache["total"])
        if cache is not None:
            cache["total"] = total[:, -1:]
        return self.linear(total), cache


SPEC = attnbench.LayerSpec(
    name="summed",
    make=Summed,
    causal=True,
    accepts=("cache",),
    cache=attnbench.CacheSpec(new=lambda module, rows: {"total": 0}),
)
"""


def test_where_several_tokens_are_wrong_a_change_has_to_leave_single_ones_as_they_are(
    tmp_path: Path,
) -> None:
    """A layer without tokens to sum holds too, but is another layer."""
    subject = subject_of(tmp_path, SUMMED, "SPEC")
    names = ["calls_may_be_cut_anywhere"]
    (found,) = found_for(subject, names, beside=names)
    assert "cumsum(1)" in found
    assert found.endswith(search._OTHERS)
    failing, lines = (
        [(select_invariants(names)[0], Case((1,), 2, 2, 8, 8, 8))],
        RunLines(set(), set()),
    )
    with lines.watched():
        assert holds(subject, *failing[0]) is False
    place = next(place for place in search._places(lines) if "cumsum" in place.edit.text)
    number = next(i for i, line in enumerate(place.source.lines) if "cumsum" in line)
    whole = (number + 1, 0), (number + 1, len(place.source.lines[number]))
    lost = place._replace(edit=Edit(SMALLEST, *whole, "        total = hidden * 0"))
    decides = Judge(subject, [], failing, names)
    assert not decides.approves(lost, others=True)
    decides._steps.clear()
    decides._influences = frozenset()
    assert decides.approves(lost, others=True)


REPEATED = """\
def attention(query, key, value, attn_mask=None):
    weights = query @ key.mT + query.sum() * key.sum(-1).unsqueeze(-2)
    return weights.softmax(-1) @ value
"""


def test_a_change_by_which_an_input_loses_its_effect_is_not_shown(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, REPEATED)
    names = ["query_alone_equals_query_among_others", "item_alone_equals_item_in_batch"]
    failing, lines = failing_of(subject, names)
    place = search._places(lines)[0]
    source = place.source.lines
    decides = Judge(subject, [], failing, ())
    for right, text in ((True, "query @ key.mT"), (False, "(key @ key.mT).sum(-1)[..., None, :]")):
        edit = Edit(SMALLEST, (2, 0), (2, len(source[1])), f"    weights = {text}")
        assert decides.approves(place._replace(edit=edit)) is right


UNUSED = """\
import attnbench
import torch
from torch import nn


class Product(nn.Module):
    def __init__(self, query_size, key_size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(query_size))
        self.scale = nn.Parameter(torch.ones(query_size))

    def forward(self, query, key):
        return (query * self.weight) @ key.mT


SPEC = attnbench.ScoringSpec(name="product", make=Product, equal_sizes=True)
"""


def test_a_change_that_leaves_a_parameter_without_numbers_is_not_shown(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, UNUSED, "SPEC")
    failing, lines = failing_of(subject, ["gradients_reach_every_parameter"])
    place = search._places(lines)[0]
    number = next(i for i, line in enumerate(place.source.lines) if "self.scale" in line)
    whole = (number + 1, 0), (number + 1, len(place.source.lines[number]))
    lost = Edit(SMALLEST, *whole, "        self.scale = nn.Parameter(torch.ones(0))")
    assert not Judge(subject, [], failing, ()).approves(place._replace(edit=lost))


BY_BATCH = """\
def attention(query, key, value, attn_mask=None):
    weights = query @ key.mT
    if weights.numel() == 0:
        return weights.softmax(-1) @ value
    weights = weights - weights.max().clip(0.1) * weights
    return weights.softmax(-1) @ value
"""


def test_a_change_by_which_other_lines_are_passed_by_says_so_and_comes_last(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, BY_BATCH)
    names = ["item_alone_equals_item_in_batch", "query_alone_equals_query_among_others"]
    failing, lines = failing_of(subject, names)
    places = search._places(lines)
    decides = Judge(subject, select_invariants(names), failing, ())
    passed_by = next(place for place in places if place.edit.text == " != ")
    others = [place for place in places if "keepdim=True" in place.edit.text]
    for tried, shown in (([passed_by, *others], others[0]), ([passed_by], passed_by)):
        found = list(search._approved(tried, decides, lines))
        assert found[0].startswith(search._text(shown))
        assert ("is not run" in found[0]) is (shown is passed_by)


SAME = """\
import attnbench
from torch import nn


class Attention(nn.Module):
    def forward(self, query, key, value, attn_mask=None):
        weights = query @ key.mT * query.shape[-1] ** -0.25
        return weights.softmax(-1) @ value


SPEC = attnbench.MechanismSpec(
    name="same",
    make=lambda q, k, v: Attention(),
    equal_sizes=True,
    conventions={"masks": ()},
    same_as="scaled_dot",
)
"""


def test_what_should_be_the_same_as_a_built_in_is_changed_and_not_the_built_in(
    tmp_path: Path,
) -> None:
    (found,) = found_for(subject_of(tmp_path, SAME, "SPEC"), ["agrees_with_same_as"])
    assert found.endswith("query.shape[-1] ** -0.5")


def test_a_case_at_which_a_change_fails_is_tried_early_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(tmp_path, ATTENTION.replace("dim=-1", "dim=-2"))
    failing, _ = failing_of(subject, ["weights_sum_to_one"])
    decides = Judge(subject, [], failing, ())
    assert not decides._passes(failing[0][0])
    monkeypatch.setattr(approval, "holds", lambda subject, *trial: trial[0] is not failing[0][0])
    assert not decides._others_hold(decides._seen)


def test_changed_code_that_loops_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approval, "_TRIAL_SECONDS", 0.3)
    source = ATTENTION.replace(
        "    probabilities = torch.softmax(weights, dim=-1)",
        """    step, done = 1, 0
    while done < 3:
        done = done + step
    probabilities = torch.softmax(weights, dim=-done)""",
    )
    subject = subject_of(tmp_path, source.replace("done < 3", "done < 2"))
    found = found_for(subject, ["weights_sum_to_one"])
    assert any("while" in text or "-done" in text or "step" in text for text in found)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_what_fails_in_half_types_alone_changes_no_wider_call(tmp_path: Path, dtype: str) -> None:
    subject = subject_of(tmp_path, ATTENTION)
    (invariant,) = select_invariants(["agrees_with_float64"])
    failing = [(invariant, Case((1,), 2, 3, 4, 4, 4, dtype=dtype))]
    assert (Judge(subject, [invariant], failing, ()).most == 0) is (dtype == "float16")
