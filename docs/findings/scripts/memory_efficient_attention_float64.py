import torch
from memory_efficient_attention_pytorch import Attention, FlashAttention

torch.manual_seed(0)
attention = Attention(dim=16, heads=2, dim_head=8).double()
flash = FlashAttention(dim=16, heads=2, dim_head=8).double()
flash.load_state_dict(attention.state_dict())
x = torch.randn(1, 5, 16).double()
try:
    print("got ", flash(x)[0, 0, :4].tolist())
except Exception as error:
    print("got ", str(error)[:80])
print("want", attention(x)[0, 0, :4].tolist())
