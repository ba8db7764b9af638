"""Nothing that a candidate sees of a judgement tells what it will draw, or what it verifies."""

import random

import torch
from attnbench_judge.court import Court
from attnbench_judge.inputs.secret import Secret
from attnbench_judge.inputs.streams import Stream
from attnbench_judge.process.entry import Limits
from attnbench_judge.trial import Trial

from attnbench import Case


def values(stream: Stream) -> list[torch.Tensor]:
    stream.draw()
    return [tensor[0, 0, 0] for tensor in stream.tensors()]


def test_the_low_bits_of_a_seed_tell_nothing_of_the_values() -> None:
    case = Case((2, 3), 4, 6, 8, 8, 5)
    first, second = (
        values(Stream(case, {}, "sdpa", Secret(5 + high))) for high in (0, 2**32)
    )  # torch's generator has 32 bits
    assert not any(torch.equal(*pair) for pair in zip(first, second, strict=True))


def test_the_state_of_one_generator_tells_no_other() -> None:
    secret = Secret(5)
    known = secret.generator()
    after = torch.rand(8, generator=known)
    assert not torch.equal(after, torch.rand(8, generator=secret.generator()))
    labels = ("what is seen", "what is verified", "old outputs")
    drawn = {secret.chance(label).getrandbits(64) for label in labels}
    assert len(drawn) == 3
    assert random.Random(5).getrandbits(64) not in drawn
    assert secret.chance("what is seen").getrandbits(64) in drawn


def test_what_is_verified_is_drawn_apart_from_what_is_seen() -> None:
    trial = Trial(Court(Limits()), "x", ("x.py", "x"), seed=7)
    assert trial.chance.getstate() != trial.hidden.getstate()
