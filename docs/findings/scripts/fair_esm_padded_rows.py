import torch
from esm.axial_attention import RowSelfAttention

torch.manual_seed(0)
attention = RowSelfAttention(8, 2).eval()
alignment = torch.randn(3, 4, 1, 8)  # two rows of four columns, and one row of padding
padding = torch.zeros(1, 3, 4, dtype=torch.bool)
padding[:, 2] = True
print("got ", attention(alignment, self_attn_padding_mask=padding)[0][0, 0, 0, :4].tolist())
print("want", attention(alignment[:2])[0][0, 0, 0, :4].tolist())
