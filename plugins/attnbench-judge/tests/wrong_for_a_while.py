"""Wrong in some hundreds of calls, most of them those of invariants, and at long lengths only."""

from torch.nn.functional import scaled_dot_product_attention as fused

calls = [0]


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    calls[0] += 1
    output = fused(query, key, value, attn_mask, is_causal=is_causal, scale=scale)
    return output * (calls[0] < 900 or calls[0] > 1400 or key.shape[-2] < 48)
