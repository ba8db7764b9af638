import torch
from ring_attention_pytorch import ring_flash_attn

torch.manual_seed(0)
q = torch.randn(1, 4, 2, 8)
k, v = torch.randn(2, 1, 8, 2, 8)
for name, size in (("got ", 4), ("want", 8)):
    output = ring_flash_attn(q, k, v, causal=True, bucket_size=size)
    print(name, output[0, 0, 0, :4].tolist())
