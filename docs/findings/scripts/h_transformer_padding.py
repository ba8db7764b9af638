import torch
from h_transformer_1d.h_transformer_1d import HAttention1D

torch.manual_seed(0)
attention = HAttention1D(16, heads=2, dim_head=8, block_size=2).eval()
x = torch.randn(1, 13, 16)  # padded inside with zeros, to 16 tokens
everything = torch.ones(1, 13, dtype=torch.bool)  # hides nothing
print("got ", attention(x)[0, 12, :4].tolist())
print("want", attention(x, mask=everything)[0, 12, :4].tolist())
