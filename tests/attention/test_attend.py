import copy
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from attnbench_zoo.right.scorings import SPECS
from torch import nn

import attnbench
from attnbench.attention import attend
from attnbench.attention.dispatch import scoring_of
from attnbench.errors import DtypeError, MaskError, ShapeError, UsageError
from attnbench.registry.catalog import registry


def tensors(
    lead: Any = (2,),
    q_len: Any = 3,
    kv_len: Any = 5,
    size: Any = 4,
    value_size: Any = 6,
    dtype: Any = torch.float32,
    grad: Any = False,
) -> Any:
    torch.manual_seed(0)
    return [
        torch.randn(*lead, length, features, dtype=dtype, requires_grad=grad)
        for length, features in ((q_len, size), (kv_len, size), (kv_len, value_size))
    ]


@pytest.mark.parametrize(
    "sizes",
    [{"lead": (0,)}, {"q_len": 0}, {"kv_len": 0}, {"value_size": 0}, {"size": 0}],
    ids=str,
)
def test_sizes_of_zero_are_legal(sizes: Any) -> None:
    query, key, value = tensors(**sizes, grad=True)
    output = attnbench.attend("scaled_dot", query, key, value, is_causal=True)
    assert output.shape == (*query.shape[:-1], value.shape[-1])
    assert torch.isfinite(output).all()
    output.sum().backward()
    assert torch.isfinite(value.grad).all()


@pytest.mark.parametrize("name", ["additive", "scaled_dot", "vector_sum"])
@pytest.mark.parametrize("shape", [None, (1, 7), (7,), (1, 1, 7), (2, 1, 1, 7), (6, 1, 7)])
def test_grouped_heads_of_one_query_equal_expanded_heads(
    name: Any, shape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, _, _ = tensors(lead=(2, 6), q_len=1)
    _, key, value = tensors(lead=(2, 3), kv_len=7)
    module = attnbench.get(name).make(4, 4)
    options = {"return_weights": True, "is_causal": shape is None}
    if shape == (7,):
        options["valid_lens"] = torch.tensor([3, 7])
    elif shape is not None:
        options["attn_mask"] = torch.rand(shape) < 0.7
    expected = attnbench.attend(
        module, query, *(t.repeat_interleave(2, dim=1) for t in (key, value)), **options
    )
    if shape != (6, 1, 7):  # a mask that tells the heads of a group apart
        monkeypatch.setattr(attend, "expand_heads", None)  # no key is repeated
    got = attnbench.attend(module, query, key, value, enable_gqa=True, **options)
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    options["return_weights"] = False
    output = attnbench.attend(module, query, key, value, enable_gqa=True, **options)
    torch.testing.assert_close(output, expected[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("registered", [False, True])
def test_grouped_heads_of_one_query_stay_heads_where_positions_count(
    registered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec: Any = SPECS["distant"]
    module = spec.make(4, 4)
    if registered:  # as a plugin's, so that its exemptions are known
        monkeypatch.setattr(registry(), "scoring_by_origin", lambda origin: spec)
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 1, 4), torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 5)
    got = attnbench.attend(module, query, key, value, enable_gqa=True)
    wide = (t.expand(2, 4, 3, -1) for t in (key, value))
    assert torch.allclose(got, attnbench.attend(module, query, *wide), atol=1e-6)


def test_a_mask_of_the_wrong_shape_is_told_in_terms_of_the_callers_heads() -> None:
    query, _, _ = tensors(lead=(2, 6), q_len=1)
    _, key, value = tensors(lead=(2, 3), kv_len=7)
    mask = torch.ones(1, 5, dtype=torch.bool)
    with pytest.raises(MaskError, match=r"\(2, 6, 1, 7\)"):
        attnbench.attend("dot", query, key, value, attn_mask=mask, enable_gqa=True)


def test_a_module_carries_its_name_through_deepcopy_and_pickle() -> None:
    module = attnbench.get("additive").make(4, 4)
    for again in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert scoring_of(again) is attnbench.get("additive")


def test_a_users_function_of_a_built_in_name_is_not_taken_for_it() -> None:
    class Mine(nn.Module):
        def forward(self, query: Any, key: Any) -> Any:
            return query @ key.mT

    module = attnbench.ScoringSpec(name="additive", make=lambda q, k: Mine()).make(4, 4)
    assert scoring_of(module) is None


Q, K, V = tensors()
BAD_CALLS: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ("dot", {"query": Q.long()}, DtypeError, r"query has dtype torch\.int64"),
    ("dot", {"key": K.double()}, DtypeError, r"mixed dtypes: query torch.float32, key torch.float"),
    ("dot", {"query": [1.0]}, DtypeError, "query is a list"),
    ("dot", {"query": Q[0, 0]}, ShapeError, r"query has shape \(4,\)"),
    (
        attnbench.get("additive").make(5, 4),
        {},
        ShapeError,
        r"additive was made for query_size, key_size = \(5, 4\), but got \(4, 4\) features",
    ),
    ("dot", {"key": K[..., :3]}, ShapeError, "dot needs query_size == key_size, got 4 and 3"),
    ("dot", {"key": K[:, :4]}, ShapeError, "key has 4 slots and value 5"),
    ("dot", {"key": K[:1], "value": V[:1]}, ShapeError, "leading sizes differ"),
    (
        "dot",
        {
            "query": Q.expand(3, 2, 3, 4),
            "key": K.expand(3, 2, 5, 4)[:, :0],
            "value": V.expand(3, 2, 5, 6),
            "enable_gqa": True,
        },
        ShapeError,
        "key has 0 heads",
    ),
    ("dot", {"dropout_p": 1.5}, UsageError, r"dropout_p = 1\.5"),
    ("scaled_dott", {}, attnbench.UnknownNameError, "Did you mean 'scaled_dot'"),
    (nn.Identity(), {"kernel": "fast"}, UsageError, "not made by a registered scoring function"),
    ("dot", {"kernel": "fast"}, attnbench.UnknownNameError, "dot has no kernel 'fast'"),
]


@pytest.mark.parametrize(("scoring", "given", "error", "message"), BAD_CALLS)
def test_bad_input_is_one_clear_error(
    scoring: Any, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        attnbench.attend(scoring, **{"query": Q, "key": K, "value": V, **given})


def test_scores_of_the_wrong_shape_are_an_error_that_names_both() -> None:
    class Wrong(nn.Module):
        def forward(self, query: Any, key: Any) -> Any:
            return key @ query.mT

    with pytest.raises(ShapeError, match=r"shape \(2, 5, 3\).*have scores \(2, 3, 5\)"):
        attnbench.attend(Wrong(), *tensors())


def test_kernel_sees_no_empty_rows_and_their_output_is_zeroed() -> None:
    seen = {}

    def attend(
        module: Any, query: Any, key: Any, value: Any, attn_mask: Any = None, is_causal: Any = False
    ) -> Any:
        seen["mask"] = attn_mask
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask)

    kernel = attnbench.KernelSpec(name="sdpa", scoring="scaled_dot", attend=attend)
    query, key, value = tensors()
    output = attnbench.attend(
        "scaled_dot", query, key, value, valid_lens=torch.tensor([0, 2]), kernel=kernel
    )
    assert seen["mask"].any(-1).all()
    assert not output[0].any()
    assert output[1].any()


def test_a_kernel_that_cannot_run_the_case_says_why() -> None:
    kernel = attnbench.KernelSpec(
        name="never", scoring="dot", attend=print, supports=lambda case: f"no {case.dtype}"
    )
    with pytest.raises(UsageError, match="dot/never cannot run this: no float32"):
        attnbench.attend("dot", *tensors(), kernel=kernel)


def test_a_compiled_call_takes_the_kernel_too() -> None:
    seen = []

    def keep(graph: Any, _example: Any) -> Any:
        seen.append(str(graph.code))
        return graph

    module = attnbench.get("scaled_dot").make(4, 4)
    compiled = torch.compile(partial(attnbench.attend, module), backend=keep, fullgraph=True)
    for length in (3, 5, 9):  # sizes become dynamic at the second
        query, key, value = torch.randn(2, length, 4), torch.randn(2, 7, 4), torch.randn(2, 7, 3)
        expected = attnbench.attend(module, query, key, value, kernel="plain")
        torch.testing.assert_close(compiled(query, key, value), expected)
    assert len(seen) == 2
    assert all("scaled_dot_product_attention" in code for code in seen)
