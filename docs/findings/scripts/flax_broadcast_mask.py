import jax.numpy as jnp
import numpy as np
from flax import nnx

rng = np.random.default_rng(0)
q, k, v = (jnp.asarray(rng.normal(size=(2, 2, 3, 1, 4)).astype("float32")) for _ in range(3))
mask = jnp.tril(jnp.ones((1, 2, 1, 3, 3), bool))  # to be broadcast to (2, 2, 1, 3, 3)
try:
    print("got ", nnx.dot_product_attention(q, k, v, mask=mask)[0, 0, 1, 0].tolist())
except TypeError as error:
    print("got ", error)
right = nnx.dot_product_attention(q, k, v, mask=mask, dropout_rate=0.5, deterministic=True)
print("want", right[0, 0, 1, 0].tolist())
