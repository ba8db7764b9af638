import jax.numpy as jnp
import numpy as np
from flax import nnx

x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 4, 8)).astype("float32"))
attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0))
attention.init_cache(x.shape)
for i in range(4):  # token by token, with a cache
    step = attention(x[:, i : i + 1], is_causal=True, decode=True)
print("got ", step[0, 0, :4].tolist())
print("want", attention(x, is_causal=True)[0, 3, :4].tolist())
