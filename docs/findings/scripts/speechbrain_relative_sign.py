import torch
from speechbrain.nnet.attention import RelPosEncXL

positions = RelPosEncXL(8).make_pe(4)[0]  # of 3, 2, 1, 0, -1, -2, -3 steps back
after, before = positions[4, :4], positions[2, :4]
print("got ", after.tolist())
print("want", (before * torch.tensor([-1.0, 1.0, -1.0, 1.0])).tolist())  # the sine is odd
