import torch
from conformer import ConformerBlock

torch.manual_seed(0)
block = ConformerBlock(dim=16, heads=2, dim_head=8, conv_kernel_size=3).eval()
x = torch.randn(1, 5, 16)
real = torch.tensor([[True] * 4 + [False]])
other = x.clone()
other[0, 4] = torch.randn(16)  # another padding
print("got ", block(other, mask=real)[0, 3, :4].tolist())
print("want", block(x, mask=real)[0, 3, :4].tolist())
