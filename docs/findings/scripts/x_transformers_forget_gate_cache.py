import torch
from x_transformers.x_transformers import Attention

torch.manual_seed(0)
attention = Attention(16, heads=2, dim_head=8, causal=True, data_dependent_alibi=True)
torch.nn.init.normal_(attention.data_dependent_alibi.to_forget_gates[0].weight)
x = torch.randn(1, 5, 16)
_, seen = attention(x[:, :4], return_intermediates=True)
print("got ", attention(x[:, 4:], cache=seen)[0, 0, :4].tolist())
print("want", attention(x)[0, 4, :4].tolist())
