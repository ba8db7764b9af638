import torch

torch.manual_seed(0)
mha = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
x = torch.randn(1, 3, 8)
mask = torch.nn.Transformer.generate_square_subsequent_mask(3)
with torch.no_grad():  # with gradients the first call raises and asks for a mask
    wrong = mha(x, x, x, is_causal=True)[0]
    right = mha(x, x, x, is_causal=True, attn_mask=mask)[0]
print("got ", wrong[0, 0, :4].tolist())
print("want", right[0, 0, :4].tolist())
