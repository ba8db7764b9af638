import torch
from bidirectional_cross_attention import BidirectionalCrossAttentionTransformer

torch.manual_seed(0)
sizes = dict(dim=16, context_dim=8, depth=1, heads=2, dim_head=8)
model = BidirectionalCrossAttentionTransformer(**sizes, final_norms=True).eval()
x, context = torch.randn(1, 3, 16), torch.randn(1, 5, 8)
try:
    print("got ", model(x, context)[1][0, 0, :4].tolist())
except Exception as error:
    print("got ", str(error)[:80])
model.context_norm = torch.nn.Identity()  # and the norm by hand
print("want", torch.nn.functional.rms_norm(model(x, context)[1], [8])[0, 0, :4].tolist())
