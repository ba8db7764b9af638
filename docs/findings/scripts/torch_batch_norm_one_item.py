import torch

torch.manual_seed(0)
norm = torch.nn.BatchNorm2d(3)
x, weight = torch.randn(1, 3, 2, 4), torch.randn(1, 8, 3)
tokens = norm(x).flatten(2).transpose(1, 2)  # (B, C, H, W) to (B, H·W, C)
(slope,) = torch.autograd.grad((tokens * weight).sum(), norm.bias)
print("got ", slope.tolist())
print("want", weight.sum((0, 1)).tolist())  # the bias is added to every token
