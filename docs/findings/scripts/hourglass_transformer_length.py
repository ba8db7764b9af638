import torch
from hourglass_transformer_pytorch import HourglassTransformerLM

torch.manual_seed(0)
sizes = dict(num_tokens=8, dim=16, max_seq_len=8, heads=2, dim_head=8)
model = HourglassTransformerLM(**sizes, depth=(1, 1, 1), shorten_factor=2).eval()
ids = torch.arange(6)[None]
try:
    print("got ", model(ids[:, :5])[0, 4, :4].tolist())
except Exception as error:
    print("got ", error)
print("want", model(ids)[0, 4, :4].tolist())
