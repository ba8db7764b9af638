import torch
from pytorch_forecasting.layers import FullAttention

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 5, 2, 8)
try:
    print("got ", FullAttention().eval()(q, k, v, None)[0][0, 0, 0, :4].tolist())
except Exception as error:
    print("got ", str(error)[:80])
right = FullAttention(use_efficient_attention=True).eval()
print("want", right(q, k, v, None)[0][0, 0, 0, :4].tolist())
