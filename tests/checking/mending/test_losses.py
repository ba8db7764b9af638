"""What a change loses by which what failed may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.checking.mending import losses, search
from attnbench.checking.mending.approval import Judge
from attnbench.checking.mending.edit_context import Edit
from tests.mended_subjects import failing_of, subject_of


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("stop // 2 // S", "low is always 0"),
        ("min(S, stop // 2 + S)", "low is always S"),
        ("stop // 2 // 2", ""),
    ],
)
def test_a_change_by_which_a_number_is_no_longer_one_of_its_own_says_so(
    tmp_path: Path, value: str, told: str
) -> None:
    subject = subject_of(
        tmp_path,
        """\
        def attention(query, key, value, attn_mask=None):
            S, stop = key.shape[-2], query.shape[-2]
            low = stop // 2 % S
            weights = query @ key.mT
            return weights[..., low:].softmax(-1) @ value[..., low:, :]
        """,
    )
    failing, lines = failing_of(subject, ["keys_permute_freely"])
    place = search._places(lines)[0]
    line = next(i for i, text in enumerate(place.source.lines) if "low = " in text)
    edit = Edit(1, (line + 1, 0), (line + 1, 99), f"    low = {value}")
    lost = losses.Losses(Judge(subject, [], failing, ()), lines).of(place._replace(edit=edit))
    assert told in lost if told else not lost


def test_a_tensor_of_the_shape_of_one_that_it_is_made_of_is_still_its_own(tmp_path: Path) -> None:
    subject = subject_of(
        tmp_path,
        """\
        def attention(query, key, value, attn_mask=None):
            near = key[..., 1:, :] * query.shape[-1] ** -0.5
            weights = (query @ near.mT).softmax(-1)
            return weights @ value[..., value.shape[-2] - near.shape[-2]:, :]
        """,
    )
    failing, lines = failing_of(subject, ["keys_permute_freely"])
    place = search._places(lines)[0]
    line = next(i for i, text in enumerate(place.source.lines) if "near = " in text)
    whole = "    near = key[..., 0:, :] * query.shape[-1] ** -0.5"
    edit = Edit(1, (line + 1, 0), (line + 1, 99), whole)
    judge = Judge(subject, [], failing, ())
    assert not losses.Losses(judge, lines).of(place._replace(edit=edit))
