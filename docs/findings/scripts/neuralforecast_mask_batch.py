import torch
from neuralforecast.common._modules import FullAttention, TriangularCausalMask

torch.manual_seed(0)
q, k, v = torch.randn(3, 3, 5, 2, 8)  # a batch of 3, and 2 heads
mask = TriangularCausalMask(3, 5)
for name, option in (("got ", False), ("want", True)):
    attention = FullAttention(mask_flag=True, output_attention=option).eval()
    try:
        print(name, attention(q, k, v, mask)[0][0, 0, 0, :4].tolist())
    except RuntimeError as error:
        print(name, str(error)[:80])
