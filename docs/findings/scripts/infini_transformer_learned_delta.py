import torch
from infini_transformer_pytorch import InfiniTransformer

torch.manual_seed(0)
sizes = dict(num_tokens=7, dim=16, depth=1, dim_head=8, heads=2)
model = InfiniTransformer(**sizes, use_mem_delta_rule=True, learned_delta_update=True).eval()
tokens, kept = torch.randint(0, 7, (1, 8)), None  # a segment of 8
for i in range(8):  # with the cache of the segment
    _, kept, cached = model(tokens[:, : i + 1], cached_kv=kept, return_new_memories=i == 7)
_, _, whole = model(tokens, return_new_memories=True)
for name, (memory, *_) in (("got ", cached), ("want", whole)):
    print(name, memory[0][0, 0, 0, :4].tolist())
