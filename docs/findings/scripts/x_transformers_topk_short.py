import torch
from x_transformers import Decoder

torch.manual_seed(0)
x = torch.randn(1, 3, 16)
sparse = Decoder(dim=16, depth=1, heads=2, attn_sparse_topk=4, verbose=False)
plain = Decoder(dim=16, depth=1, heads=2, verbose=False)
plain.load_state_dict(sparse.state_dict())
try:
    print("got ", sparse(x)[0, 0, :4].tolist())
except RuntimeError as error:
    print("got ", error)
print("want", plain(x)[0, 0, :4].tolist())  # the 4 best of 3 keys are all of them
