"""Building blocks for authors of mechanisms and invariants, besides the names of ``attnbench``.

The built-in plugins import nothing else from the core but its other doors. A mechanism prepares its
arguments with :func:`prepare`, scores with :func:`scores_of`, and ends with :func:`softmax_weights`
and :func:`pool`. An invariant builds its case through the :class:`Subject` that it is given, or
through a :class:`Baseline`, changes the :class:`Inputs`, and compares with :func:`agree_within` or
:func:`holds`, whose errors name the value and the place.

A property has the reasons why it does not apply, such as :func:`accepts` and :func:`supports`, the
leaves and slopes of gradients by :func:`leaves_of` and :func:`compare_slopes`, and, to search on
its own, the :class:`Effort` of the run and :func:`find_simplest`. One of layers compares outputs
within :func:`rounding_of`, as a :class:`LayerCase` does; :func:`layer_invariant` makes it.
``has_cache`` comes with the plugins of this distribution.

A plugin that brings a style of call makes its specs by :func:`adapted_spec`, reshapes by
:func:`fold_heads`, :func:`fold_mask_heads` and :func:`unfold_heads`, and calls within
:func:`refusals`.

A plugin that runs checks itself, as the judge does, has :func:`parse_address`, :func:`make_inputs`,
:func:`run_invariants` and, for the right output, :func:`expected`.

One that compares outputs has the :class:`Oracle` of a subject, :func:`stages_of` the textbook's
attention, :data:`ARRANGEMENTS` of a call that should change no bit, and, to run a module wider than
it is, :class:`NormEpsilon`, :class:`RoundedOperations` and :class:`Operations`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from attnbench.attention.arguments import check_output
from attnbench.attention.attend import scores_of
from attnbench.attention.calls import Call, check_features, prepare
from attnbench.attention.compile_times import note_compiled
from attnbench.attention.dispatch import scoring_of
from attnbench.attention.masks import Mask
from attnbench.attention.softmax import pool, softmax_weights, widen
from attnbench.attention.torch_internals import (
    eager,
    graph_breaks,
    softmax_backward,
    transforms_active,
)
from attnbench.calling.adapted_specs import adapted_spec
from attnbench.calling.adapted_specs import fold as fold_heads
from attnbench.calling.adapted_specs import fold_mask as fold_mask_heads
from attnbench.calling.adapted_specs import unfold as unfold_heads
from attnbench.calling.refusals import refusals
from attnbench.calling.scaled_dot import SCALED_DOT, scaled_dot_rows
from attnbench.calling.signature import keywords_of, renames
from attnbench.cases.case import LAYOUTS, MASKS
from attnbench.checking.answer_faults import raised_text
from attnbench.checking.call_cost import calls_at
from attnbench.checking.explain.recorded_operations import Operations
from attnbench.checking.profiles import Effort, current_effort, current_profile
from attnbench.distributions import NAME_GROUP, entry_points
from attnbench.invariants.numerics import allowed_errors, representable
from attnbench.invariants.toolkit.applicability import (
    accepts,
    adds_keys,
    any_of,
    declares,
    has_no_gradients,
    has_scores,
    hides_by_a_number,
    knows_heads,
    knows_positions,
    not_exempt,
    resizes,
    supports,
    ties,
)
from attnbench.invariants.toolkit.baseline import Baseline, SameDraws
from attnbench.invariants.toolkit.comparisons import (
    STANDARD_ERRORS,
    agree,
    agree_within,
    differentiate,
    fails,
    holds,
    needs,
    reject,
    same_gradient,
    same_gradients,
    state_is_kept,
    violation_of,
    within,
)
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.derivations import (
    FREE_MASKS,
    ORDINARY_MASKS,
    benign,
    explicit,
    grouped,
    hand_picked,
    has_gradients,
    leaves_of,
    ordinary,
    placed_at,
    score_rounding,
    select_items,
    select_keys,
    select_queries,
    with_mask,
)
from attnbench.invariants.toolkit.layer_calls import (
    LayerCase,
    layer_cases,
    layer_invariant,
    worst_place,
)
from attnbench.invariants.toolkit.layer_rounding import copied, floor_of, rounding_of
from attnbench.invariants.toolkit.slopes import compare_slopes, has_slopes
from attnbench.oracle.budget import Oracle, expected
from attnbench.oracle.operations import RoundedOperations, change_by_moves
from attnbench.oracle.references import NormEpsilon, allowed_and_bias, widened
from attnbench.oracle.textbook import is_textbook, stages_of, textbook_output
from attnbench.registry.address import parse_address
from attnbench.specs import DTYPES, KINDS
from attnbench.subject.layer import SOURCE, LayerSubject
from attnbench.subject.layer_limits import change_by_length
from attnbench.subject.lookup import attribute, make_scoring, resolve
from attnbench.subject.mechanism_subject import MechanismSubject
from attnbench.subject.tensors import LayerInputs, largest, lay_out, make_inputs

if TYPE_CHECKING:
    from attnbench.checking.api import run_invariants
    from attnbench.checking.explain.replay import Comparison, replay
    from attnbench.checking.hypothesis_engine import Failures, find_simplest

_LAZY = {
    "Comparison": "checking.explain.replay",
    "Failures": "checking.hypothesis_engine",
    "find_simplest": "checking.hypothesis_engine",
    "replay": "checking.explain.replay",
    "run_invariants": "checking.api",
}
"""Names that import hypothesis, which those who only list or make subjects need not wait for."""

__all__ = [
    "DTYPES",
    "FREE_MASKS",
    "KINDS",
    "LAYOUTS",
    "MASKS",
    "ORDINARY_MASKS",
    "SCALED_DOT",
    "SOURCE",
    "STANDARD_ERRORS",
    "Baseline",
    "Call",
    "Comparison",
    "Effort",
    "Failures",
    "LayerCase",
    "LayerInputs",
    "LayerSubject",
    "Mask",
    "MechanismSubject",
    "NormEpsilon",
    "Operations",
    "Oracle",
    "RoundedOperations",
    "SameDraws",
    "accepts",
    "adapted_spec",
    "adds_keys",
    "agree",
    "agree_within",
    "allowed_and_bias",
    "allowed_errors",
    "any_of",
    "attribute",
    "benign",
    "calls_at",
    "change_by_length",
    "change_by_moves",
    "check_features",
    "check_output",
    "compare_slopes",
    "copied",
    "current_effort",
    "current_profile",
    "declares",
    "differentiate",
    "eager",
    "expected",
    "explicit",
    "fails",
    "find_simplest",
    "floor_of",
    "fold_heads",
    "fold_mask_heads",
    "graph_breaks",
    "grouped",
    "hand_picked",
    "has_gradients",
    "has_no_gradients",
    "has_scores",
    "has_slopes",
    "hides_by_a_number",
    "holds",
    "invariant",
    "is_textbook",
    "keywords_of",
    "knows_heads",
    "knows_positions",
    "largest",
    "lay_out",
    "layer_cases",
    "layer_invariant",
    "leaves_of",
    "make_inputs",
    "make_scoring",
    "needs",
    "not_exempt",
    "note_compiled",
    "ordinary",
    "parse_address",
    "placed_at",
    "pool",
    "prepare",
    "raised_text",
    "refusals",
    "reject",
    "renames",
    "replay",
    "representable",
    "resizes",
    "resolve",
    "rounding_of",
    "run_invariants",
    "same_gradient",
    "same_gradients",
    "scaled_dot_rows",
    "score_rounding",
    "scores_of",
    "scoring_of",
    "select_items",
    "select_keys",
    "select_queries",
    "softmax_backward",
    "softmax_weights",
    "stages_of",
    "state_is_kept",
    "supports",
    "textbook_output",
    "ties",
    "transforms_active",
    "unfold_heads",
    "violation_of",
    "widen",
    "widened",
    "with_mask",
    "within",
    "worst_place",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"attnbench.{_LAZY[name]}"), name)
    elif not name.startswith("_") and (point := entry_points(NAME_GROUP).get(f"testing.{name}")):
        value = point.load()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    globals()[name] = value
    return value
