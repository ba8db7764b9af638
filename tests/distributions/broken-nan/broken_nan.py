"""A scoring function that returns NaN."""

import torch

import attnbench


class Scoring(torch.nn.Module):
    def forward(self, query, key):
        return (query @ key.mT) * float("nan")


def attnbench_scorings():
    yield attnbench.ScoringSpec(
        name="nans", make=lambda query_size, key_size: Scoring(), equal_sizes=True
    )
