"""Ring attention, over processes of ``torch.distributed``, as a plugin."""
