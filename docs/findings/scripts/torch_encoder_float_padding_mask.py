import torch

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
encoder = torch.nn.TransformerEncoder(layer, 1).eval()
x = torch.randn(1, 4, 8)
bias = torch.tensor([[0.0, 0.0, -0.5, -1.0]])  # added to the scores of each key
right = encoder(x, src_key_padding_mask=bias)  # gradients are on: the slow path
with torch.no_grad():
    wrong = encoder(x, src_key_padding_mask=bias)  # the nested-tensor path
print("got ", wrong[0, 3, :4].tolist())
print("want", right[0, 3, :4].tolist())
