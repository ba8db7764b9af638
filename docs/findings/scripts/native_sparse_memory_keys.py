import torch
from native_sparse_attention_pytorch import SparseAttention

torch.manual_seed(0)
sizes = dict(dim=16, dim_head=8, heads=2, causal=True, sliding_window_size=2, num_selected_blocks=1)
blocks = dict(compress_block_size=4, compress_block_sliding_stride=4, selection_block_size=4)
attention = SparseAttention(**sizes, **blocks).eval()
torch.nn.init.normal_(attention.compress_mem_kv)  # as training moves it from 0
x = torch.randn(1, 3, 16)
_, cache = attention(x[:, :2], return_cache=True)
print("got ", attention(x[:, 2:], cache=cache)[0, 0, :4].tolist())
print("want", attention(x)[0, 2, :4].tolist())
