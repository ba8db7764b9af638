import torch
from diffusers.models.attention_processor import Attention

torch.manual_seed(0)
grouped = Attention(16, heads=2, kv_heads=1, dim_head=8)
full = Attention(16, heads=2, dim_head=8)
parts = grouped.state_dict()  # the one head of keys and values, for both heads of queries
full.load_state_dict(parts | {f"to_{n}.weight": parts[f"to_{n}.weight"].repeat(2, 1) for n in "kv"})
x = torch.randn(1, 4, 16)
try:
    print("got ", grouped(x)[0, 0, :4].tolist())
except RuntimeError as error:
    print("got ", str(error)[:80])
print("want", full(x)[0, 0, :4].tolist())
