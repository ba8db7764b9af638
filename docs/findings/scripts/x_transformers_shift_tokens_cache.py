import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

torch.manual_seed(0)
decoder = Decoder(dim=32, depth=2, heads=2, shift_tokens=1, verbose=False)
net = TransformerWrapper(num_tokens=32, max_seq_len=32, attn_layers=decoder)
torch.nn.init.normal_(net.to_logits.weight)
model = AutoregressiveWrapper(net)
prompt = torch.tensor([[3, 1, 4, 1, 5]])
print("got ", model.generate(prompt, 8, temperature=0.0)[0].tolist())
print("want", model.generate(prompt, 8, temperature=0.0, cache_kv=False)[0].tolist())
