import torch
from torch.nn.functional import scaled_dot_product_attention as attend

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 1, 3, 4)
mask = torch.ones(3, 3, dtype=torch.bool).tril()
print("got ", attend(q, k, v, is_causal=True, scale=-1.0)[0, 0, :, 0].tolist())
print("want", attend(q, k, v, attn_mask=mask, scale=-1.0)[0, 0, :, 0].tolist())
