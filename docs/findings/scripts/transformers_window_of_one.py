import torch
from transformers import MistralConfig, MistralForCausalLM

torch.manual_seed(0)
sizes = dict(vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1)
heads = dict(num_attention_heads=2, num_key_value_heads=2, sliding_window=1)
model = MistralForCausalLM(MistralConfig(**sizes, **heads)).eval()
ids = torch.tensor([[3, 1, 4]])
cache = None
for i in range(3):
    out = model(ids[:, i : i + 1], past_key_values=cache, use_cache=True)
    cache = out.past_key_values
print("got ", out.logits[0, -1, :4].tolist())
print("want", model(ids, use_cache=False).logits[0, -1, :4].tolist())
