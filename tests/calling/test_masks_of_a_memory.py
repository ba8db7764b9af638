from pathlib import Path
from typing import Any

import pytest
import torch
from attnbench_plugins.adapters.adaptation import spec_of
from attnbench_plugins.adapters.examples import example_spec
from torch import nn

from attnbench.errors import StyleError
from tests.calling.sources import PROJECTED, found

CROSSED = """
class Crossed(nn.Module):
    def __init__(self, dim, coverage_attn):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
    def forward(self, q, h, mask=None):
        scores = self.q(q) @ self.k(h).mT
        if mask is not None:
            scores[mask.view(scores.shape)] = float("-inf")
        return scores.softmax(-1) @ self.v(h)

class Needing(Crossed):
    def forward(self, q, h, mask):
        scores = (self.q(q[:, None]) @ self.k(h).mT)[:, 0].masked_fill(mask, float("-inf"))
        return (scores.softmax(-1).masked_fill(mask, 0)[:, None] @ self.v(h))[:, 0]

class Contextual(Crossed):
    def forward(self, x, context=None, mask=None):
        scores = self.q(x) @ self.k(x if context is None else context).mT
        scores = scores if mask is None else scores.masked_fill(mask[:, None], float("-inf"))
        return scores.softmax(-1) @ self.v(x if context is None else context)

class Kept(Contextual):
    # a mistake: the lengths hide what they should leave
    def forward(self, x, context, src_len=None):
        hidden = None if src_len is None else torch.arange(context.shape[1]) < src_len[:, None]
        return super().forward(x, context, hidden)

class Dropping(Crossed):
    def forward(self, x, mask):
        scores = self.q(x).masked_fill(mask.squeeze(1).squeeze(1).unsqueeze(2), float("-inf"))
        return (scores.softmax(1) * x).sum(1)

class Both(Crossed):
    def forward(self, x, pre_mask=None, post_mask=None):
        scores = (x @ x.mT).masked_fill(pre_mask[:, : post_mask.shape[1]], float("-inf"))
        return (scores.softmax(-1).nan_to_num(0) @ x).masked_fill(post_mask[..., None], 0)

class Low(Crossed):
    def forward(self, q, h, mask):
        scores = (self.q(q[:, None]) @ self.k(h).mT)[:, 0].masked_fill(mask, -1e4)
        return (scores.softmax(-1)[:, None] @ self.v(h))[:, 0]

class Covered(Crossed):
    def forward(self, q, h, coverage=None):
        scores = (self.q(q[:, None]) @ self.k(h).mT)[:, 0] + coverage.view(*h.shape[:2])
        return (scores.softmax(-1)[:, None] @ self.v(h))[:, 0]
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Crossed", "q (B, L, E), h (B, S, E); no weights are found; mask (B, L, S), True hides"),
        ("Needing", "q (B, E), h (B, S, E); no weights are found; mask (B, S), True hides"),
        ("Contextual", "x (B, L, E), context (B, S, E); no weights are found; mask (B, S), True"),
        ("Kept", "x (B, L, E), context (B, S, E); **no mask that was tried fits**: src_len"),
        ("Dropping", "x (B, L, E); it gives (B, E); mask (B, 1, 1, L), True hides"),
        ("Both", "x (B, L, E); pre_mask (B, 1, L), True hides; always post_mask=False (B, S)"),
        ("Low", "q (B, E), h (B, S, E); no weights are found; mask (B, S), True hides"),
        ("Covered", "q (B, E), h (B, S, E); no weights are found; always coverage=0.25 (B, S)"),
    ],
)
def test_what_goes_with_a_memory_is_found(tmp_path: Path, name: str, said: str) -> None:
    target: Any = found(tmp_path, CROSSED, name)
    spec: Any = spec_of(target)
    assert spec.notes[0].startswith(f"called with {said}")
    assert spec.notes[-1] == "found by trying, as no name says it: coverage_attn"
    low = -999_999.0 if name == "Low" else None  # of projected scores no number is known
    assert {**spec.conventions}.get("mask_value") == low
    if name == "Needing":
        batch = torch.randn(3, 12), torch.randn(3, 7, 12), torch.arange(7).expand(3, 7) >= 5
        assert example_spec(target(12, 0).eval(), batch).notes[0] == f"called with {said}"


def test_a_step_whose_items_know_each_other_is_an_example() -> None:
    def attend(query: Any, memory: Any) -> Any:
        return (query[:, None] @ memory.mT).softmax(0) @ memory

    notes = example_spec(attend, (torch.randn(3, 10), torch.randn(3, 8, 10))).notes
    assert notes[0].startswith("called with query (B, E), memory (B, S, E)")


def test_a_number_of_tokens_of_an_example_is_no_formula(tmp_path: Path) -> None:
    batch = {"x": torch.randn(3, 7, 12), "length": torch.tensor([7, 5, 6])}
    assert example_spec(found(tmp_path, PROJECTED, "Cut")(12, 3), batch).reference is None


def test_why_an_example_is_not_called_as_named_is_said() -> None:
    mask = torch.arange(7) >= torch.tensor([[7], [5], [6]])

    def attend(query: Any, context: Any) -> Any:
        scores = (context @ query[..., None])[..., 0].masked_fill(mask, -torch.inf)
        return (scores.softmax(-1)[:, None] @ context)[:, 0]

    with pytest.raises(StyleError, match="calls of other sizes than those that were tried raise"):
        example_spec(attend, (torch.randn(3, 8), torch.randn(3, 7, 8)))


def test_of_a_mask_for_each_window_the_first_is_held() -> None:
    def attend(x: Any, mask: Any) -> Any:
        scores = (x @ x.mT).unflatten(0, (-1, len(mask))) + mask
        return scores.flatten(0, 1).softmax(-1) @ x

    spec = example_spec(attend, (torch.randn(4, 9, 16), torch.randn(2, 9, 9)))
    assert "called with x (B, L, E); held as in the example's first item: mask" in spec.notes


def attend(queries: Any, keys: Any, attn_mask: Any, positions: Any) -> Any:
    scores = (queries @ (keys + positions).mT).masked_fill(attn_mask, -torch.inf)
    return scores.softmax(-1) @ (keys + positions)


def test_queries_over_held_keys_need_not_count_and_a_function_need_not_be_copied() -> None:
    x, mask = torch.randn(3, 9, 16), torch.ones(9, 9, dtype=torch.bool).triu(1)
    batch = nn.functional.layer_norm(x, (16,)), x, mask, torch.randn(3, 9, 16)
    exempt: Any = example_spec(attend, batch).exempt
    assert {*exempt} == {"outputs_depend_on_their_token", "copies_agree"}

    def deaf(queries: Any, keys: Any, attn_mask: Any, positions: Any) -> Any:
        return 0 * queries + keys.mean(1, True)

    assert "outputs_depend_on_their_token" not in vars(example_spec(deaf, batch))["exempt"]


def test_what_an_example_gives_beside_a_memory_is_held() -> None:
    def decode(
        tgt: Any, memory: Any, memory_mask: Any = None, pos: Any = 0, query_pos: Any = 0
    ) -> Any:
        sides = tgt + query_pos, memory + pos, memory
        query, key, value = (side.transpose(0, 1) for side in sides)
        scores = (query @ key.mT).masked_fill(memory_mask[:, None], -torch.inf)
        return tgt + (scores.softmax(-1) @ value).transpose(0, 1)

    tgt, memory = torch.randn(9, 3, 32), torch.randn(7, 3, 32)
    padding = torch.arange(7) >= torch.tensor([[7], [5], [6]])
    spec: Any = example_spec(decode, (tgt, memory, padding, memory / 2, tgt / 2))
    assert "held as in the example's first item: memory_mask, pos, query_pos" in str(spec.notes)


def test_features_may_come_first_and_tokens_in_blocks() -> None:
    def first(query: Any, key: Any, value: Any) -> Any:
        return value @ (query.mT @ key).softmax(-1).mT

    source = torch.randn(3, 16, 7)
    notes = example_spec(first, (torch.randn(3, 16, 9), source, source)).notes
    assert notes[0].startswith("called with query (B, E, L), key (B, E, S), value (B, E, S)")

    def blocks(x: Any) -> Any:
        block = torch.arange(x.shape[1]) // 17
        later = block > block[:, None]
        return (x @ x.mT).masked_fill(later, -torch.inf).softmax(-1) @ x

    assert "positions count" in str(example_spec(blocks, torch.randn(2, 40, 16)).notes)


def test_a_bias_of_an_example_is_held_and_a_mask_that_fits_nothing_is_named() -> None:
    def biased(query: Any, key: Any, value: Any, attn_bias: Any) -> Any:
        return (query @ key.mT + attn_bias).softmax(-1) @ value

    def mixed(query: Any, key: Any, value: Any, mask: Any) -> Any:
        return biased(query, key, value, torch.where(mask.roll(1, 0), -torch.inf, 0.0))

    x, mask = torch.randn(3, 9, 16), torch.arange(9) >= torch.tensor([[[9]], [[6]], [[4]]])
    held = example_spec(biased, (x, x, x, torch.randn(3, 9, 9))).notes[0]
    assert held.endswith("held as in the example's first item: attn_bias")
    said = " ".join(example_spec(mixed, (x, x, x, mask.expand(3, 9, 9))).notes)
    assert "first item: mask; **no mask that was tried fits**: mask" in said
