import torch
from x_transformers import Encoder

torch.manual_seed(0)
encoder = Encoder(dim=8, depth=1, heads=2, verbose=False).double()
hidden, mask = torch.randn(2, 3, 8).double(), torch.tensor([[True] * 3, [False] * 3])


def gradient(batch):
    output = encoder(hidden[:batch], mask=mask[:batch])[0]  # of the first item: no padding in it
    return torch.autograd.grad(output[..., 0].sum(), weight)[0].flatten()[:4].tolist()


weight = encoder.get_parameter("layers.0.1.to_v.weight")
print("got ", gradient(batch=2))
print("want", gradient(batch=1))
