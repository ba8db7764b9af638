"""The strategies from which invariants draw cases; Hypothesis is imported only when one is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from attnbench.cases.case import LAYER_MASKS, LAYOUTS, MASKS, REGIMES, Case, read_option
from attnbench.cases.domain import Domain
from attnbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

CaseStrategy: TypeAlias = "SearchStrategy[Case]"
"""What an invariant draws its cases from."""


def cases(subject: Any, **bounds: Any) -> SearchStrategy[Case]:
    """A strategy of the cases that a subject supports.

    The strategy can be filtered, mapped and joined by ``|``. This applies to scheduled cases as
    well, and ``--dtype`` and the quotas of the profile stay in force.

    Args:
        subject: subject whose sizes and dtypes are respected.
        bounds: fields of :class:`attnbench.cases.domain.Domain`, for an invariant that applies
            to some cases only: ``masks=("causal",)``, ``dtypes=("float64",)``, ``max_len=16``.
            ``variants={"side": ("left", "right")}`` draws a variant of the property; in the check,
            ``case.variant("side", "left")`` returns it.

    Returns:
        A Hypothesis strategy of cases.

    Raises:
        UsageError: a field, mask, layout or regime does not exist, or the id of a case cannot
            contain the name of a variant.
    """
    from attnbench.cases.case_space import CaseSpace
    from attnbench.cases.space_parts import Space  # saves 0.3 s when listing subjects

    _check_names(bounds)
    domain = replace(Domain(dtypes=subject.dtypes), **bounds)
    least: Case = subject.legal(Case((1,), 1, 1, 1, 1, 1))  # it may support one size only
    domain = replace(domain, max_features=max(domain.max_features, least.width))
    dtypes = tuple(d for d in domain.dtypes if d in subject.dtypes) or subject.dtypes[:1]
    masks = tuple(filter(subject.takes_mask, domain.masks)) or domain.masks
    space = Space(subject, replace(domain, dtypes=dtypes, masks=masks))
    return CaseSpace((space,)).strategy()


_NAMES = {"masks": {**MASKS, **LAYER_MASKS}, "layouts": LAYOUTS, "regimes": REGIMES}


def _check_names(bounds: Mapping[str, Any]) -> None:
    fields = Domain.__dataclass_fields__
    for field, value in bounds.items():
        if field not in fields:
            raise UsageError(f"cases() takes no {field!r}. {nearest(field, fields)}")
        for name in value if field in _NAMES else ():
            if name not in _NAMES[field]:
                raise UsageError(
                    f"cases({field}=...) got the unknown name {name!r}. "
                    f"{nearest(str(name), _NAMES[field])}"
                )
    _check_variants(bounds.get("variants", {}))


def _check_variants(variants: Mapping[str, Sequence[str | int | bool]]) -> None:
    """Check that names and options can be written in the id of a case and read back."""
    for name, options in variants.items():
        for word in (name, *options):
            value = read_option(str(word))
            if not re.fullmatch(r"\w+", str(word)) or (type(value), value) != (type(word), word):
                raise UsageError(
                    f"variants={{{name!r}: ...}} has {word!r}, but the id of a case may contain "
                    "only letters, digits and underscores, and a number or a boolean is one there."
                )


def listed(
    *cases: Case,
    enough: int | None = None,
    variants: Mapping[str, Sequence[str | int | bool]] | None = None,
) -> SearchStrategy[Case]:
    """A strategy of exactly these cases, for an invariant whose cases are expensive or hand-picked.

    Args:
        cases: cases that the subject supports; equal ones run once.
        enough: number of cases that must give a verdict; by default all.
        variants: as for :func:`cases`; the cases take the options in turn.
    """
    from attnbench.cases.case_space import CaseSpace
    from attnbench.cases.space_parts import Listing

    _check_variants(variants or {})
    distinct = tuple(dict.fromkeys(cases))
    listing = Listing(distinct, variants or {}, enough=enough or len(distinct))
    return CaseSpace((listing,)).strategy()


def changed(strategy: SearchStrategy[Case], *ways: Callable[[Case], Case]) -> SearchStrategy[Case]:
    """A strategy of :func:`cases` with one of several changes applied to each drawn case.

    Scheduled cases stay unchanged; ``map`` changes these as well.

    Raises:
        UsageError: the strategy was made by something else.
    """
    from attnbench.cases.case_space import space_of
    from attnbench.cases.space_parts import Foreign

    space = space_of(strategy)
    if any(isinstance(part, Foreign) for part in space.parts):
        raise UsageError(f"changed() takes a strategy of cases(), but got {strategy!r}.")
    return space.changed(*ways).strategy()
