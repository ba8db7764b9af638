"""Which invariant is skipped on which built-in subject, and why: a new skip fails here.

The table is ``tests/meta/skips.json``; after a skip that is meant, write it anew with
``python -m tests.meta.test_skips`` and read the difference.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from attnbench.checking.api import select_invariants
from attnbench.checking.runner import skip_reason
from attnbench.registry.catalog import registry
from attnbench.subject.lookup import installed
from attnbench.subject.subject import Subject

FOR_OTHERS = {
    "scale_multiplies_scores",  # no built-in mechanism takes a scale
    "window_leaves_the_keys_around",  # nor any of the other options
    "softcap_bounds_scores",
    "sinks_take_weight_alone",
    "alibi_slopes_lower_scores_by_distance",
    "gradients_are_as_accurate_as_the_output",  # none is known to score by dot products
    "log_sums_are_those_of_the_scores",  # nor returns log-sums
    "log_sums_take_gradients",
    "splits_merge",
    "scales_restore_keys_and_values",  # nor takes stored keys, or a slice of the heads
    "heads_may_be_split",
    "packed_equals_separate",  # nor packed documents, nor pages
    "packed_slack_is_inert",
    "pages_are_invisible",
    "leading_padding_equals_deleting",  # none has rotary angles, or a bias by distance
    "run_to_run",  # none promises its bits
    "batch_invariant",
    "position_in_batch_invariant",
    "chunk_invariant",
    "thread_invariant",
    "right_padding_is_inert",  # no built-in cache takes padding at the right, or is another's path
    "source_is_that_of_the_item",  # none takes side inputs or trees, or lies on a grid
    "extras_go_with_their_tokens",
    "tree_paths_equal_their_sequences",
    "transposes_with_the_grid",
    "chunked_equals_recurrent",
    "absorbed_equals_expanded",
}
TABLE = Path(__file__).with_name("skips.json")


def builtin() -> list[Subject]:
    """Subjects that attnbench itself brings, whatever else is installed."""
    own = {name for name, _, plugin in registry().specs() if plugin.distribution == "attnbench"}
    return [subject for subject in installed() if replace(subject.address, options={}) in own]


def skips() -> dict[str, dict[str, str]]:
    """Subject to invariant to reason."""
    table = {}
    for subject in builtin():
        asked = [i for i in select_invariants(None) if subject.kind in i.kinds]
        reasons = {i.name: skip_reason(subject, i) for i in asked}
        table[subject.name] = {
            name: reason
            for name, reason in sorted(reasons.items())
            if reason is not None and reason != "law not declared"
        }
    return table


def test_nothing_is_skipped_but_what_the_table_says() -> None:
    expected = json.loads(TABLE.read_text(encoding="utf-8"))
    found = skips()
    assert found.keys() == expected.keys()
    for subject, reasons in found.items():
        assert reasons == expected[subject], subject


def test_every_law_is_declared_by_some_built_in_subject() -> None:
    laws = {invariant.name for invariant in select_invariants(None) if invariant.law}
    declared = {law for subject in builtin() for law in subject.laws}
    assert laws - FOR_OTHERS <= declared


def test_every_invariant_runs_on_some_built_in_subject() -> None:
    table, subjects = skips(), builtin()
    for invariant in select_invariants(None):
        if not invariant.law and invariant.name not in FOR_OTHERS:
            ran = [s.name for s in subjects if invariant.name not in table[s.name]]
            assert ran, f"{invariant.name} is skipped on every subject"


if __name__ == "__main__":
    text = json.dumps(skips(), indent=1, ensure_ascii=False, sort_keys=True)
    TABLE.write_text(text + "\n", encoding="utf-8")
