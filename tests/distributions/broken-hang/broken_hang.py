"""A scoring function that never returns."""

import torch

import attnbench


class Scoring(torch.nn.Module):
    def forward(self, query, key):
        while True:
            pass


def attnbench_scorings():
    yield attnbench.ScoringSpec(
        name="hangs", make=lambda query_size, key_size: Scoring(), equal_sizes=True
    )
