"""The calls that the attention modules inside a model get when the model runs once."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from attnbench.calling.making.importing import computes_attention, is_attention
from attnbench.calling.shown_call import Call, call_of
from attnbench.calling.trials.small_calls import repeatable
from attnbench.errors import StyleError, headline


@dataclass(frozen=True)
class SeenCall:
    """The first call of one kind of attention module.

    Args:
        place: where the module is in the model, as of ``named_modules``.
        module: the module.
        call: the arguments that it was given.
    """

    place: str
    module: nn.Module
    call: Call


def seen_calls(model: nn.Module, batch: Any) -> list[SeenCall]:
    """The first call of each kind of attention module in a model, by a run on a batch.

    Args:
        model: a module; it runs in evaluation, and is left in the mode in which it was.
        batch: its arguments, as :func:`attnbench.calling.examples.call_of` reads them.

    Raises:
        StyleError: the run raises, or calls no module that looks like attention.
    """
    args, kwargs = call_of(batch)
    seen: dict[type, SeenCall] = {}

    def watching(place: str) -> Any:
        def note(module: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
            if type(module) not in seen:
                seen[type(module)] = SeenCall(place, module, copy.deepcopy((given, dict(named))))

        return note

    training = model.training
    try:
        with repeatable(), torch.no_grad(), contextlib.ExitStack() as hooks:
            for place, part in model.named_modules():
                if place and _attends(part):
                    hook = part.register_forward_pre_hook(watching(place), with_kwargs=True)
                    hooks.enter_context(hook)
            model.eval()(*args, **kwargs)
    except Exception as error:
        raise StyleError(
            f"{type(model).__name__} raises on the batch: {headline(error)}"
        ) from error
    finally:
        model.train(training)
    if not seen:
        raise StyleError(
            f"no module inside {type(model).__name__} that looks like attention is called. To "
            "check the model itself as a layer: attnbench.check(model, example=batch)."
        )
    return list(seen.values())


def _attends(module: nn.Module) -> bool:
    forwards = (vars(kind).get("forward") for kind in type(module).__mro__)
    return is_attention(type(module)) or any(map(computes_attention, forwards))
