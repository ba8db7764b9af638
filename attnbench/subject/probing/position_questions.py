"""Questions about positions and heads: what may be reordered, and what a split of keys needs."""

from __future__ import annotations

import torch

from attnbench.subject.probing.probed_calls import Answer, Calls, alike


def positions(calls: Calls) -> Answer:
    """Whether keys and queries may be reordered, or all shifted behind keys that are hidden."""
    name = "positions"
    query, key, value = calls.tensors(4, 4)
    plain = calls.output([query, key, value])
    keys = calls.output([query, key.roll(1, -2), value.roll(1, -2)])
    queries = calls.output([query.roll(1, -2), key, value])
    if plain is None or keys is None or queries is None:
        return Answer.ambiguous(name, f"L=S=4 raises {calls.raised}")
    if alike(keys[..., -1, :], plain[..., -1, :]):  # which sees all keys even if always causal
        if calls.answers["causal"].value == "always":
            return Answer.inferred(name, "none", "keys reordered leave the last output alone")
        if alike(queries, plain.roll(1, -2)) and alike(keys, plain):
            return Answer.inferred(name, "none", "keys and queries may be reordered")
    if calls.hide is None:
        return Answer.ambiguous(name, "relative or absolute: they count, and no mask may hide some")
    query, key, value = calls.tensors()
    allowed = (torch.arange(5) >= 2).expand(3, 5)
    hidden = calls.output([query, key, value], **calls.hide(allowed))
    if alike(hidden, calls.output([query, key[..., 2:, :], value[..., 2:, :]])):
        return Answer.inferred(name, "relative", "2 hidden keys at the start may be left out")
    return Answer.inferred(name, "absolute", "2 hidden keys at the start change the output")


def per_head(calls: Calls) -> Answer:
    """Whether heads that change places give other outputs."""
    name, tensors = "per head", calls.tensors()
    plain, turned = calls.output(tensors), calls.output([t.roll(1, 1) for t in tensors])
    if plain is None or turned is None:
        return Answer.ambiguous(name, f"raises {calls.raised}")
    other = not alike(turned, plain.roll(1, 1))
    return Answer.inferred(name, other, "heads that change places")
