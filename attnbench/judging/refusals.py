"""The names and sentences of refusals: why a candidate is not accepted."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from attnbench.errors import AttnbenchError

__all__ = ["REFUSALS", "RefusedError", "status_of"]

REFUSALS: Mapping[str, str] = MappingProxyType(
    {
        "not_loaded": "the candidate could not be loaded",
        "ended": "the candidate's process ended",
        "hung": "no answer came in time",
        "too_much_memory": "the candidate's processes held more memory than allowed",
        "left_processes": "processes of the candidate were running after an answer",
        "broke_protocol": "a message came that the judge had not asked for, or cannot read",
        "not_plain": "the output is not a plain tensor that holds its values",
        "alias_of_input": "the output shares memory with an input",
        "alias_of_output": "the output shares memory with an earlier output",
        "changed_later": "the answer changed between two reads",
        "arrived_late": "the result arrived after the call",
        "depends_on_history": "the output depends on calls before",
        "differs_when_timed": "the output is wrong when timed, and right in the check",
        "unsteady": "the same inputs give different answers",
        "wrong": "the output is wrong",
        "refused_when_timed": "the candidate raised an error in calls that were timed",
        "too_fast": "it is faster than the machine can be",
    }
)
"""What each refusal says, by its name."""

_CRASHED = ("not_loaded", "ended", "too_much_memory", "left_processes", "broke_protocol")


class RefusedError(AttnbenchError):
    """A candidate is refused.

    Args:
        name: a key of :data:`REFUSALS`.
        detail: what was seen, and where.
    """

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{REFUSALS[name]}: {detail}" if detail else REFUSALS[name])
        self.name, self.detail = name, detail


def status_of(name: str) -> str:
    """The status, as of an outcome of a check, that belongs to a refusal."""
    return "timeout" if name == "hung" else "crashed" if name in _CRASHED else "failed"
