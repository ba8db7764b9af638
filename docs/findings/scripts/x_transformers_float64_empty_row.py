import torch
from x_transformers import Encoder

torch.manual_seed(0)
encoder = Encoder(dim=8, depth=1, heads=2, verbose=False).double()
hidden, mask = torch.randn(2, 3, 8).double(), torch.tensor([[True] * 3, [False] * 3])
weight = encoder.get_parameter("layers.0.1.to_v.weight")


def gradient(batch):
    loss = encoder(hidden[:batch], mask=mask[:batch])[0, :, 0].sum()  # item 0 has no padding
    return torch.autograd.grad(loss, weight)[0].flatten()[:4].tolist()


print("got ", gradient(batch=2), "\nwant", gradient(batch=1))
