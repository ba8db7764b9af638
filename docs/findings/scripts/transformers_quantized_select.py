import torch
from transformers import LlamaConfig, QuantizedCache

cache = QuantizedCache("quanto", LlamaConfig(num_hidden_layers=1), nbits=4, q_group_size=32)
prompt = torch.stack([torch.full((1, 4, 32), 1.0), torch.full((1, 4, 32), 2.0)])
cache.update(prompt, prompt, 0)
cache.update(prompt[:, :, :1], prompt[:, :, :1], 0)
cache.batch_select_indices(torch.tensor([1, 0]))  # row 0 holds the twos from here on
keys, _ = cache.update(prompt[:, :, :1].flip(0), prompt[:, :, :1].flip(0), 0)
print("got ", keys[0, 0, :, 0].tolist())
print("want", [2.0] * 6)
