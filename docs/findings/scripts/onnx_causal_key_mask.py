import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

rng = np.random.default_rng(0)
feed = {name: rng.normal(size=(1, 1, 3, 4)).astype("float32") for name in "QKV"}
inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "QKV"]
inputs.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, None))
output = helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)
node = helper.make_node("Attention", ["Q", "K", "V", "mask"], ["Y"], is_causal=1)
model = helper.make_model(helper.make_graph([node], "g", inputs, [output]))
for name, rows in (("got ", 1), ("want", 3)):  # the same mask, broadcast or written out
    result = ReferenceEvaluator(model).run(None, feed | {"mask": np.ones((1, 1, rows, 3), bool)})
    print(name, result[0][0, 0, :, 0].tolist())
