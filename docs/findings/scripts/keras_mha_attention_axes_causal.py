import os

os.environ["KERAS_BACKEND"] = "torch"
import keras

keras.utils.set_random_seed(0)
mha = keras.layers.MultiHeadAttention(2, 4, attention_axes=(2,))  # attend along axis 2
x = keras.random.normal((1, 1, 3, 8))
future = keras.ops.concatenate([x[:, :, :2], x[:, :, 2:] + 1], axis=2)  # position 2 moves
before = mha(x, x, use_causal_mask=True)
after = mha(future, future, use_causal_mask=True)
print("got ", after[0, 0, 0, :4].tolist())
print("want", before[0, 0, 0, :4].tolist())
