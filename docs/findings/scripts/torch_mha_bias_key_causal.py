import torch

torch.manual_seed(0)
mha = torch.nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True)
x = torch.randn(1, 3, 8)
mask = torch.nn.Transformer.generate_square_subsequent_mask(3)
wrong = mha(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)[0]
right = mha(x, x, x, attn_mask=mask, is_causal=True, need_weights=True)[0]
print("got ", wrong[0, 0, :4].tolist())
print("want", right[0, 0, :4].tolist())
