import torch
from torch_geometric.nn.attention import PolynormerAttention

torch.manual_seed(0)
attention = PolynormerAttention(8, heads=2, head_channels=4).eval()
graph = torch.randn(1, 3, 8)
padded = torch.cat([graph, torch.ones(1, 5, 8)], dim=1)
valid = torch.tensor([[True] * 3 + [False] * 5])
print("got ", attention(padded, valid)[0, 0, :4].tolist())
print("want", attention(graph)[0, 0, :4].tolist())
