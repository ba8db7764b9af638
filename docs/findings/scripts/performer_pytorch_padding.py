import torch
from performer_pytorch import SelfAttention

torch.manual_seed(0)
attention = SelfAttention(8, heads=2, dim_head=4).eval()
x = torch.randn(1, 3, 8)
padded = torch.cat([x, torch.ones(1, 5, 8)], dim=1)
real = torch.tensor([[True] * 3 + [False] * 5])
print("got ", attention(padded, mask=real)[0, 0, :4].tolist())
print("want", attention(x)[0, 0, :4].tolist())
