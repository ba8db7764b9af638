"""Parameters that are initially constant, such as a bias of zeros, and a way to change them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def constant_names(module: nn.Module) -> tuple[str, ...]:
    """The names of the parameters of a new module that are constant.

    A parameter with a single element counts if it is 0, such as a gate that is initially closed.
    """
    return tuple(
        name
        for name, p in module.named_parameters()
        if not nn.parameter.is_lazy(p)
        and p.is_floating_point()
        and bool((p == (p.flatten()[0] if p.numel() > 1 else 0)).all())
    )


def unsettle(module: nn.Module, names: Iterable[str]) -> None:
    """Change constant parameters, whose use in the module would otherwise stay invisible."""
    with torch.no_grad():
        for parameter in map(module.get_parameter, names):
            steps = torch.arange(1.0, parameter.numel() + 1)
            parameter.add_(steps.sin().view(parameter.shape) / 4)
