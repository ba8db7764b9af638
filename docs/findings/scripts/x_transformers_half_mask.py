import torch
from x_transformers import Encoder

torch.manual_seed(0)
encoder = Encoder(dim=16, depth=1, heads=2, verbose=False).bfloat16().eval()
x = torch.randn(1, 3, 16).bfloat16()
everything = torch.ones(1, 3, dtype=torch.bool)  # hides nothing
try:
    print("got ", encoder(x, mask=everything)[0, 0, :4].tolist())
except RuntimeError as error:
    print("got ", error)
print("want", encoder(x)[0, 0, :4].tolist())
