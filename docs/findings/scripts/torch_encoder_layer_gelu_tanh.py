import torch

torch.manual_seed(0)
gelu = torch.nn.GELU(approximate="tanh")
layer = torch.nn.TransformerEncoderLayer(
    8, 2, 16, dropout=0.0, activation=gelu, batch_first=True
).eval()
x = 3 * torch.randn(1, 8, 8)
right = layer(x)  # gradients are on: the slow path
with torch.no_grad():
    wrong = layer(x)  # the fast path takes the exact GELU
worst = (wrong - right).abs().argmax()
print("got ", wrong.flatten()[worst].item())
print("want", right.flatten()[worst].item())
