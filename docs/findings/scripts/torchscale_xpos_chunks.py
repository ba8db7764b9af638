import torch
from torchscale.architecture.config import DecoderConfig
from torchscale.component.multihead_attention import MultiheadAttention

torch.manual_seed(0)
config = DecoderConfig(xpos_rel_pos=True)
attention = MultiheadAttention(config, 8, 2, self_attention=True).eval()
attention.reset_parameters()
x, seen = torch.randn(1, 5, 8), {}
hidden = torch.full((5, 5), float("-inf")).triu(1)
attention(*[x[:, :3]] * 3, seen, attn_mask=hidden[:3, :3], is_first_step=True)
print("got ", attention(*[x[:, 3:]] * 3, seen, attn_mask=hidden[3:])[0][0, 1, :4].tolist())
print("want", attention(x, x, x, attn_mask=hidden)[0][0, 4, :4].tolist())
