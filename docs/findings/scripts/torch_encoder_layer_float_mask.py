import torch

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()
x = torch.randn(1, 4, 8)
alibi = -(torch.arange(4)[:, None] - torch.arange(4)).abs().float()  # added to the scores
right = layer(x, src_mask=alibi)  # gradients are on: the slow path
with torch.no_grad():
    wrong = layer(x, src_mask=alibi)  # the fast path
print("got ", wrong[0, 0, :4].tolist())
print("want", right[0, 0, :4].tolist())
