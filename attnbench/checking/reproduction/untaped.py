"""Scripts in plain torch that invariants provide themselves if a tape cannot record them.

The effect of a transformation on a call, or arithmetic in Python floats, cannot be recorded. Such a
script makes a module and inputs with the case's sizes, and compares two ways to compute the same.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from attnbench.errors import InvariantViolation

if TYPE_CHECKING:
    from attnbench.cases.case import Case
    from attnbench.subject.subject import Subject

    _Check = Callable[[Subject, Case], None]

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
    "layer": (
        "result = self.module(query)",
        "return result[0] if isinstance(result, tuple) else result",
    ),
}


_ALLOWED = 0.05
"""Allowed difference if nothing was compared; rounding does not exceed it in any dtype."""


def transformed(
    how: str, lines: Callable[[], Sequence[str]], *, gradients: bool = False
) -> Callable[[_Check], _Check]:
    """A decorator for checks that compare a transformed call with the original call.

    Args:
        how: name of the transformation in the script.
        lines: returns source lines that compute ``got`` from ``call``, ``query``, ``key`` and
            ``value``.
        gradients: whether gradients by ``query``, ``key`` and ``value`` are compared too.
    """

    def decorated(check: _Check) -> _Check:
        @functools.wraps(check)
        def checked(subject: Subject, case: Case) -> None:
            try:
                check(subject, case)
            except InvariantViolation as error:
                allowed = _ALLOWED if error.allowed is None else 2 * error.allowed
                script = {"lines": _transforming(subject, case, how, lines(), allowed, gradients)}
                raise error.reworded(str(error), compared=script) from None

        return checked

    return decorated


def sourced(function: Callable[..., Any]) -> list[str]:
    """Lines that compute ``got`` by a function in plain torch, which a check calls too.

    Args:
        function: takes ``call`` and the tensors, and uses no global name but ``torch``.
    """
    (node,) = ast.parse(inspect.getsource(function)).body
    assert isinstance(node, ast.FunctionDef)
    node.returns, node.body = None, node.body[ast.get_docstring(node) is not None :]
    for argument in ast.walk(node.args):
        if isinstance(argument, ast.arg):
            argument.annotation = None
    line = f"got = {node.name}(call, query, key, value)"
    return [*ast.unparse(node).splitlines(), "", line]


def _transforming(
    subject: Subject,
    case: Case,
    how: str,
    lines: Sequence[str],
    allowed: float,
    gradients: bool,
) -> list[str]:
    return [
        *_setup(subject, case, f"torch.{case.dtype}"),
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
        *(_LEAVES if gradients else ()),
        "expected = call(query, key, value)",
        "try:",
        *(f"    {line}" for line in lines),
        "except Exception as error:",
        f'    raise AssertionError(f"{how} raised {{type(error).__name__}}") from error',
        f'print("{how} gives", got.shape, got.dtype, "where the call gives", expected.shape)',
        'assert got.shape == expected.shape, "but should be the shape of the call as it is"',
        'assert got.device == expected.device, "but should be the device of the call as it is"',
        'if not hasattr(got, "fake_mode"):',
        "    difference = (got.detach().double() - expected.detach().double()).abs().max()",
        '    print("largest difference", difference.item())',
        f"    assert difference <= {allowed:.2g}",
        *(_gradient_lines(allowed) if gradients else ()),
    ]


_LEAVES = (
    "leaves = query, key, value",
    "for leaf in leaves:",
    "    leaf.requires_grad_()",
)


def _gradient_lines(allowed: float) -> list[str]:
    return [
        "weight = torch.randn(expected.shape).to(expected)",
        "zero = torch.zeros((), device=expected.device)",
        "both = [",
        "    torch.autograd.grad(output, leaves, weight, allow_unused=True)",
        "    for output in (got, expected)",
        "]",
        'for name, one, other in zip(("query", "key", "value"), *both):',
        "    a, b = (zero if g is None else g.double() for g in (one, other))",
        "    difference = (a - b).abs().max()",
        '    print("largest difference of the gradient by", name, difference.item())',
        f"    assert difference <= {allowed:.2g} * max(1.0, b.abs().max().item())",
    ]


def compared_with_reference(subject: Subject, case: Case) -> list[str]:
    """Lines that compare a module in float64 with the spec's ``reference`` in Python floats."""
    setup = [*_setup(subject, case, "torch.float64"), "with torch.no_grad():"]
    item = "{0} = {0}.reshape(-1, *{0}.shape[-2:])[-1]".format
    if subject.kind == "mechanism":
        return [
            *setup,
            "    result = module(query, key, value, attn_mask=attn_mask)",
            "got = result[0] if isinstance(result, tuple) else result",
            item("got"),
            *(f"{item(name)}.tolist()" for name in _TENSORS),
            f"allowed = torch.ones({case.q_len}, {case.kv_len}, dtype=torch.bool)",
            "allowed = allowed if attn_mask is None else attn_mask.cpu()",
            "expected = reference(module, query, key, value, allowed.tolist())",
            *_difference("output"),
        ]
    return [
        *(line for line in setup if not line.startswith(("value =", "attn_mask ="))),
        "    got = module(query, key)",
        item("got"),
        *(f"{item(name)}.tolist()" for name in _TENSORS[:2]),
        "expected = [[reference(module, q, k) for k in key] for q in query]",
        *_difference("score"),
    ]


def _difference(quantity: str) -> list[str]:
    return [
        "expected = torch.tensor(expected, dtype=torch.float64)",
        "difference = (got.cpu() - expected).abs()",
        "at = divmod(difference.argmax().item(), expected.shape[1])",
        f'print("{quantity}", at, "in float64 is", got[at].item())',
        'print("and by the reference", expected[at].item())',
        "assert difference[at] <= 1e-9 * (1 + expected[at].abs())",
    ]


def unsettling(names: Sequence[str], module: str = "module") -> str:
    """A line that changes a module as :meth:`attnbench.subject.subject.Subject.unsettle` does."""
    sines = "torch.arange(1.0, p.numel() + 1).sin().view(p.shape)"
    return f"for p in map({module}.get_parameter, {tuple(names)}): p.data += {sines} / 4"


_TENSORS = ("query", "key", "value")


def _setup(subject: Subject, case: Case, dtype: str) -> list[str]:
    """Lines that create ``module``, ``query``, ``key``, ``value`` and ``attn_mask``."""
    count = subject.size_count
    sizes = (case.query_size, case.key_size, case.value_size)
    lengths = (case.q_len, case.kv_len, case.kv_len)
    mask = "None"
    if case.mask != "none":
        diagonal = max(0, case.kv_len - case.q_len)
        shape = f"{case.q_len}, {case.kv_len}"
        mask = f"torch.ones({shape}, dtype=torch.bool, device={case.device!r}).tril({diagonal})"
    target = dtype if case.device == "cpu" else f"{case.device!r}, {dtype}"
    return [
        f"torch.manual_seed({case.seed})",
        f"module = make{sizes[:count]}",
        *([unsettling(subject.constant_parameters)] if subject.constant_parameters else ()),
        f"module = module.to({target}).eval()",
        *(
            f"{name} = torch.randn({(*case.lead, length, size)}).to({target})"
            for name, length, size in zip(_TENSORS, lengths, sizes, strict=True)
        ),
        f"attn_mask = {mask}",
    ]
