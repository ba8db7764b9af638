"""Scripts for what fails in a compiler, under vmap or autocast: lines of plain torch, not a tape.

What a transformation does to a call cannot be written down while it happens. The script makes a
module and inputs of the case's sizes and calls it twice, transformed and as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from attnbench.errors import InvariantViolation

if TYPE_CHECKING:
    from attnbench.cases import Case
    from attnbench.subject import Subject

    _Check = Callable[[Subject, Case], None]

__all__ = ["scripted"]

_OUTPUTS = {
    "scoring": (
        "scores = self.module(query, key)",
        "if attn_mask is not None:",
        '    scores = scores.masked_fill(~attn_mask, float("-inf"))',
        "return scores.softmax(-1).to(value.dtype) @ value",
    ),
    "kernel": ("return attend(self.module, query, key, value, attn_mask=attn_mask)",),
    "mechanism": (
        "result = self.module(query, key, value, attn_mask=attn_mask)",
        "return result[0] if isinstance(result, tuple) else result",
    ),
}


_ALLOWED = 0.05
"""Where nothing was compared, a difference that rounding does not explain in any dtype."""


def scripted(how: str, lines: Callable[[], Sequence[str]]) -> Callable[[_Check], _Check]:
    """A decorator of checks, whose violations get a script of their own.

    Args:
        how: what transforms the call, as the script tells it.
        lines: give source lines that make ``got`` of ``call``, ``query``, ``key`` and ``value``.
    """

    def decorated(check: _Check) -> _Check:
        @functools.wraps(check)
        def checked(subject: Subject, case: Case) -> None:
            try:
                check(subject, case)
            except InvariantViolation as error:
                allowed = (error.compared or {}).get("tolerance", _ALLOWED)
                script = {"lines": _script(subject, case, how, lines(), 2 * allowed)}
                raise InvariantViolation(str(error), error=error.error, compared=script) from None

        return checked

    return decorated


def _script(
    subject: Subject, case: Case, how: str, transformed: Sequence[str], allowed: float
) -> list[str]:
    count = 3 if subject.kind == "mechanism" else 2
    sizes = (case.query_size, case.key_size, case.value_size)[:count]
    shapes = {
        "query": (*case.lead, case.q_len, case.query_size),
        "key": (*case.lead, case.kv_len, case.key_size),
        "value": (*case.lead, case.kv_len, case.value_size),
    }
    mask = "None"
    if case.mask != "none":
        seen = max(0, case.kv_len - case.q_len)
        shape = f"{case.q_len}, {case.kv_len}"
        mask = f"torch.ones({shape}, dtype=torch.bool, device={case.device!r}).tril({seen})"
    to = f"torch.{case.dtype}" if case.device == "cpu" else f"{case.device!r}, torch.{case.dtype}"
    return [
        f"torch.manual_seed({case.seed})",
        f"module = make{sizes}.to({to}).eval()",
        *(f"{name} = torch.randn({size}).to({to})" for name, size in shapes.items()),
        f"attn_mask = {mask}",
        "",
        "",
        "class Call(torch.nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.module = module",
        "",
        "    def forward(self, query, key, value):",
        *(f"        {line}" for line in _OUTPUTS[subject.kind]),
        "",
        "",
        "call = Call()",
        "expected = call(query, key, value).detach()",
        "try:",
        *(f"    {line}" for line in transformed),
        "except Exception as error:",
        f'    raise AssertionError(f"{how} raised {{type(error).__name__}}") from error',
        f'print("{how} gives", got.shape, got.dtype, "where the call gives", expected.shape)',
        'assert got.shape == expected.shape, "but should be the shape of the call as it is"',
        'assert got.device == expected.device, "but should be the device of the call as it is"',
        'if not hasattr(got, "fake_mode"):',
        "    difference = (got.detach().double() - expected.double()).abs().max().item()",
        '    print("largest difference", difference)',
        f"    assert difference <= {allowed:.2g}",
    ]
