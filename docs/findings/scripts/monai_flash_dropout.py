import torch
from monai.networks.blocks.selfattention import SABlock

torch.manual_seed(0)
fused = SABlock(8, 2, dropout_rate=0.5, use_flash_attention=True).eval()
plain = SABlock(8, 2, dropout_rate=0.5).eval()
plain.load_state_dict(fused.state_dict())
x = torch.randn(1, 3, 8)
print("got ", fused(x)[0, 0, :4].tolist())
print("want", plain(x)[0, 0, :4].tolist())
