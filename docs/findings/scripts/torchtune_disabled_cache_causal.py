import torch
from torchtune.models.llama3 import llama3
from torchtune.modules.common_utils import disable_kv_cache

torch.manual_seed(0)
sizes = dict(vocab_size=9, num_layers=1, num_heads=2, num_kv_heads=2, embed_dim=16, max_seq_len=8)
model, tokens = llama3(**sizes).eval(), torch.tensor([[1, 2, 3, 4]])
want = model(tokens)[0, 0, :4].tolist()
model.setup_caches(batch_size=1, dtype=torch.float32, decoder_max_seq_len=8)
with disable_kv_cache(model):
    print("got ", model(tokens)[0, 0, :4].tolist())
print("want", want)
