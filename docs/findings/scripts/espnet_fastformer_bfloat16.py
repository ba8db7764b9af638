import torch
from espnet2.asr.layers.fastformer import FastSelfAttention

torch.manual_seed(0)
attention = FastSelfAttention(16, 2, 0.0).eval().bfloat16()
x = torch.randn(1, 5, 16).bfloat16()
everything = torch.ones(1, 1, 5, dtype=torch.bool)  # hides nothing
try:
    print("got ", attention(x, everything)[0, 0, :4].tolist())
except Exception as error:
    print("got ", str(error)[:80])
print("want", attention(x, None)[0, 0, :4].tolist())
