import torch
from ring_attention_pytorch import default_attention, ring_flash_attn

for name, attend in (("got ", ring_flash_attn), ("want", default_attention)):
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 4, 2, 8).unbind()
    q.requires_grad_()
    loss = attend(q, k, v).square().sum()
    (slope,) = torch.autograd.grad(loss, q, create_graph=True)
    penalised = loss + slope.square().sum()  # a gradient penalty
    print(name, torch.autograd.grad(penalised, q)[0][0, 0, 0, :4].tolist())
