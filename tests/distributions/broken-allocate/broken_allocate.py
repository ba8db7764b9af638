"""A scoring function that allocates without end."""

import torch

import attnbench


class Scoring(torch.nn.Module):
    def forward(self, query, key):
        while True:
            self.hoard = [*getattr(self, "hoard", []), torch.ones(16, 1024, 1024)]


def attnbench_scorings():
    yield attnbench.ScoringSpec(
        name="hoards", make=lambda query_size, key_size: Scoring(), equal_sizes=True
    )
