"""Kernels that are wrong only where two things come together, which are right alone."""

import torch
from torch.nn.functional import scaled_dot_product_attention as right


def _wrong_where(bad):
    def call(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
        found = right(
            query, key, value, attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return found * 0.9 if bad(query, key, value, attn_mask, is_causal, scale) else found

    return call


@_wrong_where
def seven_heads_of_half_types(query, key, value, mask, causal, scale):
    return query.shape[1] == 7 and query.dtype == torch.float16


@_wrong_where
def many_heads_of_long_rows(query, key, value, mask, causal, scale):
    return query.shape[1] >= 8 and query.shape[-2] >= 64


@_wrong_where
def wide_heads_with_many_keys(query, key, value, mask, causal, scale):
    return query.shape[-1] > 128 and key.shape[-2] > 512


@_wrong_where
def causal_with_more_queries_in_half_types(query, key, value, mask, causal, scale):
    half = query.dtype != torch.float32
    return causal and half and query.shape[-2] > key.shape[-2]


@_wrong_where
def masks_of_many_keys(query, key, value, mask, causal, scale):
    return mask is not None and key.shape[-2] > 1100


@_wrong_where
def more_keys_than_4096(query, key, value, mask, causal, scale):
    return key.shape[-2] > 4096


@_wrong_where
def powers_of_two_with_many_keys(query, key, value, mask, causal, scale):
    return key.shape[-2] > 512 and key.shape[-2] & (key.shape[-2] - 1) == 0


@_wrong_where
def more_features_than_512(query, key, value, mask, causal, scale):
    return query.shape[-1] > 512


@_wrong_where
def grouped_heads_with_a_mask_for_all(query, key, value, mask, causal, scale):
    return key.shape[1] < query.shape[1] and mask is not None and mask.dim() == 2


@_wrong_where
def wider_values_with_a_scale_of_0(query, key, value, mask, causal, scale):
    return scale == 0 and value.shape[-1] > query.shape[-1]


@_wrong_where
def sliced_keys_for_one_query(query, key, value, mask, causal, scale):
    return key.storage_offset() > 0 and query.shape[-2] == 1


@_wrong_where
def floating_masks_for_all_heads(query, key, value, mask, causal, scale):
    floating = mask is not None and mask.is_floating_point()
    return floating and mask.dim() == 4 and mask.shape[1] == 1 < query.shape[1]


@_wrong_where
def many_items_of_half_types(query, key, value, mask, causal, scale):
    return query.shape[0] > 6 and query.dtype != torch.float32


@_wrong_where
def values_laid_out_apart_from_keys(query, key, value, mask, causal, scale):
    return key.is_contiguous() and value.shape[-1] > 1 and value.stride(-1) != 1


@_wrong_where
def masks_of_one_column(query, key, value, mask, causal, scale):
    return mask is not None and mask.shape[-1] == 1 < key.shape[-2]


@_wrong_where
def queries_of_zeros_with_a_mask(query, key, value, mask, causal, scale):
    return mask is not None and not query.any()


@_wrong_where
def values_among_the_features_of_many_keys(query, key, value, mask, causal, scale):
    narrow = value.shape[-1] < key.shape[-1] and key.shape[-2] > 128
    return narrow and key.data_ptr() == value.data_ptr()


@_wrong_where
def queries_among_many_keys(query, key, value, mask, causal, scale):
    end = key.data_ptr() + key.nbytes
    return key.shape[-2] > 128 and key.data_ptr() < query.data_ptr() < end


@_wrong_where
def many_keys_of_overlapping_rows(query, key, value, mask, causal, scale):
    return key.shape[-2] > 128 and key.stride(-2) == 1 < key.shape[-1] and key.stride(-1) == 1
