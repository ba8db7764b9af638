import torch
from pytorch_forecasting.layers import FullAttention, TriangularCausalMask

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 5, 2, 8)
attention = FullAttention(mask_flag=True, use_efficient_attention=True).eval()
print("got ", attention(q, k, v, TriangularCausalMask(1, 5))[0][0, 0, 0, :4].tolist())
print("want", attention(q, k, v, None)[0][0, 0, 0, :4].tolist())
