import torch
from fast_transformer_pytorch.fast_transformer_pytorch import FastAttention

torch.manual_seed(0)
attention = FastAttention(16, heads=2, dim_head=8)
x = torch.randn(1, 5, 16)
everything = torch.ones(1, 5, dtype=torch.bool)  # hides nothing
try:
    print("got ", attention(x)[0, 0, :4].tolist())
except Exception as error:
    print("got ", str(error).strip().splitlines()[0][:80])
print("want", attention(x, mask=everything)[0, 0, :4].tolist())
