import torch
from local_attention import LocalTransformer

torch.manual_seed(0)
sizes = dict(num_tokens=16, dim=16, depth=1, heads=2, dim_head=8, max_seq_len=16)
options = dict(local_attn_window_size=4, exact_windowsize=False, use_dynamic_pos_bias=True)
model = LocalTransformer(**sizes, **options, causal=True).eval()
for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.3)
ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
_, cache = model(ids[:, :7], return_cache=True)
wrong, _ = model(ids, cache=cache, return_cache=True)
print("got ", wrong[0, -1, :4].tolist())
print("want", model(ids)[0, -1, :4].tolist())
