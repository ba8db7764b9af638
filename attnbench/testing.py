"""Building blocks for authors of mechanisms and invariants, besides the names of ``attnbench``.

The built-in plugins import nothing else from the core but its other doors. A mechanism prepares its
arguments with :func:`prepare`, scores with :func:`scores_of`, and ends with :func:`softmax_weights`
and :func:`pool`. An invariant builds its case through the :class:`Subject` that it is given, or
through a :class:`Baseline`, changes the :class:`Inputs`, and compares with :func:`agree_within` or
:func:`holds`, whose errors name the value and the place.

A property has the reasons why it does not apply, such as :func:`accepts` and :func:`supports`, the
leaves and slopes of gradients by :func:`leaves_of` and :func:`compare_slopes`, and, to search on
its own, the :class:`Effort` of the run and :func:`find_simplest`. One of layers compares outputs
within :func:`rounding_of`, as a :class:`LayerCase` does; :func:`layer_invariant` makes it. A hook
may give all of a package by :func:`invariants_of`. ``has_cache`` comes with the plugins of this
distribution.

A plugin that brings a style of call makes its specs by :func:`adapted_spec`, reshapes by
:func:`fold_heads`, :func:`fold_mask_heads` and :func:`unfold_heads`, and calls within
:func:`refusals`.

A plugin that runs checks itself, as the judge does, has :func:`parse_address`, :func:`make_inputs`,
:func:`run_invariants` and, for the right output, :func:`expected`. One that explains a failure runs
it again by :func:`replay`, and finds the :class:`Row` that is compared by :func:`row_of`.

One that compares outputs has the :class:`Oracle` of a subject, :func:`stages_of` the textbook's
attention, :data:`ARRANGEMENTS` of a call that should change no bit, and, to run a module wider than
it is, :class:`NormEpsilon`, :class:`RoundedOperations` and :class:`Operations`.
"""

import importlib
from typing import TYPE_CHECKING, Any

from attnbench.attention.arguments import check_output as check_output
from attnbench.attention.attend import scores_of as scores_of
from attnbench.attention.calls import Call as Call
from attnbench.attention.calls import check_features as check_features
from attnbench.attention.calls import prepare as prepare
from attnbench.attention.compile_times import note_compiled as note_compiled
from attnbench.attention.dispatch import scoring_of as scoring_of
from attnbench.attention.masks import Mask as Mask
from attnbench.attention.softmax import pool as pool
from attnbench.attention.softmax import softmax_weights as softmax_weights
from attnbench.attention.softmax import widen as widen
from attnbench.attention.torch_internals import eager as eager
from attnbench.attention.torch_internals import graph_breaks as graph_breaks
from attnbench.attention.torch_internals import softmax_backward as softmax_backward
from attnbench.attention.torch_internals import transforms_active as transforms_active
from attnbench.calling.adapted_specs import AdaptedSpec as AdaptedSpec
from attnbench.calling.adapted_specs import adapted_spec as adapted_spec
from attnbench.calling.adapted_specs import fold_heads as fold_heads
from attnbench.calling.adapted_specs import fold_mask_heads as fold_mask_heads
from attnbench.calling.adapted_specs import unfold_heads as unfold_heads
from attnbench.calling.refusals import refusals as refusals
from attnbench.calling.scaled_dot import SCALED_DOT as SCALED_DOT
from attnbench.calling.scaled_dot import scaled_dot_rows as scaled_dot_rows
from attnbench.calling.signature import keywords_of as keywords_of
from attnbench.calling.signature import renames as renames
from attnbench.cases.case import LAYOUTS as LAYOUTS
from attnbench.cases.case import MASKS as MASKS
from attnbench.checking.answer_faults import raised_text as raised_text
from attnbench.checking.call_cost import calls_at as calls_at
from attnbench.checking.profiles import Effort as Effort
from attnbench.checking.profiles import current_effort as current_effort
from attnbench.checking.profiles import current_profile as current_profile
from attnbench.distributions import NAME_GROUP, entry_points
from attnbench.invariants import invariants_of as invariants_of
from attnbench.invariants.numerics import allowed_errors as allowed_errors
from attnbench.invariants.numerics import representable as representable
from attnbench.invariants.toolkit.applicability import accepts as accepts
from attnbench.invariants.toolkit.applicability import adds_keys as adds_keys
from attnbench.invariants.toolkit.applicability import any_of as any_of
from attnbench.invariants.toolkit.applicability import declares as declares
from attnbench.invariants.toolkit.applicability import has_no_gradients as has_no_gradients
from attnbench.invariants.toolkit.applicability import has_scores as has_scores
from attnbench.invariants.toolkit.applicability import hides_by_a_number as hides_by_a_number
from attnbench.invariants.toolkit.applicability import knows_heads as knows_heads
from attnbench.invariants.toolkit.applicability import knows_positions as knows_positions
from attnbench.invariants.toolkit.applicability import not_exempt as not_exempt
from attnbench.invariants.toolkit.applicability import resizes as resizes
from attnbench.invariants.toolkit.applicability import supports as supports
from attnbench.invariants.toolkit.applicability import ties as ties
from attnbench.invariants.toolkit.baseline import Baseline as Baseline
from attnbench.invariants.toolkit.baseline import SameDraws as SameDraws
from attnbench.invariants.toolkit.comparisons import STANDARD_ERRORS as STANDARD_ERRORS
from attnbench.invariants.toolkit.comparisons import agree as agree
from attnbench.invariants.toolkit.comparisons import agree_within as agree_within
from attnbench.invariants.toolkit.comparisons import differentiate as differentiate
from attnbench.invariants.toolkit.comparisons import fails as fails
from attnbench.invariants.toolkit.comparisons import holds as holds
from attnbench.invariants.toolkit.comparisons import needs as needs
from attnbench.invariants.toolkit.comparisons import reject as reject
from attnbench.invariants.toolkit.comparisons import same_gradient as same_gradient
from attnbench.invariants.toolkit.comparisons import same_gradients as same_gradients
from attnbench.invariants.toolkit.comparisons import state_is_kept as state_is_kept
from attnbench.invariants.toolkit.comparisons import violation_of as violation_of
from attnbench.invariants.toolkit.comparisons import within as within
from attnbench.invariants.toolkit.decorator import invariant as invariant
from attnbench.invariants.toolkit.derivations import FREE_MASKS as FREE_MASKS
from attnbench.invariants.toolkit.derivations import ORDINARY_MASKS as ORDINARY_MASKS
from attnbench.invariants.toolkit.derivations import benign as benign
from attnbench.invariants.toolkit.derivations import explicit as explicit
from attnbench.invariants.toolkit.derivations import grouped as grouped
from attnbench.invariants.toolkit.derivations import hand_picked as hand_picked
from attnbench.invariants.toolkit.derivations import has_gradients as has_gradients
from attnbench.invariants.toolkit.derivations import leaves_of as leaves_of
from attnbench.invariants.toolkit.derivations import ordinary as ordinary
from attnbench.invariants.toolkit.derivations import placed_at as placed_at
from attnbench.invariants.toolkit.derivations import score_rounding as score_rounding
from attnbench.invariants.toolkit.derivations import select_items as select_items
from attnbench.invariants.toolkit.derivations import select_keys as select_keys
from attnbench.invariants.toolkit.derivations import select_queries as select_queries
from attnbench.invariants.toolkit.derivations import with_mask as with_mask
from attnbench.invariants.toolkit.layer_calls import LayerCase as LayerCase
from attnbench.invariants.toolkit.layer_calls import layer_cases as layer_cases
from attnbench.invariants.toolkit.layer_calls import layer_invariant as layer_invariant
from attnbench.invariants.toolkit.layer_calls import worst_place as worst_place
from attnbench.invariants.toolkit.layer_rounding import copied as copied
from attnbench.invariants.toolkit.layer_rounding import floor_of as floor_of
from attnbench.invariants.toolkit.layer_rounding import rounding_of as rounding_of
from attnbench.invariants.toolkit.slopes import compare_slopes as compare_slopes
from attnbench.invariants.toolkit.slopes import has_slopes as has_slopes
from attnbench.oracle.budget import Oracle as Oracle
from attnbench.oracle.budget import expected as expected
from attnbench.oracle.operations import RoundedOperations as RoundedOperations
from attnbench.oracle.operations import change_by_moves as change_by_moves
from attnbench.oracle.references import NormEpsilon as NormEpsilon
from attnbench.oracle.references import allowed_and_bias as allowed_and_bias
from attnbench.oracle.references import widened as widened
from attnbench.oracle.textbook import is_textbook as is_textbook
from attnbench.oracle.textbook import stages_of as stages_of
from attnbench.oracle.textbook import textbook_output as textbook_output
from attnbench.processes.tracebacks import is_own_code as is_own_code
from attnbench.registry.address import parse_address as parse_address
from attnbench.specs import DTYPES as DTYPES
from attnbench.specs import KINDS as KINDS
from attnbench.subject.layer import SOURCE as SOURCE
from attnbench.subject.layer import LayerSubject as LayerSubject
from attnbench.subject.layer_limits import change_by_length as change_by_length
from attnbench.subject.lookup import attribute as attribute
from attnbench.subject.lookup import make_scoring as make_scoring
from attnbench.subject.lookup import resolve as resolve
from attnbench.subject.mechanism_subject import MechanismSubject as MechanismSubject
from attnbench.subject.tensors import LayerInputs as LayerInputs
from attnbench.subject.tensors import largest as largest
from attnbench.subject.tensors import lay_out as lay_out
from attnbench.subject.tensors import make_inputs as make_inputs

if TYPE_CHECKING:
    from attnbench.checking.api import run_invariants as run_invariants
    from attnbench.checking.explain.replay import CACHE_CALLS as CACHE_CALLS
    from attnbench.checking.explain.replay import Comparison as Comparison
    from attnbench.checking.explain.replay import Row as Row
    from attnbench.checking.explain.replay import SubjectCall as SubjectCall
    from attnbench.checking.explain.replay import replay as replay
    from attnbench.checking.explain.replay import row_of as row_of
    from attnbench.checking.hypothesis_engine import Failures as Failures
    from attnbench.checking.hypothesis_engine import find_simplest as find_simplest

_LAZY = {
    **dict.fromkeys(
        ("CACHE_CALLS", "Comparison", "Row", "SubjectCall", "replay", "row_of"),
        "checking.explain.replay",
    ),
    "Failures": "checking.hypothesis_engine",
    "find_simplest": "checking.hypothesis_engine",
    "run_invariants": "checking.api",
}
"""Names that import hypothesis, which those who only list or make subjects need not wait for."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"attnbench.{_LAZY[name]}"), name)
    elif not name.startswith("_") and (point := entry_points(NAME_GROUP).get(f"testing.{name}")):
        value = point.load()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    globals()[name] = value
    return value
