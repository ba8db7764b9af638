import torch
from ring_attention_pytorch import default_attention, ring_flash_attn

torch.manual_seed(0)
q, k, v = torch.randn(3, 1, 4, 2, 8, dtype=torch.float64)
for name, attend in (("got ", ring_flash_attn), ("want", default_attention)):
    try:
        print(name, attend(q, k, v)[0, 0, 0, :4].tolist())
    except RuntimeError as error:
        print(name, str(error)[:80])
