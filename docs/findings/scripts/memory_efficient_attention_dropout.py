import torch
from memory_efficient_attention_pytorch import Attention

torch.manual_seed(0)
attention = Attention(dim=16, heads=2, dim_head=8, dropout=0.5).train()
x = torch.randn(1, 9, 16)
differ = [
    int(not torch.equal(attention(x, memory_efficient=path), attention(x, memory_efficient=path)))
    for path in (False, True)
]
print("got ", differ[0])  # whether two calls in training differ
print("want", differ[1])
