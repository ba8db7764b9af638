"""Which arguments may be query, key, value, a memory or hidden states, by their names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from attnbench.styles import TENSORS, Argument


def layer_plans(arguments: Sequence[Argument]) -> list[dict[str, str]]:
    """Which arguments may be hidden states and a second sequence, likely ones first."""
    required = [a for a in arguments if a.required]
    if not required:
        return []
    if [a.role for a in required] == ["query", "key", "value"]:  # of attention to itself alone
        return [dict.fromkeys((a.name for a in required), "hidden")]
    hidden = next((a for a in required if a.role == "hidden"), required[0])
    others = [a for a in arguments if a is not hidden]
    unknown = [a for a in others if a.name == "y" or (a.required and a.role is None)]
    memories = [a for a in others if a.role in ("memory", "key")] or unknown[:1]
    own = {hidden.name: "hidden"}
    return [*({**own, each.name: "memory"} for each in memories), own]


def plans(arguments: Sequence[Argument]) -> list[dict[str, str]]:
    """Which arguments may be query, key, value or a memory, likely ones first."""
    required = [a for a in arguments if a.required]
    if not {"key", "memory", "hidden"} & {a.role for a in arguments}:  # projected ones, alone
        required = [
            replace(a, role="memory") if a.role == "processed_keys" else a for a in required
        ]
    if [a.role for a in required].count("memory") > 1:  # of which one is projected
        required = [replace(a, role=None) if a.role == "memory" else a for a in required]
    named = {a.name: a.role for a in required if a.role in TENSORS}
    roles = [*named.values()]
    found = []
    if {"query", "key", "value"} <= {*roles} and len(roles) == 3:
        found.append({name: str(role) for name, role in named.items()})
    elif len(named) == 2:
        first, second = named
        pair = (roles[0], roles[1])
        if pair in (
            ("memory", "query"),
            ("memory", "hidden"),
            ("key", "query"),
            ("value", "query"),
        ):
            found.append({first: "memory", second: "query"})
        else:
            found.append({first: "query", second: "memory"})
    return found or [*_by_trial(required)]


def _by_trial(required: Sequence[Argument]) -> Iterator[dict[str, str]]:
    """The plans for arguments whose names do not say what they are, in the order of a call."""
    known = {a.name: str(a.role) for a in required if a.role in TENSORS}
    own = {"hidden": "query"}
    known = {name: own.get(role, role) for name, role in known.items()}
    unknown = [a.name for a in required if a.role is None]
    for is_rest in (False, True):  # one that is no tensor of the call is None, at last
        for roles in (("query", "memory"), ("query", "key", "value")):
            free = [role for role in roles if role not in known.values()]
            rest = len(unknown) - len(free)
            if not free or not {*known.values()} <= {*roles} or rest != is_rest:
                continue
            for some in itertools.combinations(unknown, len(free)):
                for order in itertools.permutations(free):
                    given = {**known, **dict(zip(some, order, strict=True))}
                    yield {a.name: given[a.name] for a in required if a.name in given}
