"""Each mutant of the blind part has its thread, and a call in which it differs from its twin."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from attnbench_zoo import Entry, blind_entries
from attnbench_zoo.blind import packing
from attnbench_zoo.needs import shown_by
from attnbench_zoo.right.packing import gathered_pages, one_by_one
from attnbench_zoo.twins.linear import Linear
from torch import Tensor

from attnbench import Case

Call = Callable[[Any], Tensor]


def drawn(*shape: int) -> Tensor:
    """Standard normal numbers, the same ones in every call."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape) + sum(shape)))


def differ(entry: Entry, call: Call, expected: Call | None = None) -> bool:
    """Whether a call of the mutant's module is not one of the twin's."""
    modules = (entry.candidate(Case()).module, entry.expected(Case()).module)
    own, right = call(modules[0].eval()), (expected or call)(modules[1].eval())
    return not torch.allclose(own, right, atol=1e-4)


def queries_and_keys(q_len: int, kv_len: int, heads: int = 2, of_keys: int = 2) -> list[Tensor]:
    key = drawn(1, of_keys, kv_len, 8)
    return [drawn(1, heads, q_len, 8), key, key.flip(-1)]


def attended(*tensors: Tensor, **given: Any) -> Call:
    def call(module: Any) -> Tensor:
        found = module(*tensors, **given)
        return found[-1] if isinstance(found, tuple) else found

    return call


def query_gradient(module: Any) -> Tensor:
    query, value = drawn(1, 3, 4).requires_grad_(), drawn(1, 5, 8)
    module(query, drawn(1, 5, 4), value).square().sum().backward()
    assert query.grad is not None
    return query.grad


def bias_gradient(module: Any) -> Tensor:
    bias = torch.zeros(1, 1, 4).requires_grad_()
    module(*(tensor[0] for tensor in queries_and_keys(3, 4)), bias).square().sum().backward()
    assert bias.grad is not None
    return bias.grad


def stepped(module: Any, hidden: Tensor, *, first: int, kept: int) -> Tensor:
    """Some tokens, of which the first are kept, and then the last two."""
    cache = module.new_cache(len(hidden))
    module(hidden[:, :first], cache=cache)
    if kept < first:
        cache.crop(kept)
    output: Tensor = module(hidden[:, -2:], cache=cache)
    return output


def after_a_crop(module: Any) -> Tensor:
    return stepped(module, drawn(1, 11, module.width * 4), first=9, kept=5)


def without_a_crop(module: Any) -> Tensor:
    return stepped(module, drawn(1, 11, module.width * 4), first=5, kept=5)


def far_from_the_origin(entry: Entry) -> bool:
    """Whether float16 rounds by more than four times what it does in the twin, at 300 positions."""
    torch.manual_seed(0)
    exact = entry.reference.make(64)
    twin, own = (spec.make(64) for spec in (entry.reference, entry.spec))
    for module in (twin, own):
        module.load_state_dict(exact.state_dict())
        module.half()
    hidden = drawn(1, 300, 64).half()
    with torch.no_grad():
        right = twin(hidden).float()
        rounded = (right - exact(hidden.float())).abs().max()
        return bool((own(hidden).float() - right).abs().max() > 4 * rounded)


def rows_turned_round(entry: Entry) -> bool:
    outputs = []
    for built in (entry.candidate(Case()), entry.expected(Case())):
        size = built.module.out.out_features
        spec, hidden, source = built.spec.cache, drawn(2, 4, size), drawn(2, 3, size)
        cache, kinds = spec.new(built.module, 2), torch.zeros(2, 4, dtype=torch.int64)
        built.module(hidden, cache=cache, source=source, extras={"kind": kinds})
        spec.select(cache, torch.tensor([1, 0]))
        given = {"source": source.flip(0), "extras": {"kind": kinds[:, :1]}}
        outputs.append(built.module(hidden[:, :1], cache=cache, **given))
    return not torch.allclose(*outputs)


def low_scores(entry: Entry) -> bool:
    query, value = torch.full((1, 1, 4), 1000.0), drawn(1, 3, 4)
    sides = (entry.spec, entry.reference)
    own, right = (side.attend(None, query, -query.expand(1, 3, 4), value) for side in sides)
    return not torch.allclose(own, right)


def with_sinks(count: int, **given: Any) -> Call:
    """The query's gradient and the output, with a sink for each of two heads."""

    def call(module: Any) -> Tensor:
        query, key, value = queries_and_keys(count, 6)
        output = module(
            query.requires_grad_(), key, value, sinks=torch.tensor([1.0, -1.0]), **given
        )
        output.square().sum().backward()
        assert query.grad is not None
        return torch.cat([output, query.grad])

    return call


def dropped(module: Any, *, evaluated: bool) -> Tensor:
    """Output and gradient in training, perhaps after a call in evaluation."""
    query, key, value = queries_and_keys(3, 6)
    if evaluated:
        module(query, key, value, dropout_p=0.5)
    torch.manual_seed(0)
    output = module.train()(query.requires_grad_(), key, value, dropout_p=0.5)
    output.square().sum().backward()
    assert query.grad is not None
    return torch.cat([output, query.grad])


def packed(function: Any, queries: list[int], keys: list[int], causal: bool) -> Tensor:
    """Output and gradients, with the ends of documents given."""
    tensors = [drawn(ends[-1], 1, 4).requires_grad_() for ends in (queries, keys, keys)]
    longest = [max(b - a for a, b in itertools.pairwise(x)) for x in (queries, keys)]
    output = function(*tensors, torch.tensor(queries), torch.tensor(keys), *longest, causal=causal)
    output.square().sum().backward()
    return torch.cat([output, *(tensor.grad for tensor in tensors if tensor.grad is not None)])


def paged(function: Any, queries: int, length: int) -> Tensor:
    """Three of five pages of two slots, the first two of them in use."""
    caches, table = [drawn(5, 2, 1, 4), drawn(2, 5, 1, 4).reshape(5, 2, 1, 4)], [[3, 1, 4]]
    given = {"cache_seqlens": torch.tensor([length]), "block_table": torch.tensor(table)}
    output: Tensor = function(drawn(1, queries, 1, 4), *caches, **given)
    return output


HIDDEN_ROW = torch.tensor([[True, True, False], [False, False, False]])
KNOWN: dict[str, Callable[[Entry], bool]] = {
    "top_left_where_queries_are_more": lambda entry: differ(
        entry, attended(*queries_and_keys(6, 3), is_causal=True)
    ),
    "padded_row_is_nan_in_half": lambda entry: differ(
        entry, attended(*(tensor.half() for tensor in queries_and_keys(2, 3)), HIDDEN_ROW)
    ),
    "groups_padded_to_a_power_of_two": lambda entry: differ(
        entry, attended(*queries_and_keys(4, 4, heads=6), enable_gqa=True)
    ),
    "overwritten_cells_after_a_crop": lambda entry: differ(entry, after_a_crop, without_a_crop),
    "crop_does_nothing_once_a_ring_wraps": lambda entry: differ(
        entry, after_a_crop, without_a_crop
    ),
    "rates_in_the_dtype_of_the_weights": far_from_the_origin,
    "source_selected_if_the_batch_shrinks": rows_turned_round,
    "maximum_from_a_finite_number": low_scores,
    "scales_ignored": lambda entry: differ(
        entry, attended(*queries_and_keys(3, 3), k_scale=torch.tensor(2.0))
    ),
    "log_sum_of_empty_rows_is_positive": lambda entry: differ(
        entry, attended(*queries_and_keys(2, 3), HIDDEN_ROW)
    ),
    "gradient_of_the_first_value_features": lambda entry: differ(entry, query_gradient),
    "bias_gradient_of_the_last_query": lambda entry: differ(entry, bias_gradient),
    "sink_twice_where_the_first_half_is_empty": lambda entry: differ(
        entry, with_sinks(1, window_size=(2, 0))
    ),
    "sink_misses_in_the_gradient": lambda entry: differ(entry, with_sinks(3)),
    "dropped_weights_get_a_gradient": lambda entry: differ(
        entry, partial(dropped, evaluated=False)
    ),
    "dropout_gone_after_an_evaluation": lambda entry: differ(
        entry, partial(dropped, evaluated=True)
    ),
    "absorbed_scale_of_the_latents": lambda entry: differ(
        entry, lambda module: module.absorbed(drawn(1, 4, module.size))
    ),
}
"""Calls that the tables of ``attnbench_zoo.needs`` do not have."""

PACKED: dict[str, tuple[Any, ...]] = {
    "keys_without_queries_get_nan": ([0, 2, 2, 4], [0, 2, 5, 6], False),
    "queries_without_keys_get_nan": ([0, 3, 5], [0, 1, 3], True),
    "single_queries_beside_empty_documents": ([0, 0, 1, 1, 2], [0, 3, 4, 4, 6], False),
}
PAGED = {
    "pages_read_in_pairs": (1, 4),
    "pages_ignored_by_several_queries": (2, 4),
    "one_page_more_after_a_full_one": (1, 4),
    "last_page_seen_whole": (1, 3),
}


@pytest.mark.parametrize("entry", blind_entries(), ids=lambda entry: entry.name)
def test_a_mutant_of_the_blind_part_has_its_thread(entry: Entry) -> None:
    assert entry.links
    assert entry.origin == "public thread"
    assert entry.mistake.endswith(".")
    assert not entry.killers


ELSEWHERE = {*PACKED, *PAGED}


@pytest.mark.parametrize(
    "entry", [x for x in blind_entries() if x.name not in ELSEWHERE], ids=lambda entry: entry.name
)
def test_a_mutant_of_the_blind_part_differs_from_its_twin(entry: Entry) -> None:
    assert KNOWN.get(entry.name, shown_by)(entry)


@pytest.mark.parametrize("name", PACKED)
def test_packed_documents_show_the_mistake(name: str) -> None:
    right = packed(one_by_one, *PACKED[name])
    try:
        own = packed(getattr(packing, name), *PACKED[name])
    except RuntimeError:
        return
    assert not torch.allclose(own, right)


@pytest.mark.parametrize("name", PAGED)
def test_pages_show_the_mistake(name: str) -> None:
    own, right = (paged(f, *PAGED[name]) for f in (getattr(packing, name), gathered_pages))
    assert not torch.allclose(own, right)


def test_the_twin_of_linear_attention_equals_its_recurrent_form() -> None:
    layer = Linear(16).double()
    query, key, value = (drawn(2, heads, 5, 4).double() for heads in (4, 2, 2))
    causal = torch.ones(1, 5, 5, dtype=torch.bool).tril()
    found, state, total = layer.attend(query, key, value, causal, None), 0.0, 0.0
    key, value = key.repeat_interleave(2, 1), value.repeat_interleave(2, 1)
    for step in range(5):
        own, asked = (torch.nn.functional.elu(t[:, :, step]) + 1 for t in (key, query))
        state = state + own[..., None] * value[:, :, step, None]
        total = total + own
        expected = (asked[..., None] * state).sum(-2) / (asked * total).sum(-1, keepdim=True)
        torch.testing.assert_close(found[:, :, step], expected)
