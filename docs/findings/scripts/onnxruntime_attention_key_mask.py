import numpy as np
import onnxruntime
from onnx import parser

text = """<ir_version: 10, opset_import: ["" : 23]>
g (float[1,1,3,4] Q, float[1,1,3,4] K, float[1,1,3,4] V, bool[1,1,N,3] mask) => (float[1,1,3,4] Y)
{ Y = Attention (Q, K, V, mask) }"""
session = onnxruntime.InferenceSession(parser.parse_model(text).SerializeToString())
rng = np.random.default_rng(0)
feed = {name: rng.normal(size=(1, 1, 3, 4)).astype("float32") for name in "QKV"}
for name, rows in (("got ", 1), ("want", 3)):  # the same mask, broadcast or written out
    try:
        print(name, session.run(None, feed | {"mask": np.ones((1, 1, rows, 3), bool)})[0][0, 0, 0])
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail as error:
        print(name, str(error).rpartition("was false. ")[2].strip())
