import torch
from routing_transformer import RoutingTransformer

torch.manual_seed(0)
sizes = dict(dim=16, depth=1, max_seq_len=8, heads=2, window_size=4, local_attn_window_size=4)
model = RoutingTransformer(**sizes, n_local_attn_heads=2, shift_tokens=True).eval()
x = torch.randn(1, 8, 16)
real = torch.tensor([[True] * 7 + [False]])
other = x.clone()
other[0, 7] = torch.randn(16)  # another padding
print("got ", model(other, input_mask=real)[0][0, 6, :4].tolist())
print("want", model(x, input_mask=real)[0][0, 6, :4].tolist())
