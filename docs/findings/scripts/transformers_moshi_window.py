import torch
from transformers import MoshiConfig, MoshiForCausalLM

torch.manual_seed(0)
sizes = dict(vocab_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
config = MoshiConfig(**sizes, ffn_dim=16, sliding_window=4, attn_implementation="eager")
model = MoshiForCausalLM(config).eval()
ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
cache = model(ids[:, :-1], use_cache=True).past_key_values
wrong = model(ids[:, -1:], past_key_values=cache).logits
print("got ", wrong[0, -1, :4].tolist())
print("want", model(ids, use_cache=False).logits[0, -1, :4].tolist())
