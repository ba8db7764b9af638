"""The zoo as data: every mutant with its right twin, and every right implementation."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

from torch import Tensor, nn

import attnbench
from attnbench import Case, Inputs, KernelSpec, Subject
from attnbench.testing import resolve
from attnbench_zoo.patches import TWINS, Row, Spec, edited, patched, rows
from attnbench_zoo.right import RIGHT
from attnbench_zoo.right.attention import ATTENTION

KINDS = ("scoring", "kernel", "mechanism", "packed", "layer")
"""Of what an entry is, in the order of tables."""
RIGHT_TOPICS = ("by_design", "conventions", "odd")
"""Rows of what is right: what issues call bugs and maintainers design, what follows conventions of
its own and is accused where it does not say so, and what is merely odd."""


class Built(NamedTuple):
    """One side of an entry, with the inputs of a case.

    Args:
        call: ``call(*tensors)`` is the output ``(..., L, Ev)``; masks and options are fixed in it.
        tensors: query, key and value, or the hidden states of a layer.
        module: the module behind it.
        inputs: the inputs, with their masks.
    """

    call: Callable[..., Tensor]
    tensors: tuple[Tensor, ...]
    module: nn.Module
    inputs: Inputs

    def output(self) -> Tensor:
        """The output of one call."""
        return self.call(*self.tensors)


@dataclass(frozen=True, eq=False)
class Entry:
    """A candidate, and the right function that it has to equal.

    Args:
        name: of the candidate.
        right: whether it does equal it within rounding.
        topic: what its mistake is about, or where a right one comes from.
        mistake: the mistake in one sentence; empty for a right one.
        source: the candidate, or the row of the change that makes it.
        reference: what it has to equal; for a mutant the right twin, for a right one another way
            to compute the same, or itself where there is none.
        bugs: ``owner/project#number`` of the public threads that it repeats; ``("own",)`` if none
            tells of it, ``("seen in review",)`` if it was seen elsewhere; empty for a right one.
        killers: the invariants of attnbench that are meant to find it; of a right one that is odd,
            those that must not accuse it, also of one with conventions, but where it hides them.
    """

    name: str
    right: bool
    topic: str
    mistake: str
    source: Spec | Row
    reference: Spec
    bugs: tuple[str, ...] = ()
    killers: tuple[str, ...] = ()

    @functools.cached_property
    def spec(self) -> Spec:
        """The candidate, as a spec of attnbench."""
        if isinstance(self.source, Row):
            return patched(self.source)
        return self.source

    @property
    def edited(self) -> tuple[str, int] | None:
        """File and line of the change; ``None`` for what is right as it is."""
        return edited(self.source) if isinstance(self.source, Row) else None

    @functools.cached_property
    def kind(self) -> str:
        """``scoring``, ``kernel``, ``mechanism``, ``packed`` (documents, pages) or ``layer``."""
        spec = self.spec if self.right else self.reference
        style = getattr(spec, "style", None)
        return "packed" if style in ("varlen", "paged") else _subject(spec).kind

    def takes(self, case: Case) -> bool:
        """Whether candidate and reference support a case as it is."""
        legal = self.legal(case)
        return legal.mask == case.mask and legal.dtype == case.dtype

    def legal(self, case: Case) -> Case:
        """The nearest case that candidate and reference support."""
        sides = [_subject(spec) for spec in (self.spec, self.reference)]
        for subject in sides:
            case = subject.legal(case)
        if any(subject.unsupported(case) for subject in sides):
            case = case.replace(mask="none")
        return case

    def candidate(self, case: Case) -> Built:
        """The candidate with the parameters and inputs that the case's seed gives."""
        return self._built(self.spec, case)

    def expected(self, case: Case) -> Built:
        """The reference with the same parameters and inputs."""
        return self._built(self.reference, case)

    def _built(self, spec: Spec, case: Case) -> Built:
        subject = _subject(spec)
        module, inputs = subject.build(self.legal(case))
        names = [name for name, _ in inputs.tensors() if name in inputs.floating]

        def call(*tensors: Tensor) -> Tensor:
            return subject.output(module, inputs.replace(**dict(zip(names, tensors, strict=True))))

        return Built(call, tuple(getattr(inputs, name) for name in names), module, inputs)


@functools.cache
def _subject(spec: Any) -> Subject:
    (subject,) = resolve(spec)
    return subject


def blind_entries() -> tuple[Entry, ...]:
    """The blind part: mutants of public bugs by people who had not read the invariants.

    They knew the names of the invariants, not their code. The suite is never changed for one of
    these, and none names what is meant to kill it; what is not found stands in the manual.
    """
    return tuple(_of_row(row) for row in rows().values() if row.topic == "blind")


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Every mutant, then every right implementation."""
    some = (_of_row(row) for row in rows().values() if row.topic not in ("blind", *RIGHT_TOPICS))
    return (*some, *_right())


def _of_row(row: Row) -> Entry:
    reference, killers = TWINS[row.twin].spec, tuple(_killers().get(row.name, ()))
    return Entry(row.name, False, row.topic, row.mistake, row, reference, row.bugs, killers)


@functools.cache
def _killers() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(
        resources.files("attnbench_zoo").joinpath("killers.json").read_text("utf-8")
    )
    return found


def twins() -> list[Spec]:
    """Every right twin that a mutant has."""
    used = {row.twin for row in rows().values()}
    return [place.spec for name, place in TWINS.items() if name in used]


def _right() -> Iterator[Entry]:
    others = {"sdpa", "sdpaflash", "flex", "chunked", "online"}
    for twin in twins():
        reference: Spec = twin
        if isinstance(twin, KernelSpec):
            reference = attnbench.get(twin.scoring)
        yield Entry(twin.name, True, "twins", "", twin, reference)
    for row in rows().values():
        if row.topic in RIGHT_TOPICS:
            reference = TWINS[row.twin].spec
            spared = row.bugs if row.topic != "by_design" else ()
            yield Entry(row.name, True, row.topic, "", row, reference, (), spared)
    for right in RIGHT:
        yield Entry(
            right.name, True, "right", "", right, ATTENTION if right.name in others else right
        )
    for name in attnbench.subjects():
        (subject,) = resolve(name)
        if isinstance(subject.spec, KernelSpec) and not subject.options:
            yield Entry(name, True, "built-in", "", subject.spec, subject.maker)
