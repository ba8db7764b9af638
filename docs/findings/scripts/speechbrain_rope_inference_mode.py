import torch
from speechbrain.nnet.attention import RoPEMHA

torch.manual_seed(0)
attention, x, longer = RoPEMHA(16, num_heads=2), torch.randn(1, 5, 16), torch.randn(1, 9, 16)
for name, mode in (("want", torch.no_grad), ("got ", torch.inference_mode)):
    with mode():
        attention(longer if name == "got " else x, x, x)  # a validation before the training
    try:
        (slope,) = torch.autograd.grad(
            attention(x, x, x)[0].square().sum(), attention.in_proj_weight
        )
        print(name, slope[0, :4].tolist())
    except RuntimeError as error:
        print(name, str(error)[:80])
