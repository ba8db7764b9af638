import torch
from transformers import LlamaConfig, StaticCache

cache = StaticCache(LlamaConfig(num_hidden_layers=1), max_cache_len=8)
tokens = torch.ones(1, 1, 3, 4)
cache.update(tokens, tokens, 0)
length = cache.get_seq_length()
cache.update(tokens, tokens, 0)
print("got ", int(length))  # what was asked for before the second call
print("want", 3)
