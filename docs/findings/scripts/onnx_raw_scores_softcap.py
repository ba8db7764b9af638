import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

q = k = v = np.full((1, 1, 1, 4), 3.0, "float32")
options = dict(softcap=1.0, qk_matmul_output_mode=0)  # mode 0: the raw product
node = helper.make_node("Attention", ["Q", "K", "V"], ["Y", "", "", "scores"], **options)
inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "QKV"]
outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("Y", "scores")]
model = helper.make_model(helper.make_graph([node], "g", inputs, outputs))
_, scores = ReferenceEvaluator(model).run(None, {"Q": q, "K": k, "V": v})
print("got ", scores.item())
print("want", (q @ k.swapaxes(2, 3)).item() / 4**0.5)
