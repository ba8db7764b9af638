import torch
from litgpt import GPT, Config

torch.manual_seed(0)
sizes = dict(n_layer=1, n_head=2, n_embd=16, block_size=16, padded_vocab_size=16)
window = dict(sliding_window_size=4, sliding_window_indices=[1])  # one layer, and it slides
model = GPT(Config(**sizes, **window, intermediate_size=32)).eval()
ids = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
right = model(ids)
with torch.no_grad():
    model.set_kv_cache(1)
    for chunk in torch.arange(8).split(4):  # chunks of the window's size, as its error advises
        wrong = model(ids[:, chunk], input_pos=chunk)
print("got ", wrong[0, 0, :4].tolist())
print("want", right[0, 4, :4].tolist())
