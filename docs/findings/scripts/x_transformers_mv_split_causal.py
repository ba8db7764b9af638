import torch
from x_transformers import Decoder

torch.manual_seed(0)
decoder = Decoder(dim=16, depth=1, heads=2, mv_split_residual=True, verbose=False).eval()
x = torch.randn(1, 5, 16)
future = torch.cat([x[:, :4], x[:, 4:] + torch.randn(1, 1, 16)], dim=1)  # only the last moves
print("got ", decoder(future)[0, 0, :4].tolist())
print("want", decoder(x)[0, 0, :4].tolist())
