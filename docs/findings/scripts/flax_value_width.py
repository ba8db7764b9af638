import jax.numpy as jnp
import numpy as np
from flax import nnx

rng = np.random.default_rng(0)
q, k = (jnp.asarray(rng.normal(size=(1, 3, 2, 4)).astype("float32")) for _ in range(2))
v = jnp.asarray(rng.normal(size=(1, 3, 2, 6)).astype("float32"))  # wider than the query
try:
    print("got ", nnx.dot_product_attention(q, k, v)[0, 0, 0].tolist())
except ValueError as error:
    print("got ", error)
right = nnx.dot_product_attention(q, k, v, dropout_rate=0.5, deterministic=True)  # no dropout
print("want", right[0, 0, 0].tolist())
