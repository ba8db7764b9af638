import os

os.environ["KERAS_BACKEND"] = "torch"
import keras

keras.utils.set_random_seed(0)
mha = keras.layers.MultiHeadAttention(2, 4)
x = keras.random.normal((1, 3, 8))
mask = keras.ops.zeros((1, 3, 3), dtype="bool")  # nothing is left to attend to
right, _ = mha(x, x, attention_mask=mask, return_attention_scores=True)
wrong = mha(x, x, attention_mask=mask)
print("got ", wrong[0, 0, :4].tolist())
print("want", right[0, 0, :4].tolist())
