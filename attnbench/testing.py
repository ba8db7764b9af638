"""Building blocks for authors of mechanisms and invariants, besides the names of ``attnbench``.

The built-in plugins import nothing else from the core. A mechanism prepares its arguments with
:func:`prepare`, scores with :func:`scores_of`, and ends with :func:`softmax_weights` and
:func:`pool`. An invariant builds its case through the :class:`Subject` that it is given, or through
a :class:`Baseline`, changes the :class:`Inputs`, and compares with :func:`agree_within` or
:func:`holds`, whose errors name the value and the place.
"""

from attnbench.attention.attend import scores_of
from attnbench.attention.calls import Call, check_features, prepare
from attnbench.attention.compile_times import note_compiled
from attnbench.attention.dispatch import scoring_of
from attnbench.attention.masks import Mask, causal_mask, fold, valid_lens_mask, window_mask
from attnbench.attention.softmax import masked_softmax, pool, softmax_weights
from attnbench.attention.torch_internals import eager, softmax_backward, transforms_active
from attnbench.attention.windows import Band, band, last_slots
from attnbench.cases.case import LAYOUTS, MASKS, REGIMES
from attnbench.checking.profiles import current_profile
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import (
    agree,
    agree_within,
    differentiate,
    holds,
    needs,
    reject,
    same_gradient,
    same_gradients,
)
from attnbench.invariants.toolkit.derivations import (
    benign,
    explicit,
    has_gradients,
    has_weights,
    leaves_of,
    only_keys,
    ordinary,
    resizes,
    select_items,
    select_keys,
    select_queries,
    unmasked,
    with_junk,
    with_mask,
)
from attnbench.oracle.budget import Oracle
from attnbench.oracle.references import Reference
from attnbench.subject.lookup import make_scoring, resolve

__all__ = [
    "LAYOUTS",
    "MASKS",
    "REGIMES",
    "Band",
    "Baseline",
    "Call",
    "Mask",
    "Oracle",
    "Reference",
    "agree",
    "agree_within",
    "band",
    "benign",
    "causal_mask",
    "check_features",
    "current_profile",
    "differentiate",
    "eager",
    "explicit",
    "fold",
    "has_gradients",
    "has_weights",
    "holds",
    "last_slots",
    "leaves_of",
    "make_scoring",
    "masked_softmax",
    "needs",
    "note_compiled",
    "only_keys",
    "ordinary",
    "pool",
    "prepare",
    "reject",
    "resizes",
    "resolve",
    "same_gradient",
    "same_gradients",
    "scores_of",
    "scoring_of",
    "select_items",
    "select_keys",
    "select_queries",
    "softmax_backward",
    "softmax_weights",
    "transforms_active",
    "unmasked",
    "valid_lens_mask",
    "window_mask",
    "with_junk",
    "with_mask",
]
