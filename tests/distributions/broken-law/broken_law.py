"""A plugin that declares a law that nobody brings."""

import torch

import attnbench


def attnbench_scorings():
    yield attnbench.ScoringSpec(
        name="lawless", make=lambda q, k: torch.nn.Identity(), laws=("unit_varianc",)
    )
