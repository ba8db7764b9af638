"""The invariant on copies of a module: deepcopy, pickle, and a state that is saved and loaded."""

from __future__ import annotations

import copy
import io
import pickle
import traceback

import torch
from torch import nn

from attnbench import Case, InvariantViolation, Subject
from attnbench.testing import KINDS, Baseline, ordinary
from attnbench_plugins.properties import invariant


@invariant(
    kinds=KINDS,
    cases=ordinary,
    max_len=5,
    max_features=8,
    drawn_len=5,
    variants={"through": ("file", "memory", "memory", "memory")},
)
def copies_agree(subject: Subject, case: Case) -> None:
    """state_dict, deepcopy and pickle keep all that determines the output."""
    base = Baseline(subject, case)
    for way, copied in (
        ("deepcopy", copy.deepcopy),
        ("pickle", lambda module: pickle.loads(pickle.dumps(module))),  # noqa: S301 -- our own
        (
            "a state_dict saved, loaded into a module that has been called,",
            lambda _: _reloaded(base),
        ),
    ):
        if way == "pickle" and any(
            "<locals>" in type(m).__qualname__ for m in base.module.modules()
        ):
            continue  # nothing could pickle a class that was defined inside a function
        try:
            module = copied(base.module)
        except (RuntimeError, TypeError, AttributeError, pickle.PicklingError) as error:
            if way == "pickle" and _torch_refuses(error):
                continue
            raise InvariantViolation(
                f"{way} of the module raised {type(error).__name__}: {error}. Usual cause: a "
                "lambda or a non-leaf tensor stored on the module. If torch itself cannot copy it, "
                "set exempt={'copies_agree': '...'}."
            ) from None
        places = {p.data_ptr() for p in module.parameters() if p.numel()}
        for name, parameter in base.module.named_parameters():
            if parameter.data_ptr() in places:
                raise InvariantViolation(
                    f"after {way} the copy's {name} is the module's own, but should be another "
                    "tensor: who trains one would change the other"
                )
        with torch.no_grad():  # the mode in which something may be kept from call to call
            got = subject.output(module.eval(), base.inputs)
        base.expect(got, f"after {way} output", "the module itself")


def _torch_refuses(error: BaseException) -> bool:
    """Whether it was torch that raised: it pickles no scripted or parametrized module."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals.get("__name__", "").startswith("torch.")


def _reloaded(base: Baseline) -> nn.Module:
    case, state = base.case, base.module.state_dict()
    if case.variant("through", "memory") == "file":  # a file takes longer than all else here
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    # other initial parameters, which the saved ones replace
    module = base.subject.made(case, case.seed + 1)
    with torch.no_grad():  # what it keeps of a call with other parameters is stale from here on
        base.subject.output(module, base.inputs)
    module.load_state_dict(state)
    return module
