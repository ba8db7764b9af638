import torch
from x_transformers.x_transformers import Attention

torch.manual_seed(0)
attention = Attention(16, heads=2, dim_head=8, causal=True, orthog_projected_values=True)
x = torch.randn(1, 5, 16)
future = torch.cat([x[:, :4], x[:, 4:] + 1], dim=1)  # only the last position moves
print("got ", attention(future)[0, 0, :4].tolist())
print("want", attention(x)[0, 0, :4].tolist())
