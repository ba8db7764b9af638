import jax.numpy as jnp
import numpy as np
from flax import nnx

x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 3, 8)).astype("float32"))
attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
real = jnp.array([[True, True, False]])[:, None, None]  # (B, 1, 1, S)
try:
    output = attention(x, mask=real, is_causal=True, sow_weights=True)
    print("got ", output[0, 0, :4].tolist())
except ValueError as error:
    print("got ", error)
print("want", attention(x, mask=real, is_causal=True)[0, 0, :4].tolist())
