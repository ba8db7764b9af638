import torch
from espnet.nets.pytorch_backend.transformer.embedding import PositionalEncoding

x = torch.zeros(1, 99, 8)
encode = PositionalEncoding(8, dropout_rate=0.0)
want = encode(x)[0, 98, :4].tolist()
encode(x.bfloat16())  # one call in half precision
print("got ", encode(x)[0, 98, :4].tolist())
print("want", want)
