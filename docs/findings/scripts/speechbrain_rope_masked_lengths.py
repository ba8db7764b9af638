import torch
from speechbrain.nnet.attention import RoPEMHA

torch.manual_seed(0)
attention = RoPEMHA(16, num_heads=2).eval()
x, y = torch.randn(1, 3, 16), torch.randn(1, 5, 16)
hidden = torch.zeros(1, 5, dtype=torch.bool)  # (batch, keys), none of them
try:
    print("got ", attention(x, y, y, key_padding_mask=hidden)[0][0, 0, :4].tolist())
except RuntimeError as error:
    print("got ", str(error)[:80])
print("want", attention(x, y, y)[0][0, 0, :4].tolist())
