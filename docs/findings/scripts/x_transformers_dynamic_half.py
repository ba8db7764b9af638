import torch
from x_transformers import Decoder

torch.manual_seed(0)
decoder = Decoder(dim=16, depth=1, heads=2, dynamic_pos_bias=True, verbose=False).eval()
x = torch.randn(1, 3, 16)
right = decoder(x)[0, 0, :4].tolist()  # up to rounding to bfloat16
try:
    print("got ", decoder.bfloat16()(x.bfloat16())[0, 0, :4].tolist())
except RuntimeError as error:
    print("got ", error)
print("want", right)
