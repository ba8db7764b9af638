import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 4, 2, 8)
for name, backend in (("got ", "flex"), ("want", "native")):
    output = dispatch_attention_fn(q, k, v, is_causal=True, backend=backend)
    print(name, output[0, 0, 0, :4].tolist())
