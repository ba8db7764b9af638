import torch
from memory_efficient_attention_pytorch import Attention, FlashAttention

torch.manual_seed(0)
x, learned = torch.randn(1, 5, 16, requires_grad=True), []
attention = Attention(dim=16, heads=2, dim_head=8)
flash = FlashAttention(dim=16, heads=2, dim_head=8)
flash.load_state_dict(attention.state_dict())
for module in (flash, attention):
    (slope,) = torch.autograd.grad(module(x).sin().sum(), x, create_graph=True)
    slope.square().sum().backward()  # a penalty on the gradient
    learned.append(module.to_q.weight.grad[0, :4].tolist())
print("got ", learned[0])
print("want", learned[1])
