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
from attnbench_zoo.base import Mutant, Spec
from attnbench_zoo.blind import BLIND
from attnbench_zoo.mutants import TOPICS, TWINS
from attnbench_zoo.right import RIGHT
from attnbench_zoo.right.by_design import BY_DESIGN
from attnbench_zoo.right.layers import RIGHT_LAYERS
from attnbench_zoo.sources import link, origin
from attnbench_zoo.twins.attention import ATTENTION

__all__ = ["Built", "Entry", "blind_entries", "entries"]

KINDS = ("scoring", "kernel", "mechanism", "packed", "layer")
"""Of what an entry is, in the order of tables."""


class Built(NamedTuple):
    """One side of an entry, with the inputs of a case.

    Args:
        call: ``call(*tensors)`` is the output ``(..., L, Ev)``; masks and options are fixed in it.
        tensors: query, key and value, or the hidden states of a layer.
        module: the module behind it.
        inputs: the inputs, with their masks.
        spec: the spec that made the module.
    """

    call: Callable[..., Tensor]
    tensors: tuple[Tensor, ...]
    module: nn.Module
    inputs: Inputs
    spec: Any

    def output(self) -> Tensor:
        """The output of one call."""
        return self.call(*self.tensors)

    def again(self, **options: Any) -> Tensor:
        """The output of one call with other inputs or options, by the names of ``Inputs``."""
        return _subject(self.spec).output(self.module, self.inputs.replace(**options))


@dataclass(frozen=True, eq=False)
class Entry:
    """A candidate, and the right function that it has to equal.

    Args:
        name: of the candidate.
        right: whether it does equal it within rounding.
        topic: what its mistake is about, or where a right one comes from.
        mistake: the mistake in one sentence; empty for a right one.
        spec: the candidate, as a spec of attnbench.
        reference: what it has to equal; for a mutant the right twin, for a right one another way
            to compute the same, or itself where there is none.
        bugs: ``project#number`` of the public threads that it repeats; ``("own",)`` if none tells
            of it, ``("seen in review",)`` if it was seen elsewhere; empty for a right one.
        killers: the invariants of attnbench that are meant to find it; empty for a right one.
    """

    name: str
    right: bool
    topic: str
    mistake: str
    spec: Spec
    reference: Spec
    bugs: tuple[str, ...] = ()
    killers: tuple[str, ...] = ()

    @functools.cached_property
    def kind(self) -> str:
        """``scoring``, ``kernel``, ``mechanism``, ``packed`` (documents, pages) or ``layer``."""
        style = getattr(self.spec, "style", None)
        return "packed" if style in ("varlen", "paged") else _subject(self.spec).kind

    @property
    def origin(self) -> str:
        """``public thread``, ``seen in review`` or ``own``; empty for a right one."""
        return origin(self.bugs) if self.bugs else ""

    @property
    def links(self) -> tuple[str, ...]:
        """Addresses of the threads whose repository is known."""
        return tuple(address for bug in self.bugs if (address := link(bug)))

    @property
    def shown_by(self) -> str | None:
        """What a caller has to pass or do to see the mistake, as ``python -m attnbench_zoo.needs``
        measured it; ``None`` where none of its calls shows it, where it was not measured, and for a
        right one.
        """
        return _needs().get(self.name)

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

        return Built(call, tuple(getattr(inputs, name) for name in names), module, inputs, spec)


@functools.cache
def _subject(spec: Any) -> Subject:
    (subject,) = resolve(spec)
    return subject


@functools.cache
def _needs() -> dict[str, str]:
    text = resources.files("attnbench_zoo").joinpath("needs.json").read_text("utf-8")
    found: dict[str, str] = json.loads(text)["shown_by"]
    return found


def blind_entries() -> tuple[Entry, ...]:
    """The blind part: mutants of public bugs by someone who had not read the invariants."""
    return tuple(_entry(mutant, "blind") for mutant in BLIND)


@functools.cache
def entries() -> tuple[Entry, ...]:
    """Every mutant, then every right implementation."""
    return (*_mutants(), *_right())


def _mutants() -> Iterator[Entry]:
    for topic in TOPICS:
        for mutant in topic.MUTANTS:
            yield _entry(mutant, topic.__name__.rpartition(".")[2])


def _entry(mutant: Mutant, topic: str) -> Entry:
    return Entry(
        name=mutant.name,
        right=False,
        topic=topic,
        mistake=mutant.mistake,
        spec=mutant.spec,
        reference=mutant.twin.spec,
        bugs=mutant.bugs,
        killers=mutant.killers,
    )


def _right() -> Iterator[Entry]:
    others = {"sdpa", "sdpaflash", "flex", "chunked", "online"}
    for twin in TWINS:
        reference: Spec = twin.spec
        if isinstance(twin.spec, KernelSpec):
            reference = attnbench.get(twin.spec.scoring)
        yield Entry(twin.name, True, "twins", "", twin.spec, reference)
    for right in RIGHT:
        reference = ATTENTION.spec if right.name in others else right.spec
        yield Entry(right.name, True, "right", "", right.spec, reference)
    for name, layer in RIGHT_LAYERS.items():
        yield Entry(name, True, "right layers", "", layer, layer)
    for spec in BY_DESIGN:
        yield Entry(spec.name, True, "by design", "", spec, spec)
    for name in attnbench.subjects():
        (subject,) = resolve(name)
        if isinstance(subject.spec, KernelSpec) and not subject.options:
            yield Entry(name, True, "built-in", "", subject.spec, subject.maker)
