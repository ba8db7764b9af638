import torch
from conformer import Conformer, ConformerBlock

torch.manual_seed(0)
options = dict(dim=16, heads=2, dim_head=8, attn_dropout=0.5, ff_dropout=0.5, conv_dropout=0.5)
x = torch.randn(2, 9, 16)
differ = [
    int(not torch.equal(made(x), made(x)))
    for made in (Conformer(depth=1, **options).train(), ConformerBlock(**options).train())
]
print("got ", differ[0])  # whether two calls in training differ
print("want", differ[1])
