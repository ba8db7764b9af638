"""The spaces that invariants draw from; Hypothesis is imported only where one is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.cases.case import LAYER_MASKS, LAYOUTS, MASKS, REGIMES, Case
from attnbench.cases.domain import Domain, Taker
from attnbench.errors import UsageError, nearest

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from attnbench.cases.drawing import CaseSpace

__all__ = ["cases", "changed", "domain_of", "listed", "listed_of"]


def cases(subject: Taker, **narrowed: Any) -> CaseSpace:
    """Cases that are legal for a subject.

    The strategy can be filtered, mapped and joined by ``|``: what is scheduled is filtered and
    mapped too, and ``--dtype`` and the quotas of the profile stay in force.

    Args:
        subject: its sizes and dtypes are respected.
        narrowed: fields of :class:`attnbench.cases.domain.Domain`, for an invariant that has
            something to say of some cases only: ``masks=("causal",)``, ``dtypes=("float64",)``,
            ``max_len=16``. ``variants={"side": ("left", "right")}`` draws which variant of a
            property is tried; ``case.variant("side", "left")`` tells the check.

    Returns:
        A Hypothesis strategy of cases.

    Raises:
        UsageError: there is no such field, no mask, layout or regime of a name, or the id of a
            case could not name a variant.
    """
    from attnbench.cases.drawing import CaseSpace, Space  # 0.3 s listing subjects need not pay

    _check_names(narrowed)
    domain = replace(Domain(dtypes=subject.dtypes), **narrowed)
    domain = replace(domain, max_features=max(domain.max_features, _least_size(subject)))
    dtypes = tuple(d for d in domain.dtypes if d in subject.dtypes) or subject.dtypes[:1]
    masks = tuple(filter(subject.takes_mask, domain.masks)) or domain.masks
    return CaseSpace(Space(subject, replace(domain, dtypes=dtypes, masks=masks)))


_NAMES = {"masks": {**MASKS, **LAYER_MASKS}, "layouts": LAYOUTS, "regimes": REGIMES}


def _check_names(narrowed: Mapping[str, Any]) -> None:
    fields = Domain.__dataclass_fields__
    for field, value in narrowed.items():
        if field not in fields:
            raise UsageError(f"cases() takes no {field!r}. {nearest(field, fields)}")
        for name in value if field in _NAMES else ():
            if name not in _NAMES[field]:
                raise UsageError(
                    f"cases({field}=...) got {name!r}, which is none. "
                    f"{nearest(str(name), _NAMES[field])}"
                )
    _check_variants(narrowed.get("variants", {}))


def _check_variants(variants: Mapping[str, Sequence[str | int | bool]]) -> None:
    """Hold names and options to what the id of a case can name and be read back from."""
    for name, options in variants.items():
        for word in (name, *options):
            if not re.fullmatch(r"\w+", str(word)):
                raise UsageError(
                    f"variants={{{name!r}: ...}} has {word!r}, but the id of a case holds letters, "
                    "digits and underscores only."
                )


def _least_size(subject: Taker) -> int:
    """The smallest E of a layer, which may be made for one size alone; 1 of all else."""
    if getattr(subject, "kind", None) != "layer":
        return 1
    return subject.legal(Case((1,), 1, 1, 1, 1, 1)).query_size


def listed(
    *cases: Case,
    enough: int | None = None,
    variants: Mapping[str, Sequence[str | int | bool]] | None = None,
) -> CaseSpace:
    """Exactly these cases, once each: for an invariant of which one case costs or says much.

    Args:
        cases: legal ones; equal ones are run once.
        enough: how many of them must have said something; all by default.
        variants: as of :func:`cases`; the cases take the options in turn.
    """
    from attnbench.cases.drawing import CaseSpace, Listing

    _check_variants(variants or {})
    distinct = tuple(dict.fromkeys(cases))
    return CaseSpace(Listing(distinct, variants or {}, enough=enough or len(distinct)))


def changed(strategy: SearchStrategy[Case], *ways: Callable[[Case], Case]) -> SearchStrategy[Case]:
    """A strategy of :func:`cases`, where one of some changes is drawn and made to each drawn case.

    Scheduled cases are left as they are; ``map`` changes those too.
    """
    changed: SearchStrategy[Case] = strategy.changed(*ways)  # type: ignore[attr-defined]
    return changed


def domain_of(strategy: SearchStrategy[Case]) -> Domain | None:
    """The bounds of a strategy; ``None`` for one that was not made by :func:`cases`."""
    return getattr(_only(strategy), "domain", None)


def listed_of(strategy: SearchStrategy[Case]) -> tuple[list[Case], int] | None:
    """The cases of :func:`listed` and how many are enough; ``None`` for any other strategy."""
    part = _only(strategy)
    cases = getattr(part, "cases", None)
    return None if cases is None else (list(cases), part.enough)


def _only(strategy: SearchStrategy[Case]) -> Any:
    """What a strategy joins, if it is a single space."""
    parts: Sequence[Any] = getattr(strategy, "parts", ())
    return parts[0] if len(parts) == 1 else None
