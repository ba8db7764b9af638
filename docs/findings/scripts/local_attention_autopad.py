import torch
from local_attention import LocalAttention

torch.manual_seed(0)
attention = LocalAttention(window_size=4, autopad=True)
q, k, v = torch.randn(3, 1, 1, 6, 8)  # 6 is padded to 8
print("got ", attention(q, k, v)[0, 0, 5, :4].tolist())
everyone = torch.ones(1, 6, dtype=torch.bool)
print("want", attention(q, k, v, mask=everyone)[0, 0, 5, :4].tolist())
