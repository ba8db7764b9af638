"""A scoring function whose scores have the wrong shape."""

import torch

import attnbench


class Scoring(torch.nn.Module):
    def forward(self, query, key):
        return key @ query.mT


def attnbench_scorings():
    yield attnbench.ScoringSpec(
        name="transposed", make=lambda query_size, key_size: Scoring(), equal_sizes=True
    )
