"""The table of names."""

from collections import Counter

import pytest

from attnbench.calling.roles import CONSTRUCTOR, FORWARD, RESULT, role_of


@pytest.mark.parametrize("table", [CONSTRUCTOR, FORWARD, RESULT])
def test_a_name_has_one_role_in_a_table(table: dict[str, str]) -> None:
    counts = Counter(name for names in table.values() for name in names.split())
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize(
    ("name", "table", "role"),
    [
        ("lm_n_kv_heads", "constructor", "kv_heads"),
        ("nEmbd", "constructor", "width"),
        ("word_emb_dim", "constructor", "width"),
        ("embd_pdrop", "constructor", "dropout"),
        ("spam", "constructor", None),
        ("encoder_attention_mask", "forward", "memory_mask"),
        ("decoder_self_attn_mask", "forward", "mask"),
        ("layer_head_mask", "forward", "head_factors"),
        ("rotary_freqs_cis", "forward", "rotary"),
        ("input_query", "forward", "query"),
        ("output", "forward", "query"),
        ("use_flash", "forward", "flag"),
        ("attn_weights", "result", "weights"),
    ],
)
def test_a_name_is_known_by_itself_without_its_owner_or_by_its_ending(
    name: str, table: str, role: str | None
) -> None:
    assert role_of(name, table) == role
