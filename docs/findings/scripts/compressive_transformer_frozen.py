import torch
from compressive_transformer_pytorch.compressive_transformer_pytorch import SelfAttention

torch.manual_seed(0)
attention = SelfAttention(16, seq_len=4, mem_len=4, cmem_len=2, heads=2).train()
memories, learns = None, []
for _ in range(3):
    _, memories, _ = attention(torch.randn(1, 4, 16), memories)
    learns.append(float(attention.to_kv.weight.requires_grad))
print("got ", learns[2])  # 1 where the weight is trained after this call
print("want", learns[0])
