"""What is said of a refused candidate can be passed on."""

from __future__ import annotations

import pickle

from attnbench.judging.decision import RefusedError


def test_a_refusal_survives_pickling() -> None:
    refused = pickle.loads(pickle.dumps(RefusedError("wrong", "by 3")))
    assert (refused.name, refused.detail) == ("wrong", "by 3")
    assert str(refused) == "the output is wrong: by 3"
