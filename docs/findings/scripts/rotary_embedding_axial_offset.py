from rotary_embedding_torch import RotaryEmbedding

rotary = RotaryEmbedding(dim=4)
rotary.get_axial_freqs(4)  # positions 0 to 3, kept by their number alone
print("got ", rotary.get_axial_freqs(4, offsets=(5,))[:, 0].tolist())
print("want", RotaryEmbedding(dim=4).get_axial_freqs(4, offsets=(5,))[:, 0].tolist())
