"""Every mutant is killed by what is meant to kill it, and its right twin is not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from attnbench_zoo.base import Spec
from attnbench_zoo.mutants import MUTANTS, TWINS, Mutant, Twin

from attnbench.checking.api import select_invariants
from attnbench.checking.outcomes import Outcome
from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant, seeded
from attnbench.specs import Invariant
from attnbench.subject.lookup import resolve

KNOWN_BUGS = """
    timm#2236 addons#133 OpenNMT-py#272 flamingo-pytorch#10 ParlAI#3068 x-transformers#160
    halonet-pytorch#4 transformers#41443 keras#23038 TransformerEngine#1524 xformers#103
    pytorch#103082 pytorch#108108 cutlass#2336 onnx#8068 transformers#39408
    transformers#29623 Transformer-Neural-Network#15 pytorch#103749 pytorch#103963
    pytorch#41508 apex#1390 d2l-en#2423 pytorch#101967 fairseq#3575 flax#982 keras#15390
    mlc-llm#1638 transformers#18057 pytorch#163588 PyTorch-NLP#2 fastNLP#254 mlc-llm#3426
    cntkx#10 ViT#2 tt-metal#33304 pytorch#124464 timm#1978 pytorch#42929 pytorch#33360
    ng-video-lecture#30 FuxiCTR#30 lighthouse#77 AttnGAN#93 onnx#7274 axlearn#842
    hyunwoongko/transformer#40 allennlp#1775 tacotron2#303 pytorch/xla#2369 OpenNMT-py#867
    pytorch#112577 pytorch#181133 pytorch#86120 pytorch#97111 TransformerLens#1005
    transformers#22707 attention-gym#86 OpenNMT-py#110
""".split()  # noqa: SIM905 -- a line each would be sixty
"""Issues and pull requests in which attention went wrong; each has a mutant."""

KNOWN_CACHE_BUGS = """
    unsloth#3699 mlx-lm#1699 flash-linear-attention#477 VeloxQuant-MLX#389
    rotary-embedding-torch#11 onnxruntime#29002 keras-hub#2862 google-deepmind/gemma#392
    Megatron-Bridge#5259 TinyLLM#17 OpenNMT-py#2532 transformers#41966 transformers#30400
    transformers#48510 transformers#37574 mlx-lm#1914 transformers#47708 mlx-lm#1673 mlx-vlm#1715
    transformers#48280 hnet#20 executorch#21857 keras-hub#1738 mlx-lm#439 transformers#47433
    vllm-mlx#385 mlx-examples#977 MemOS#2301 transformers#46612 transformers#48700
    transformers#34232 mlx-lm#1141 mlx-vlm#1889 omlx#2172 fairseq2#74
    attention-is-all-you-need-pytorch#28 mlx-lm#1467 pytorch#79927 flashinfer#3716 vllm#43810
    transformers#29114 MoE-Infinity#195 pytorch#99282 pytorch#186434 vllm-ascend#5583
    transformers#46634 maxtext#4476 AReaL#1442 axolotl#3796 pytorch#176793
    TransformerEngine#1009 flash-attention#2842 cudnn-frontend#737 vllm#7018 pytorch#182593
    modular#6591 paz#415 transformers#28056 transformers#46572 transformer-xl#118
    LLMs-from-scratch#1048
""".split()  # noqa: SIM905 -- as above
"""Those of layers and caches, and of packed documents and pages; cross states are none."""


def run(spec: Spec, invariant: Invariant) -> Outcome:
    (subject,) = resolve(spec)
    with seeded():
        return run_invariant(subject, invariant, PROFILES["quick"], shrink=False)


def three_of_a_kind() -> Iterator[Any]:
    """All mutants; those after the third of an invariant are for ``tox -e long``."""
    seen: Counter[str] = Counter()
    for mutant in MUTANTS:
        is_further = all(seen[killer] >= 3 for killer in mutant.killers)
        seen.update(mutant.killers)
        marks = pytest.mark.long if is_further else ()
        yield pytest.param(mutant, id=mutant.name, marks=marks)


@pytest.mark.parametrize("mutant", [*three_of_a_kind()])
def test_a_mutant_is_killed_by_each_invariant_that_is_meant_to(mutant: Mutant) -> None:
    for invariant in select_invariants(mutant.killers):
        outcome = run(mutant.spec, invariant)
        assert outcome.status == "failed", (
            f"{mutant.name} ({mutant.mistake}): {invariant.name} {outcome.status}, {outcome.reason}"
        )
        broken = re.search("TypeError|NameError|AttributeError|ImportError", outcome.reason)
        assert not broken, f"{mutant.name} fails for a mistake of its own: {outcome.reason}"


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_the_right_twin_passes_what_kills_its_mutants(twin: Twin) -> None:
    killers = {name for mutant in MUTANTS if mutant.twin is twin for name in mutant.killers}
    for invariant in select_invariants(sorted(killers)):
        outcome = run(twin.spec, invariant)
        assert outcome.status == "passed", f"{invariant.name}: {outcome.reason}"


def test_every_known_bug_has_a_mutant() -> None:
    named = {bug for mutant in MUTANTS for bug in mutant.bugs}
    assert {*KNOWN_BUGS, *KNOWN_CACHE_BUGS} <= named


def test_a_mutant_has_a_name_of_its_own_and_says_what_is_wrong() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert mutant.mistake.endswith("."), mutant.name
        assert mutant.bugs, mutant.name
        assert mutant.killers, mutant.name
