import torch
from feedback_transformer_pytorch.feedback_transformer_pytorch import RelativePositionBias

torch.manual_seed(0)
bias = RelativePositionBias(causal=True, heads=1)
with_memory = torch.zeros(1, 1, 1, 4)  # scores of one token, after three in the memory
without = torch.zeros(1, 1, 4, 4)
print("got ", bias(with_memory)[0, 0, 0].tolist())
print("want", bias(without)[0, 0, 3].tolist())  # of the last of four tokens
