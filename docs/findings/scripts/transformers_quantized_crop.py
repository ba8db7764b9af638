import torch
from transformers import LlamaConfig, QuantizedCache

cache = QuantizedCache("quanto", LlamaConfig(num_hidden_layers=1), nbits=4, q_group_size=32)
tokens = torch.arange(1.0, 5.0).view(1, 1, 4, 1).expand(1, 1, 4, 32)
cache.update(tokens, tokens, 0)
cache.update(tokens[:, :, :2], tokens[:, :, :2], 0)
cache.crop(-2)
print("got ", cache.get_seq_length())
print("want", 4)
