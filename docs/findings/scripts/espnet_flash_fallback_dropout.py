import torch
from espnet.nets.pytorch_backend.transformer.attention import MultiHeadedAttention

torch.manual_seed(0)
x, real = torch.randn(1, 5, 16), torch.ones(1, 1, 5, dtype=torch.bool)
for name, flash in (("got ", True), ("want", False)):  # without a GPU both take the same path
    attention = MultiHeadedAttention(2, 16, dropout_rate=0.5, use_flash_attn=flash).train()
    differ = not torch.equal(attention(x, x, x, real), attention(x, x, x, real))
    print(name, int(differ))  # whether two calls in training differ
