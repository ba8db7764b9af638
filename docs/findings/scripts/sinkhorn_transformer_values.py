import torch
from sinkhorn_transformer.sinkhorn_transformer import SinkhornAttention

torch.manual_seed(0)
attention = SinkhornAttention(4, 16, 8, 2, 8).eval()
query, key = torch.randn(2, 1, 2, 8, 8)
nothing = torch.zeros(1, 2, 8, 8)  # every value is 0
print("got ", attention(query, key, nothing)[0, 0, 0, :4].tolist())
print("want", nothing[0, 0, 0, :4].tolist())
