import os

os.environ["KERAS_BACKEND"] = "numpy"
import keras
import numpy as np

rng = np.random.default_rng(0)
q, k, v = (rng.normal(size=(1, 3, heads, 4)) for heads in (4, 2, 2))
try:
    print("got ", keras.ops.dot_product_attention(q, k, v)[0, 0, :, 0].tolist())
except ValueError as error:
    print("got ", str(error).split("[")[0])
k, v = np.repeat(k, 2, axis=2), np.repeat(v, 2, axis=2)
print("want", keras.ops.dot_product_attention(q, k, v)[0, 0, :, 0].tolist())
