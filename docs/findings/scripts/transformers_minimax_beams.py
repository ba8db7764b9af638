import torch
from transformers import MiniMaxConfig, MiniMaxForCausalLM

torch.manual_seed(0)
sizes = dict(vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=2, head_dim=8)
heads = dict(num_attention_heads=2, num_key_value_heads=2, num_local_experts=2)
model = MiniMaxForCausalLM(MiniMaxConfig(**sizes, **heads)).eval()
ids = torch.tensor([[3, 1, 4], [9, 2, 6]])
cache = model(ids, use_cache=True).past_key_values
cache.reorder_cache(torch.tensor([1, 0]))  # swap the two sequences
wrong = model(torch.tensor([[5], [5]]), past_key_values=cache).logits
right = model(torch.tensor([[9, 2, 6, 5], [3, 1, 4, 5]])).logits
print("got ", wrong[0, -1, :4].tolist())
print("want", right[0, -1, :4].tolist())
