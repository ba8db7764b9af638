import torch
from diffusers.models.attention_processor import Attention

torch.manual_seed(0)
attention = Attention(16, heads=2, dim_head=8, qk_norm="layer_norm").eval()
x = torch.randn(1, 4, 16)
want = attention(x)[0, 0, :4].tolist()
attention.set_attention_slice(1)
print("got ", attention(x)[0, 0, :4].tolist())
print("want", want)
