import os

os.environ["KERAS_BACKEND"] = "torch"
import keras

q = keras.random.normal((1, 3, 2, 4), seed=0)
k = v = keras.random.normal((1, 3, 1, 4), seed=1)  # one head of keys for both of queries
bias = keras.ops.zeros((1, 2, 3, 3))
try:
    wrong = keras.ops.dot_product_attention(q, k, v, bias=bias, is_causal=True)
    print("got ", wrong[0, :, 0, 0].tolist())
except RuntimeError as error:
    print("got ", str(error)[:80])
print("want", keras.ops.dot_product_attention(q, k, v, is_causal=True)[0, :, 0, 0].tolist())
