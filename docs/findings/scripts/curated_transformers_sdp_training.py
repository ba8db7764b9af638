import torch
from curated_transformers.layers import attention as layers

torch.manual_seed(0)
attention = layers.ScaledDotProductAttention(dropout_prob=0.0, linear_biases=None).train()
q, k, v = torch.randn(3, 1, 2, 5, 8)
mask = layers.AttentionMask(torch.ones(1, 5, dtype=torch.bool))
tensors = dict(query=q, key=k, value=v, attention_mask=mask, use_causal_mask=False)
for name, use in (("got ", True), ("want", False)):
    with layers.enable_torch_sdp(use):
        try:
            print(name, attention(**tensors)[0, 0, 0, :4].tolist())
        except Exception as error:
            print(name, str(error)[:80])
