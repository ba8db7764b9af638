"""Public ways to test attention, rebuilt by their published rule, as oracles of the zoo.

``python -m attnbench_zoo.harnesses`` scores them. No code is copied. Each rule passes what its
source passes: a rule that no source gives masks gets none, and says so in ``passes``.
"""

from attnbench_zoo.harnesses.base import HARNESSES, Harness
from attnbench_zoo.harnesses.closeness import (
    assert_close_defaults,
    five_random_inputs,
    five_random_inputs_and_masks,
    hundredth_over_dtypes,
)
from attnbench_zoo.harnesses.derivatives import gradcheck_alone
from attnbench_zoo.harnesses.operators import operator_info
from attnbench_zoo.harnesses.own import invariants_of_a_profile
from attnbench_zoo.harnesses.ratios import flash_attention_ratio, twice_the_textbook
from attnbench_zoo.harnesses.shares import share_of_matching_elements

__all__ = [
    "HARNESSES",
    "Harness",
    "assert_close_defaults",
    "five_random_inputs",
    "five_random_inputs_and_masks",
    "flash_attention_ratio",
    "gradcheck_alone",
    "hundredth_over_dtypes",
    "invariants_of_a_profile",
    "operator_info",
    "share_of_matching_elements",
    "twice_the_textbook",
]
