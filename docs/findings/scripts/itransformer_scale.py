import torch
from iTransformer.attend import Attend

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 2, 5, 8)
print("got ", Attend(scale=2.0, flash=True)(q, k, v)[0, 0, 0, :4].tolist())
print("want", Attend(scale=2.0)(q, k, v)[0, 0, 0, :4].tolist())
