import torch
from mixture_of_attention.mixture_of_attention import Attention

torch.manual_seed(0)
x = torch.randn(1, 5, 16)
plain, fused = (Attention(16, heads=2, dim_head=8, causal=True, flash=f).eval() for f in (0, 1))
fused.load_state_dict(plain.state_dict())
try:
    print("got ", plain(x)[0, 0, :4].tolist())
except Exception as error:
    print("got ", str(error)[:80])
print("want", fused(x)[0, 0, :4].tolist())
