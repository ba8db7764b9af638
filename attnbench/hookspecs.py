"""The hooks of an attnbench plugin.

A plugin is a module, named by an entry point in the group ``attnbench``. It implements any of the
hooks below, each of which returns an iterable of specs, but for ``attnbench_contract``::

    # my_scores.py
    @attnbench.hookimpl
    def attnbench_scorings():
        yield attnbench.ScoringSpec(name="cosine", make=lambda *sizes: CosineScoring())

    # pyproject.toml
    [project.entry-points.attnbench]
    my_scores = "my_scores"

``attnbench new my-scores`` writes a whole one. Once installed with pip, it is a subject:
``attnbench check cosine``, ``attnbench bench cosine``. Without installing anything, a spec in a
file can be checked by its address: ``attnbench check my_scores.py:SPEC``.

Each plugin is loaded and called separately. If one raises, or returns something other than specs,
``attnbench list --plugins --load`` shows its traceback, and the others work as usual. A function
whose name begins with ``attnbench_`` but that is not a hook is an error, since it is probably a
misspelt hook.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pluggy

from attnbench.specs import (
    Clue,
    Format,
    Invariant,
    KernelSpec,
    LayerSpec,
    MechanismSpec,
    ScoringSpec,
    Style,
)

PROJECT = "attnbench"
"""Name of the pluggy project and of the entry-point group."""

VERSION = 3
"""Version of the contract; 1 had no ``attnbench_contract``, 2 no formats, styles and clues."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def attnbench_contract() -> int:  # type: ignore[empty-body]  # a hook has no body
    """The version of the contract that the plugin is written for, 1 to 3; may be left out.

    A plugin for a newer version than the installed attnbench knows is refused with one sentence
    that says so, and the others load.
    """


@hookspec
def attnbench_scorings() -> Iterable[ScoringSpec]:  # type: ignore[empty-body]  # a hook has no body
    """Scoring functions: modules that map query and key to scores ``(..., L, S)``.

    The module sees neither mask nor softmax, never a size of zero, and no key that is hidden from
    every query: :func:`attnbench.attend` takes care of those. Draw initial parameters from torch's
    global generator. See :class:`attnbench.ScoringSpec` for every field.
    """


@hookspec
def attnbench_kernels() -> Iterable[KernelSpec]:  # type: ignore[empty-body]  # a hook has no body
    """Kernels: faster ways to compute the output of a scoring function, exactly.

    The kernel is checked against its scoring function on every case that it supports, and
    ``attend(kernel="auto")`` takes the one of highest priority. See :class:`attnbench.KernelSpec`.
    """


@hookspec
def attnbench_mechanisms() -> Iterable[MechanismSpec]:  # type: ignore[empty-body]  # no body
    """Mechanisms: whole attentions, from query, key, value and mask to the output.

    A mechanism handles masks, empty rows and padding itself; the page "What attention means here"
    of the manual says how. See :class:`attnbench.MechanismSpec`.
    """


@hookspec
def attnbench_layers() -> Iterable[LayerSpec]:  # type: ignore[empty-body]  # a hook has no body
    """Layers: modules on hidden states ``(B, L, E)``, with padding and perhaps a cache.

    A self-attention block, a decoder layer or a whole model. See :class:`attnbench.LayerSpec` for
    every field, and :class:`attnbench.CacheSpec` for what a cache can do.
    """


@hookspec
def attnbench_invariants() -> Iterable[Invariant]:  # type: ignore[empty-body]  # no body
    """Invariants and laws: properties that hold for every case of a subject.

    A module without hooks gives the invariants that it holds, as those of the built-in ones do. See
    :class:`attnbench.Invariant`.
    """


@hookspec
def attnbench_formats() -> Iterable[Format]:  # type: ignore[empty-body]  # a hook has no body
    """Formats of ``attnbench check --format NAME``, beside json, junit, sarif and github.

    What one raises, or that it takes longer than 30 seconds, is one line, and the other formats are
    written. A built-in name keeps its meaning. See :class:`attnbench.Format`.
    """


@hookspec
def attnbench_styles() -> Iterable[Style]:  # type: ignore[empty-body]  # a hook has no body
    """Styles of call for ``--as NAME``, beside those of the core.

    A name of the core keeps its meaning. See :class:`attnbench.Style`.
    """


@hookspec
def attnbench_explain(subject: Any, failures: Sequence[Any]) -> Iterable[Clue]:  # type: ignore[empty-body]  # no body
    """Lines under the failures of a subject, most specific first.

    ``attnbench check`` calls it once a subject, after its last outcome, in the process that looks
    for the first difference. It changes no outcome; what it raises becomes a note, and after
    ``--timeout`` it is cut off.

    Args:
        subject: the :class:`attnbench.Subject` that failed.
        failures: its failures, the one that the report describes first. Each names its
            ``invariant`` and ``case``; :func:`attnbench.testing.replay` runs it again.
    """
