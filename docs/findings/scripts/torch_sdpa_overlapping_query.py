import torch
from torch.nn.functional import scaled_dot_product_attention as attend

torch.manual_seed(0)
q = torch.randn(1, 1, 14).unfold(-1, 8, 1)  # 7 rows of 8, each begins one number after the last
k, v = torch.randn(2, 1, 1, 33, 8)
copied = attend(q.contiguous(), k, v)
print("got ", torch.allclose(attend(q, k, v), copied, atol=1e-2))
print("want", True)
