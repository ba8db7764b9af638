import torch
from hourglass_transformer_pytorch.hourglass_transformer_pytorch import HourglassTransformer

torch.manual_seed(0)
model = HourglassTransformer(16, depth=(1, 1, 1), heads=2, dim_head=8, shorten_factor=2).eval()
x = torch.randn(1, 4, 16)
real = torch.tensor([[True] * 3 + [False]])
other = x.clone()
other[0, 3] = torch.randn(16)  # another padding
print("got ", model(other, mask=real)[0, 0, :4].tolist())
print("want", model(x, mask=real)[0, 0, :4].tolist())
