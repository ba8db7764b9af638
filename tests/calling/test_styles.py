"""Which style a callee has, which fits it, and how its arguments are renamed."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench import adapters, distributions
from attnbench.calling import STYLES, adapted_specs
from attnbench.calling.adapted_specs import adapted
from attnbench.errors import StyleError, UnknownNameError
from attnbench.registry.catalog import registry
from attnbench.registry.discovery import call_hooks
from attnbench.subject.lookup import resolve
from tests.attention_functions import flashlike


@pytest.mark.parametrize("style", STYLES)
def test_each_name_that_options_take_has_an_adapter_of_its_own(style: str) -> None:
    assert getattr(adapters, style).__name__ == style


def test_what_another_distribution_brings_is_named_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distributions, "entry_points", lambda group: {})
    monkeypatch.setattr(registry(), "all_of", lambda kind: [])
    vars(adapters).pop("keras", None)
    with pytest.raises(AttributeError, match="It is part of attnbench-peers: pip"):
        _ = adapters.keras
    with pytest.raises(UnknownNameError, match="It is part of attnbench-peers: pip"):
        adapted_specs.adapted(len, "keras")


def adapt(target: Any, **fields: Any) -> attnbench.MechanismSpec:
    return attnbench.MechanismSpec(name="halved", make=lambda *_: torch.nn.Identity(), **fields)


STYLE = attnbench.Style(
    name="halved", fits=lambda target: None if target == 3 else "it is not 3", adapt=adapt
)


@pytest.fixture
def _with_style(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = SimpleNamespace(attnbench_styles=lambda: [STYLE])
    assert call_hooks(plugin) == (STYLE,)
    brought = SimpleNamespace(all_of=lambda kind: [STYLE])
    monkeypatch.setattr(adapted_specs, "registry", lambda: brought)


@pytest.mark.usefixtures("_with_style")
def test_a_plugins_style_adapts_what_it_says_fits() -> None:
    spec = adapted_specs.adapted(3, "halved", formula="none")
    assert (spec.name, spec.formula) == ("halved", "none")


@pytest.mark.usefixtures("_with_style")
def test_a_plugins_style_says_why_it_does_not_fit() -> None:
    with pytest.raises(StyleError, match="len cannot be called as halved: it is not 3"):
        adapted_specs.adapted(len, "halved")


@pytest.mark.parametrize(
    ("function", "style", "message"),
    [
        (flashlike, "multihead", "it has no argument embed_dim. Its arguments fit sdpa on"),
        (scaled_dot_product_attention, "flash", "its argument is_causal belongs to another style"),
        (lambda query, key: query, "sdpa", "argument 3 should be value"),
        (3, "sdpa", "is of type int, which is not callable|cannot be called as sdpa"),
    ],
)
def test_a_style_that_does_not_fit_says_what_is_missing(
    function: Any, style: str, message: str
) -> None:
    with pytest.raises(StyleError, match=message):
        getattr(adapters, style)(function)


def test_without_a_style_known_objects_are_recognised_and_what_calls_show_alone() -> None:
    (subject,) = resolve("torch.nn.functional:scaled_dot_product_attention")
    assert subject.about[0].startswith("scaled_dot_product_attention: called as sdpa")
    (subject,) = resolve(flashlike)
    assert subject.about[0].startswith("flashlike: called as flash")


def test_a_class_under_a_functions_style_is_told_the_spec_to_paste() -> None:
    class Attention(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return value

    with pytest.raises(StyleError, match=r"SPEC = sdpa\(Attention\(\.\.\.\), name='Attention'\)"):
        adapters.sdpa(Attention)


@dataclasses.dataclass
class Scaled:
    """An attention that has no hash, as it is compared by its fields."""

    factor: float = 1.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.mT * self.factor).softmax(-1) @ value


def test_what_has_no_hash_is_resolved() -> None:
    assert resolve(Scaled())


def lectured(source: Tensor, memory: Tensor, content: Tensor, hides: Tensor | None = None) -> Any:
    scores = source @ memory.mT / source.shape[-1] ** 0.5
    weights = (scores if hides is None else scores.masked_fill(~hides, -1e9)).softmax(-1)
    return weights @ content, weights


CALL = "f(memory=key, source=query, content=value, hides=attn_mask)"


class Module(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
        self.num_heads, self.batch_first = num_heads, True

    def forward(self, a: Tensor, b: Tensor, c: Tensor, hidden: Tensor | None = None) -> Tensor:
        output: Tensor = self.inner(a, b, c, attn_mask=hidden, need_weights=False)[0]
        return output


def test_arguments_of_other_names_are_passed_by_the_names_of_the_style() -> None:
    spec = adapters.sdpa(lectured, call=CALL, name="renamed")
    query, key, value = (torch.randn(2, 3, n, 4) for n in (3, 5, 5))
    mask = torch.ones(3, 5, dtype=torch.bool).tril(1)
    output, weights = spec.make(4, 4, 4)(query, key, value, attn_mask=mask, return_weights=True)
    expected = lectured(query, key, value, mask)
    assert torch.equal(output, expected[0])
    assert torch.equal(weights, expected[1])


def test_a_mask_in_which_true_hides_is_turned() -> None:
    spec = adapters.sdpa(lectured, call=CALL.replace("attn_mask", "~attn_mask"), name="turned")
    query, key, value = (torch.randn(2, 3, n, 4) for n in (3, 5, 5))
    mask = torch.ones(3, 5, dtype=torch.bool).tril(1)
    output = spec.make(4, 4, 4)(query, key, value, attn_mask=mask)
    assert torch.equal(output, lectured(query, key, value, ~mask)[0])


@pytest.mark.parametrize("named", ["f(source=queries, memory=keys, content=values)", "f(q, k, v)"])
def test_query_key_and_value_have_the_names_of_any_style(named: str) -> None:
    spec = adapters.sdpa(lectured, call=named, name="plural")
    query, key, value = (torch.randn(2, 3, n, 4) for n in (3, 5, 5))
    output = spec.make(4, 4, 4)(query, key, value)
    assert torch.equal(output, lectured(query, key, value)[0])


def test_a_class_is_renamed_by_its_forward() -> None:
    spec = adapters.multihead(Module, call="f(a=query, b=key, c=value, hidden=attn_mask)")
    report = attnbench.check(spec, profile="quick", invariants=["masked_slots_are_inert"])
    assert report.ok, str(report)


def test_the_names_stand_in_an_address() -> None:
    (subject,) = resolve(f"{__name__}:lectured as sdpa(source=query, memory=key, content=value)")
    assert subject.spec.name == "lectured"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("f()", "names no argument"),
        ("f(source=~query)", "'~query' is nothing that a style passes"),
        ("f(source=attn_mask, memory=~attn_mask)", "'attn_mask' is passed twice"),
        ("queries=query", "names no argument"),
        ("f(source=query, memory=key, contents=value)", "'contents' is no argument"),
        ("f(source=query, memory=key, content=worth)", "'worth' is nothing that a style passes"),
        ("f(source=query, memory=query, content=value)", "'query' is passed twice"),
    ],
)
def test_a_call_that_cannot_be_read_is_told_with_the_form(call: str, told: str) -> None:
    with pytest.raises(StyleError, match=told) as raised:
        adapted(lectured, "sdpa", call=call)
    assert 'write it like "f(queries=query, keys=key, values=value)"' in str(raised.value)
