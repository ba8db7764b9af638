import torch
from rotary_embedding_torch import RotaryEmbedding

torch.manual_seed(0)
q, k = torch.randn(2, 1, 1, 6, 8)
rotary = RotaryEmbedding(dim=8, use_xpos=True, xpos_scale_base=16)
last, keys = rotary.rotate_queries_with_cached_keys(q[:, :, -1:], k)
queries, all_keys = rotary.rotate_queries_and_keys(q, k)
print("got ", (last @ keys.mT)[0, 0, 0].tolist())
print("want", (queries @ all_keys.mT)[0, 0, -1].tolist())
