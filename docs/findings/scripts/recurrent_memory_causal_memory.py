import torch
from recurrent_memory_transformer_pytorch import RecurrentMemoryTransformer

sizes = dict(dim=16, num_tokens=7, depth=1, num_memory_tokens=2, seq_len=8, dim_head=8, heads=2)
for name, option in (("got ", False), ("want", True)):
    torch.manual_seed(0)
    model = RecurrentMemoryTransformer(**sizes, memory_not_causal=option).eval()
    try:
        print(name, model(torch.arange(6)[None])[0][0, 0, :4].tolist())
    except RuntimeError as error:
        print(name, str(error)[:80])
