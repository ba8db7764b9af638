import torch
from recurrent_memory_transformer_pytorch.recurrent_memory_transformer import Attention

torch.manual_seed(0)
sizes = dict(dim=16, dim_head=8, heads=2, causal=True, use_flash_attn=True)
flash, masked = Attention(**sizes), Attention(**sizes, use_custom_causal_attn_mask=True)
masked.load_state_dict(flash.state_dict())
x = torch.randn(1, 4, 16)
causal = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()  # each token, and those before it
print("got ", flash(x)[0][0, 0, :4].tolist())
print("want", masked(x, mask=causal)[0][0, 0, :4].tolist())
