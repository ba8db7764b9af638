"""What the default profile would add, from the outcomes of a quick run."""

from __future__ import annotations

from attnbench.checking.longer_profiles import default_profile, default_seconds
from attnbench.checking.outcomes import Outcome

PLAIN = Outcome("x", "weights_sum_to_one", "passed", cases=40, seconds=10.0)
COMPILED = Outcome("x", "compiled_equals_eager", "passed", cases=1, seconds=1.0)


def test_the_estimate_grows_with_what_is_drawn_and_what_compiles() -> None:
    plain = default_seconds([PLAIN], 12.0, jobs=1)
    assert 40.0 < plain < 80.0
    assert default_seconds([PLAIN, COMPILED], 13.0, jobs=1) > plain + 30.0


def test_one_invariant_is_not_shared_out_among_jobs() -> None:
    two = [PLAIN, PLAIN]
    assert default_seconds(two, 12.0, jobs=2) < default_seconds(two, 22.0, jobs=1)
    assert default_seconds([COMPILED], 3.0, jobs=2) >= default_seconds([COMPILED], 3.0, jobs=1) - 1


def test_the_sentence_says_what_is_added() -> None:
    text = default_profile([PLAIN, COMPILED], 13.0, jobs=1, left_out=3)
    assert text.startswith("--profile default draws 100 cases instead of 4, compiles to machine")
    assert "code and checks 3 more subjects, which have options; that takes about" in text
    assert text.endswith(" min here.")
    assert "compiles" not in default_profile([PLAIN], 12.0, jobs=1)
    assert default_profile([PLAIN], 12.0, jobs=1).endswith("about 60 s here.")
