import torch
from linear_attention_transformer import LinearAttentionTransformer

torch.manual_seed(0)
model = LinearAttentionTransformer(16, 1, 8, heads=2, shift_tokens=True).eval()
x = torch.randn(1, 5, 16)
real = torch.tensor([[True] * 4 + [False]])
other = x.clone()
other[0, 4] = 7.0  # another padding
print("got ", model(other, input_mask=real)[0, 3, :4].tolist())
print("want", model(x, input_mask=real)[0, 3, :4].tolist())
