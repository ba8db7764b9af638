import torch
from kornia.feature.loftr.loftr_module.linear_attention import FullAttention

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 5, 2, 8)
real = torch.tensor([[True] * 3 + [False] * 2])
attention = FullAttention().eval()
print("got ", attention(q, k, v, kv_mask=real)[0, 0, 0, :4].tolist())
print("want", attention(q, k[:, :3], v[:, :3])[0, 0, 0, :4].tolist())
