import torch

torch.manual_seed(0)
mha = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
x = torch.randn(1, 3, 8)
padding = torch.tensor([[True, True, True]])  # nothing is left to attend to
right = mha(x, x, x, key_padding_mask=padding, need_weights=False)[0]
with torch.no_grad():
    wrong = mha(x, x, x, key_padding_mask=padding, need_weights=False)[0]
print("got ", wrong[0, 0, :4].tolist())
print("want", right[0, 0, :4].tolist())
