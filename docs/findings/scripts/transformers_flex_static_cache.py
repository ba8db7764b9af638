import torch
from transformers import LlamaConfig, LlamaModel, StaticCache

torch.manual_seed(0)
sizes = dict(vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
config._attn_implementation = "flex_attention"
model, ids = LlamaModel(config).eval(), torch.tensor([[3, 1, 4, 1, 5, 9]])
cache = StaticCache(config=config, max_cache_len=16)
with torch.no_grad(), torch.compiler.set_stance("force_eager"):
    model(ids[:, :4], past_key_values=cache)
    got = model(ids[:, 4:], past_key_values=cache).last_hidden_state
    want = model(ids, use_cache=False).last_hidden_state[:, 4:]
print("got ", got[0, 0, :4].tolist())
print("want", want[0, 0, :4].tolist())
