import torch
from mega_pytorch import MegaLayer

torch.manual_seed(0)
sizes = dict(dim=16, ema_heads=2, attn_dim_qk=8, attn_dim_value=16)
layer = MegaLayer(**sizes, causal=True, norm_mhesa_heads=True).eval()
x = torch.randn(1, 5, 16)
print("got ", layer(x)[0, 0, :4].tolist())
print("want", layer(torch.cat([x[:, :1], torch.randn(1, 4, 16)], 1))[0, 0, :4].tolist())
