"""A second sequence and inputs by token, from specs and from modules of torch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from attnbench_plugins.properties.layers.side_inputs import source_is_that_of_the_item
from attnbench_zoo.right.crossed import CROSSED, Crossed
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec
from attnbench.adapters import layer
from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation, SpecError
from attnbench.subject.lookup import resolve
from tests.invariant_runs import run

SOURCE = "source_is_that_of_the_item"
EXTRAS = "extras_go_with_their_tokens"


def decoder(size: int) -> nn.Module:
    return nn.TransformerDecoderLayer(size, 2, 2 * size, dropout=0.0, batch_first=True)


def test_a_decoder_layer_of_torch_attends_to_its_memory() -> None:
    spec = layer(
        decoder,
        name="decoder",
        mask="tgt_key_padding_mask",
        form="padding",
        source="memory",
        sizes=lambda size: max(4, size // 4 * 4),
    )
    assert spec.accepts == ("padding_mask", "source")
    report = attnbench.check(spec, profile="quick", invariants=[SOURCE, "padded_tokens_are_inert"])
    assert [o.status for o in report.outcomes] == ["passed"] * 2, str(report)
    assert "not causal (found by trying)" in str(report)


def test_extras_are_keywords_of_a_module() -> None:
    class Typed(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.kinds, self.out = nn.Embedding(2, size), nn.Linear(size, size)

        def forward(self, hidden: Tensor, token_type_ids: Tensor) -> Tensor:
            typed: Tensor = self.out(hidden + self.kinds(token_type_ids))
            return typed

    def extras(case: Case, generator: torch.Generator) -> dict[str, Tensor]:
        shape = (case.lead[0], case.q_len)
        return {"token_type_ids": torch.randint(2, shape, generator=generator)}

    spec = layer(Typed, extras=extras)
    found = run(spec, EXTRAS)
    assert found.status == "passed", found.reason


@pytest.mark.parametrize(
    ("drawn", "told"),
    [
        ({"kind": torch.zeros(1, 1)}, "gave 'kind' of shape (1, 1)"),
        ([torch.zeros(1, 1)], "gave 'list' of shape () for B"),
        (None, "gave 'NoneType' of shape () for B"),
    ],
)
def test_extras_of_another_form_are_named(drawn: Any, told: str) -> None:
    spec = replace(CROSSED, extras=lambda case, generator: drawn)
    reason = run(spec, EXTRAS).reason
    assert told in reason
    assert "raised on a legal input" not in reason


class Marked(nn.Module):
    """Tokens see their own document; what is given beside each says whether it begins one."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.project = nn.Linear(size, size)

    def forward(
        self, hidden: Tensor, extras: dict[str, Tensor], cache: dict[str, Tensor] | None = None
    ) -> Tensor:
        begins, past = extras["begins"], hidden.shape[1]
        if cache is not None:
            if cache:
                hidden = torch.cat([cache["hidden"], hidden], 1)
                begins = torch.cat([cache["begins"], begins], 1)
            cache.update(hidden=hidden, begins=begins)
        number = begins.cumsum(1)
        own = (number[:, :, None] == number[:, None]).tril().to(hidden)
        output: Tensor = self.project(own @ hidden / own.sum(-1, keepdim=True))
        return output[:, output.shape[1] - past :]


def test_marks_that_begin_documents_are_not_given_to_each_token() -> None:
    spec = LayerSpec(
        name="marked",
        make=Marked,
        causal=True,
        accepts=("extras", "cache"),
        extras=lambda case, generator: {
            "begins": (torch.rand(case.lead[0], case.q_len, generator=generator) < 0.3).long()
        },
        cache=CacheSpec(new=lambda module, batch: {}),
    )
    for name in ("outputs_depend_on_their_token", "calls_may_be_cut_anywhere", EXTRAS):
        found = run(spec, name)
        assert found.status == "passed", found.reason


def test_extras_need_a_function_that_draws_them() -> None:
    with pytest.raises(SpecError, match="extras should be a function, if accepts names extras"):
        LayerSpec(name="typed", make=decoder, accepts=("extras",))


class Kept(nn.Module):
    """Cross-attention whose keys are made once and kept."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.key = nn.Linear(size, size)

    def forward(self, hidden: Tensor, source: Tensor, cache: Any = None) -> Tensor:
        cache = {} if cache is None else cache
        key = cache["key"] = cache["key"] if "key" in cache else self.key(source)
        return nn.functional.scaled_dot_product_attention(hidden, key, key)


def _chosen(cache: dict[str, Tensor], index: Tensor) -> None:
    cache.update({name: tensor[index] for name, tensor in cache.items()})


def _beams(cache: dict[str, Tensor], index: Tensor) -> None:
    """More rows are taken for the beams of the rows there are, one row's after another's."""
    for name, key in cache.items():
        times = len(index) // len(key)
        cache[name] = key.repeat_interleave(times, 0) if times > 1 else key[index]


@pytest.mark.parametrize(("select", "status"), [(_chosen, "passed"), (_beams, "failed")])
def test_rows_are_doubled_in_an_order_that_beams_do_not_have(select: Any, status: str) -> None:
    cache = CacheSpec(new=lambda module, rows: {}, select=select)
    spec = LayerSpec(name="kept", make=Kept, accepts=("source", "cache"), cache=cache, causal=True)
    assert run(spec, SOURCE).status == status


class Held(Kept):
    """Its keys stay on the module, for the next sequences of as many rows that begin a cache."""

    held: Tensor | None = None

    def forward(self, hidden: Tensor, source: Tensor, cache: Any = None) -> Tensor:
        if self.held is None or cache is None or len(self.held) != len(source):
            self.held = self.key(source)
        return super().forward(hidden, source, {"key": self.held})


def test_a_source_that_is_kept_for_the_next_sequence_is_found() -> None:
    cache = CacheSpec(new=lambda module, rows: {}, select=_chosen)
    spec = LayerSpec(name="held", make=Held, accepts=("source", "cache"), cache=cache, causal=True)
    (subject,) = resolve(spec)
    with pytest.raises(InvariantViolation, match="begun after those of others"):
        source_is_that_of_the_item.check(subject, Case((2,), 3, 3, 8, 8, 8))


def test_a_state_that_calls_do_not_go_on_from_is_no_fault_of_the_source() -> None:
    class Fed(Crossed):
        """What the tokens before gave is fed to the next, and lost between calls."""

        def forward(self, *given: Any, **named: Any) -> Tensor:
            output = super().forward(*given, **named)
            return output + output.cumsum(1)

    spec = replace(CROSSED, make=Fed)
    assert run(spec, SOURCE).status == run(spec, EXTRAS).status == "passed"
    assert run(spec, "calls_may_be_cut_anywhere").status == "failed"
