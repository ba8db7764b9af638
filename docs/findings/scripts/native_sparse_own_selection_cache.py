import torch
from native_sparse_attention_pytorch import SparseAttention

torch.manual_seed(0)
sizes = dict(dim=16, dim_head=8, heads=4, kv_heads=2, causal=True, sliding_window_size=2)
blocks = dict(compress_block_size=4, compress_block_sliding_stride=4, selection_block_size=4)
options = dict(num_selected_blocks=1, query_heads_share_selected_kv=False)
attention, x = SparseAttention(**sizes, **blocks, **options).eval(), torch.randn(1, 9, 16)
_, cache = attention(x[:, :8], return_cache=True)
try:
    print("got ", attention(x[:, 8:], cache=cache)[0, 0, :4].tolist())
except RuntimeError as error:
    print("got ", str(error)[:80])
print("want", attention(x)[0, 8, :4].tolist())
