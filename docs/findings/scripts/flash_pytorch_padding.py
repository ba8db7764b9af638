import torch
from flash_pytorch import GAU

torch.manual_seed(0)
layer = GAU(dim=16, query_key_dim=8, add_residual=False).eval()
torch.nn.init.normal_(layer.offsetscale.gamma)
x = torch.randn(1, 6, 16)
real = torch.tensor([[True] * 3 + [False] * 3])
print("got ", layer(x, mask=real)[0, 0, :4].tolist())
print("want", layer(x[:, :3], mask=real[:, :3])[0, 0, :4].tolist())
