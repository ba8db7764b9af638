import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy as np

keras.utils.set_random_seed(0)
attention = keras.layers.MultiHeadAttention(2, 4)
tokens = keras.layers.Embedding(8, 8, mask_zero=True)(np.array([[3, 1, 0, 0]]))
right = attention(tokens, tokens)  # the tokens' own mask hides the last two
wrong = attention(tokens, tokens)  # the first call took that mask off the tokens
print("got ", wrong[0, 0, :4].tolist())
print("want", right[0, 0, :4].tolist())
