import torch
from diffusers.models.attention_processor import Attention

x = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(0))
for name, given in (("got ", {}), ("want", dict(kv_heads=2))):  # which is what heads is
    torch.manual_seed(0)
    try:
        layer = Attention(16, heads=2, dim_head=8, qk_norm="rms_norm_across_heads", **given)
        print(name, layer.norm_k(layer.to_k(x))[0, 0, :4].tolist())
    except TypeError as error:
        print(name, error)
