import torch
from htm_pytorch import HTMAttention

torch.manual_seed(0)
attention = HTMAttention(dim=16, heads=2, dim_head=8, topk_mems=2, mem_chunk_size=4).eval()
x, memories = torch.randn(1, 3, 16), torch.randn(1, 6, 16)  # padded inside, to 8 memories
everything = torch.ones(1, 6, dtype=torch.bool)  # hides nothing
print("got ", attention(x, memories)[0, 0, :4].tolist())
print("want", attention(x, memories, mask=everything)[0, 0, :4].tolist())
