import torch
from torchtune.modules import RotaryPositionalEmbeddings

x = torch.arange(12.0).reshape(1, 6, 1, 2)
for name, length in (("got ", 4), ("want", 6)):
    try:
        print(name, RotaryPositionalEmbeddings(2, max_seq_len=length)(x)[0, 5, 0].tolist())
    except RuntimeError as error:
        print(name, str(error)[:80])
