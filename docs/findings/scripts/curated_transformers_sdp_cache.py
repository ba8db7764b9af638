import torch
from curated_transformers.layers import attention as layers

torch.manual_seed(0)
attention = layers.ScaledDotProductAttention(dropout_prob=0.0, linear_biases=None).eval()
query, key, value = torch.randn(1, 2, 1, 8), *torch.randn(2, 1, 2, 5, 8)  # a step, with a cache
mask = layers.AttentionMask(torch.ones(1, 5, dtype=torch.bool))
tensors = dict(query=query, key=key, value=value, attention_mask=mask, use_causal_mask=True)
for name, use in (("got ", True), ("want", False)):
    with layers.enable_torch_sdp(use):
        print(name, [float(size) for size in attention(**tensors).shape])
