"""A plugin that registers a name that attn-extra has too."""

import torch

import attnbench


class Cosine(torch.nn.Module):
    def forward(self, query, key):
        return torch.nn.functional.cosine_similarity(query.unsqueeze(-2), key.unsqueeze(-3), dim=-1)


def attnbench_scorings():
    yield attnbench.ScoringSpec(name="cosine", make=lambda q, k: Cosine(), equal_sizes=True)
