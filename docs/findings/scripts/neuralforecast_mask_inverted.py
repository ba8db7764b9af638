import torch
from neuralforecast.common._modules import FullAttention, TriangularCausalMask

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 5, 2, 8)
mask = TriangularCausalMask(1, 5)
fused, plain = (FullAttention(mask_flag=True, output_attention=a).eval() for a in (False, True))
print("got ", fused(q, k, v, mask)[0][0, 0, 0, :4].tolist())
print("want", plain(q, k, v, mask)[0][0, 0, 0, :4].tolist())
