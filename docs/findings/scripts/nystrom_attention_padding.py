import torch
from nystrom_attention import NystromAttention

torch.manual_seed(0)
attention = NystromAttention(dim=16, dim_head=8, heads=2, num_landmarks=4, residual=False).eval()
x = torch.randn(1, 5, 16)  # padded inside with zeros, to 8 tokens
everything = torch.ones(1, 5, dtype=torch.bool)  # hides nothing
print("got ", attention(x)[0, 0, :4].tolist())
print("want", attention(x, mask=everything)[0, 0, :4].tolist())
