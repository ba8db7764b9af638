"""What dropout does in a class of a textbook, as calls show."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.calling.styles.constructors import takes_dropout
from attnbench.calling.styles.textbook_calls import TextbookMaker

_SHARE = 0.5
_AFTER = {"weights_are_those_before_dropout": "it hands back weights after dropout"}


def look_at_dropout(
    maker: TextbookMaker, tensors: list[Tensor], weighs: bool
) -> tuple[bool, bool, dict[str, str]]:
    """Choose the share that a class is made with, and what is asked of dropout.

    It promises its mean where outputs go along a line with the values, unless a call drops what
    comes out. Where evaluation drops, too, the class is made so that the checks tell.

    Args:
        maker: what makes the class.
        tensors: query, key and value of a call.
        weighs: whether it gives weights.

    Returns:
        Whether calls may ask for dropout, whether it is made with none and nothing asks for it, and
        the invariants that it is exempt from.
    """
    if not takes_dropout(maker.make):
        return False, False, {}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            drops, exempt = _looked_at(maker, tensors, weighs)
    except Exception:  # whatever it raises, it cannot be asked for this
        drops, exempt = False, {}
    return drops, not drops and not maker.dropout, exempt


def _looked_at(
    maker: TextbookMaker, tensors: list[Tensor], weighs: bool
) -> tuple[bool, dict[str, str]]:
    torch.manual_seed(0)
    module, (query, key, value) = maker(*(t.shape[-1] for t in tensors)).eval(), tensors
    plain: list[Tensor] = [module(query, key, value * times) for times in (1, 2, 3)]
    again, other = (module(query, key, value, dropout_p=_SHARE) for _ in range(2))
    if not torch.equal(again, other):
        maker.dropout = _SHARE
        return False, {}
    form = maker.form
    is_line = torch.allclose(plain[0] + plain[2], 2 * plain[1], 1e-4, 1e-4)
    if form.single or form.alone or form.flat or not is_line:
        return False, {}
    module.train()
    found = torch.stack([module(query, key, value, dropout_p=_SHARE) for _ in range(8)])
    if bool(((found == 0) & (found != 0).any(-1, keepdim=True)).any()):
        return False, {}
    if not weighs:
        return True, {}
    one, two = (module(*tensors, dropout_p=p, return_weights=True)[1] for p in (0.0, _SHARE))
    return True, {} if torch.allclose(one, two, 1e-4, 1e-4) else _AFTER
