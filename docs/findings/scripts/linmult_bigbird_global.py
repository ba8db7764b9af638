import torch
from linmult.models.attention import BigBirdAttention

torch.manual_seed(0)
sizes = dict(d_model=8, num_heads=2, block_size=2, num_global_tokens=1, num_random_tokens=0)
attention = BigBirdAttention(**sizes).eval()
q, k, v = torch.randn(3, 1, 6, 2, 4)
local = BigBirdAttention(**sizes | {"num_global_tokens": 0}).eval()
seen = attention(q, k, v)[0][0, 0, 0] - local(q, k, v)[0][0, 0, 0]  # of the global token
weights = (q[0, 0, 0] @ k[0, :, 0].T / 2).softmax(-1)
print("got ", seen.tolist())
print("want", (weights @ v[0, :, 0]).tolist())
