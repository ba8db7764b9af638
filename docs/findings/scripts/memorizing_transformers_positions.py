import torch
from memorizing_transformers_pytorch.memorizing_transformers_pytorch import T5RelativePositionBias

torch.manual_seed(0)
bias = T5RelativePositionBias(scale=1.0, heads=1)
tokens, with_memory = 3, 8  # as the model asks for it, of 3 tokens and 5 in the memory
asked = bias(tokens, with_memory, device="cpu")[..., -3:, -8:]
right = bias(with_memory, with_memory, device="cpu")[..., -3:, -8:]
print("got ", asked[0, 0, 2, 4:].tolist())  # of the last token and the keys nearest to it
print("want", right[0, 0, 2, 4:].tolist())
