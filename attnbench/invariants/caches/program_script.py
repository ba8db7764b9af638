"""A program as a script in plain torch: what was played, as data, and what plays it again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from attnbench.cases.case import Case
from attnbench.checking.reproduction.untaped import unsettling
from attnbench.invariants.caches.program import MOST_ROWS
from attnbench.invariants.caches.stage import TOKENS
from attnbench.subject.layer import LayerSubject

_CALL = """

def call(module, hidden, cache=None, mask=None):
    given = {} if cache is None else {"cache": cache}
    given |= {} if mask is None else {"padding_mask": mask}
    result = module(hidden, **given)
    return result if isinstance(result, tuple) else (result, cache)


def changed(operation, cache, argument):
    try:
        given = operation(cache, argument)
    except NotImplementedError:
        return cache
    return cache if given is None else given


caches, seen, masks, outputs = [], [], {}, []
"""

_LOOP = {
    "begin": """
        cache = new(module, given[0])
        caches.append(cache)
        seen.append(tokens[: given[0], :0])
    """,
    "append": """
        hidden = tokens[: len(seen[n]), given[0] : given[1]].clone()
        seen[n] = torch.cat([seen[n], hidden], 1)
        masks[n] = None if given[2] is None else torch.tensor(given[2]).bool()
        output, caches[n] = call(module, hidden, caches[n], masks[n])
        outputs.append(output)
    """,
    "without": """
        hidden = tokens[:2, given[0] : given[1]].clone()
        output, _ = call(module, hidden)
    """,
    "select": """
        caches[n] = changed(select, caches[n], torch.tensor(given[0]))
        seen[n] = seen[n][given[0]] if given[1] else seen[n]
    """,
    "crop": """
        caches[n] = changed(crop, caches[n], given[0])
        seen[n] = seen[n][:, : given[0]] if given[1] else seen[n]
    """,
    "fork": """
        caches.append(copy.deepcopy(caches[n]))
        seen.append(seen[n])
    """,
}
"""What each kind of entry does. A selection or a crop that was refused, which its last item says,
leaves the tokens alone."""


def _loop(kinds: Collection[str]) -> list[str]:
    """The lines that play the entries of some kinds."""
    lines = ["for kind, n, *given in program:"]
    for kind in (kind for kind in _LOOP if kind in kinds):
        lines += [f'    if kind == "{kind}":', *_LOOP[kind].strip("\n ").splitlines()]
    return [line if line.startswith((" ", "for")) else f"        {line}" for line in lines]


def script_of(
    subject: LayerSubject, case: Case, played: Sequence[tuple[Any, ...]], end: Sequence[str]
) -> list[str]:
    """The lines of what was played, behind those that make what it is played with.

    Args:
        subject, case: what is played with.
        played: entries that the script plays again.
        end: lines that end with an assertion; without any, the last entry raises.
    """
    loop = _loop({kind for kind, *_ in played})
    size, dtype = case.query_size, f"torch.{case.dtype}"
    names = subject.constant_parameters
    return [
        "torch.set_grad_enabled(False)",
        f"torch.manual_seed({case.seed})",
        f"module = make({size})",
        *([unsettling(names)] if names else ()),
        f"module = module.to({case.device!r}, {dtype}).eval()",
        "fresh = copy.deepcopy(module)",
        f"generator = torch.Generator().manual_seed({case.seed})",
        f"tokens = torch.randn({MOST_ROWS}, {TOKENS}, {size}, generator=generator, "
        "dtype=torch.float64)",
        f"tokens = tokens.to({case.device!r}, {dtype})",
        "program = [",
        *(f"    {step!r}," for step in played),
        "]",
        *_CALL.splitlines(),
        *([*loop, *end] if end else _raising(loop)),
    ]


def _raising(loop: Sequence[str]) -> list[str]:
    """The lines of calls of which the last one raises."""
    return [
        "try:",
        *(f"    {line}" for line in loop),
        "except Exception as error:",
        '    raise AssertionError(f"raised {type(error).__name__}: {error}") from error',
    ]


def counted(number: int) -> tuple[str, ...]:
    """The end where a cache tells another length than it has."""
    return (
        f"said, held = length(caches[{number}]), seen[{number}].shape[1]",
        'print("length(cache) =", said, "but should be", held)',
        "assert said == held",
    )


def compared(
    given: str, place: Sequence[int], other: Sequence[int], tolerance: float, *, joined: bool
) -> tuple[str, ...]:
    """The end where an output differs from what a new module gives without a cache.

    Args:
        given: what that is called on.
        place: index in the output.
        other: index in the output of the new module.
        tolerance: what is allowed.
        joined: whether the outputs of all calls are compared, not that of the last alone.
    """
    return (
        f"expected, _ = call(fresh, {given})",
        *(["output = torch.cat(outputs, 1)"] if joined else ()),
        f"got = output[{', '.join(map(str, place))}].item()",
        f"expected = expected[{', '.join(map(str, other))}].item()",
        'print("got", got, "but should be", expected)',
        f"assert abs(got - expected) <= {tolerance:.6g}",
    )
