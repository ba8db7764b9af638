import torch
from local_attention import LocalTransformer

torch.manual_seed(0)
sizes = dict(num_tokens=16, dim=16, depth=1, heads=2, dim_head=8, max_seq_len=16)
model = LocalTransformer(**sizes, causal=True, local_attn_window_size=8).eval()
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.3)
ids = torch.tensor([[3, 1, 4, 1, 5, 9]])
cache = None
for i in range(1, 7):
    wrong, cache = model(ids[:, :i], cache=cache, return_cache=True)
print("got ", wrong[0, -1, :4].tolist())
print("want", model(ids)[0, -1, :4].tolist())
