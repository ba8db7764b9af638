import torch
from memory_efficient_attention_pytorch import Attention

torch.manual_seed(0)
attention = Attention(dim=16, heads=2, dim_head=8, causal=True)
x, context = torch.randn(1, 2, 16), torch.randn(1, 5, 16)
print("got ", attention(x, context, memory_efficient=True)[0, 1, :4].tolist())
print("want", attention(x, context)[0, 1, :4].tolist())
