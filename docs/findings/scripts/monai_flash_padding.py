import torch
from monai.networks.blocks.selfattention import SABlock

torch.manual_seed(0)
fused, plain = SABlock(8, 2, use_flash_attention=True).eval(), SABlock(8, 2).eval()
plain.load_state_dict(fused.state_dict())
x = torch.randn(3, 3, 8)
real = torch.tensor([[True, True, False], [True, True, True], [True, True, True]])
print("got ", fused(x, real)[1, 0, :4].tolist())
print("want", plain(x, real)[1, 0, :4].tolist())
