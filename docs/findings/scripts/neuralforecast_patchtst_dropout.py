import torch
from neuralforecast.models.patchtst import _MultiheadAttention

torch.manual_seed(0)
x = torch.randn(1, 5, 16)
attention = _MultiheadAttention(16, 2, attn_dropout=0.5).eval()
print("got ", attention(x)[0][0, 0, :4].tolist())
attention.sdp_attn.attn_dropout.p = 0.0
print("want", attention(x)[0][0, 0, :4].tolist())
