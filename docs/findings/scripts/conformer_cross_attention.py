import torch
from conformer.conformer import Attention

torch.manual_seed(0)
attention = Attention(16, heads=2, dim_head=8).eval()
x, context = torch.randn(1, 3, 16), torch.randn(1, 3, 16)
try:
    everything = torch.ones(1, 3, dtype=torch.bool)  # hides nothing
    print("got ", attention(x, context, context_mask=everything)[0, 0, :4].tolist())
except Exception as error:
    print("got ", str(error)[:80])
print("want", attention(x, context)[0, 0, :4].tolist())
