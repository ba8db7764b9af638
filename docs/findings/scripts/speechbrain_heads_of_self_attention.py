import torch
from speechbrain.nnet.attention import RoPEMHA

torch.manual_seed(0)
attention = RoPEMHA(16, num_heads=2).eval()
x = torch.randn(1, 5, 16)
print("got ", attention(x[:, :1], x, x)[0][0, 0, :4].tolist())  # the first query alone
print("want", attention(x, x, x)[0][0, 0, :4].tolist())
