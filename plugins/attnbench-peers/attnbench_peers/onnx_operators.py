"""ONNX: the operator ``Attention``, in the reference evaluator and in onnxruntime."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from torch import Tensor

import attnbench
from attnbench.adapters import sdpa
from attnbench_peers._arrays import FORWARD_ONLY, on_tensors
from attnbench_peers.library import LIBRARIES

NAMES = ("Q", "K", "V", "mask")


@lru_cache
def _model(mask: str | None, causal: bool, dtype: str) -> Any:
    from onnx import TensorProto, helper

    kinds = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT, "bool": TensorProto.BOOL}
    kind = kinds[dtype]
    inputs = [helper.make_tensor_value_info(name, kind, None) for name in NAMES[:3]]
    if mask is not None:
        inputs.append(helper.make_tensor_value_info("mask", kinds[mask], None))
    names = [value.name for value in inputs]
    node = helper.make_node("Attention", names, ["Y"], is_causal=int(causal))
    output = helper.make_tensor_value_info("Y", kind, None)
    graph = helper.make_graph([node], "attention", inputs, [output])
    opset = [helper.make_opsetid("", 25)]
    return helper.make_model(graph, opset_imports=opset, ir_version=13)


@lru_cache
def _reference(*options: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(_model(*options))


@lru_cache
def _runtime(*options: Any) -> Any:
    from onnxruntime import InferenceSession

    return InferenceSession(
        _model(*options).SerializeToString(), providers=["CPUExecutionProvider"]
    )


def _operator(engine: Any) -> Any:
    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        def call(*arrays: Any) -> Any:
            feed = {name: a for name, a in zip(NAMES, arrays, strict=True) if a is not None}
            mask = str(feed["mask"].dtype) if "mask" in feed else None
            return engine(mask, is_causal, str(arrays[0].dtype)).run(None, feed)[0]

        return on_tensors(call)(query, key, value, attn_mask)

    return attend


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """``Attention`` of opset 25."""
    conventions = {**FORWARD_ONLY, "causal": "top_left", "masks": ("boolean", "floating")}
    for library, engine in {"onnx": _reference, "onnxruntime": _runtime}.items():
        if LIBRARIES["onnx"].installed and LIBRARIES[library].installed:
            dtypes = ("float32", "float16")
            name = f"{library}_attention"
            yield sdpa(_operator(engine), name=name, dtypes=dtypes, conventions=conventions)
