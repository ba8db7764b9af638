import torch
from rotary_embedding_torch import RotaryEmbedding

query = torch.ones(1, 1, 512, 8)
rotary = RotaryEmbedding(dim=8)
rotary.rotate_queries_or_keys(query.bfloat16())  # one call in bfloat16, then one in float32
print("got ", rotary.rotate_queries_or_keys(query)[0, 0, 511, :4].tolist())
print("want", RotaryEmbedding(dim=8).rotate_queries_or_keys(query)[0, 0, 511, :4].tolist())
