"""Building blocks for authors of mechanisms and invariants, besides the names of ``attnbench``.

The built-in plugins import nothing else from the core. A mechanism prepares its arguments with
:func:`prepare`, scores with :func:`scores_of`, and ends with :func:`softmax_weights` and
:func:`pool`. An invariant builds its case through the :class:`Subject` that it is given, or through
a :class:`Baseline`, changes the :class:`Inputs`, and compares with :func:`agree_within` or
:func:`holds`, whose errors name the value and the place.
"""

import warnings

from attnbench.attention.attend import scores_of
from attnbench.attention.calls import Call, check_features, prepare
from attnbench.attention.compile_times import note_compiled
from attnbench.attention.dispatch import scoring_of
from attnbench.attention.masks import Mask, causal_mask, fold, valid_lens_mask, window_mask
from attnbench.attention.softmax import masked_softmax, pool, softmax_weights
from attnbench.attention.torch_internals import eager, softmax_backward, transforms_active
from attnbench.attention.windows import Band, band, last_slots
from attnbench.cases.case import MASKS
from attnbench.checking.profiles import current_profile
from attnbench.invariants.toolkit.applicability import resizes
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import (
    agree,
    agree_within,
    differentiate,
    holds,
    needs,
    reject,
)
from attnbench.invariants.toolkit.derivations import benign, select_keys
from attnbench.oracle import budget
from attnbench.subject.lookup import make_scoring, resolve

__all__ = [
    "MASKS",
    "Band",
    "Baseline",
    "Call",
    "Mask",
    "agree",
    "agree_within",
    "band",
    "benign",
    "causal_mask",
    "check_features",
    "current_profile",
    "differentiate",
    "eager",
    "fold",
    "holds",
    "last_slots",
    "make_scoring",
    "masked_softmax",
    "needs",
    "note_compiled",
    "pool",
    "prepare",
    "reject",
    "resizes",
    "resolve",
    "scores_of",
    "scoring_of",
    "select_keys",
    "softmax_backward",
    "softmax_weights",
    "transforms_active",
    "valid_lens_mask",
    "window_mask",
]


def __getattr__(name: str) -> object:
    """A name that is deprecated; what else is asked for does not exist."""
    if name != "Oracle":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    warnings.warn(
        "attnbench.testing.Oracle is deprecated and will be removed in 0.3: it is no part of the "
        "toolkit, and may change without notice.",
        DeprecationWarning,
        stacklevel=2,
    )
    return budget.Oracle
