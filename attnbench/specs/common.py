"""Common parts of the specs: names, sizes, and checks of the types of fields."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from attnbench._signing import signed_make
from attnbench.cases.sizes import DTYPES
from attnbench.errors import SpecError, nearest
from attnbench.specs.heirs import heir

_NAME = re.compile(r"[A-Za-z_][\w.-]*")


class ReadOnly(Mapping[str, Any]):
    """A mapping that cannot be changed, but can be hashed, copied and pickled."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items))

    def __repr__(self) -> str:
        return repr(self._items)


def require(spec: Any, condition: bool, complaint: str) -> None:
    """Raise a :class:`SpecError` that names the spec, unless the condition holds."""
    if not condition:
        raise SpecError(f"{spec.kind} {spec.name!r}: {complaint}")


def check_spec_name(kind: str, name: object) -> None:
    """Check that a spec's name can be part of an address."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise SpecError(
            f"{kind} {name!r}: a name is a letter or '_', then letters, digits, '_', '-' or '.'; "
            "it is used in addresses such as additive/factorised(hidden_size=16)"
        )


def check_callable(spec: Any, *fields: str, optional: bool = False) -> None:
    """Check that fields are callable, or ``None`` where they are optional."""
    for field in fields:
        value = getattr(spec, field)
        is_right = callable(value) or (optional and value is None)
        require(spec, is_right, f"{field} should be callable, not {value!r}")


def check_type(spec: Any, field: str, field_type: type, expected: str) -> None:
    """Check the type of a field."""
    value = getattr(spec, field)
    is_right = isinstance(value, field_type) and (field_type is bool or not isinstance(value, bool))
    require(spec, is_right, f"{field} should be {expected}, not {value!r}")


def freeze_tuple(spec: Any, field: str, choices: Collection[str] = ()) -> None:
    """Turn a field into a tuple of names, of these choices if there are any."""
    value = getattr(spec, field)
    is_listing = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    items = tuple(value) if is_listing else ()
    are_names = is_listing and all(isinstance(item, str) for item in items)
    require(spec, are_names, f"{field} should be a tuple of names, not {value!r}")
    for item in items:
        if choices and item not in choices:
            require(spec, False, f"{field} names {item!r}. {nearest(item, choices)}")
    object.__setattr__(spec, field, items)


def freeze_exempt(spec: Any) -> None:
    """Turn ``exempt`` into a mapping that cannot be changed."""
    check_type(spec, "exempt", Mapping, "a mapping of an invariant's name to a reason")
    exempt = {heir(name): reason for name, reason in spec.exempt.items()}
    object.__setattr__(spec, "exempt", ReadOnly(exempt))


def _freeze_variants(spec: Any) -> None:
    value = spec.variants
    is_listing = isinstance(value, Iterable) and not isinstance(value, str | Mapping)
    variants = tuple(value) if is_listing else ()
    are_options = all(
        isinstance(v, Mapping) and all(isinstance(key, str) for key in v) for v in variants
    )
    require(
        spec,
        is_listing and are_options,
        "variants should be a tuple of mappings of an option's name to its value, such as "
        f"({{'num_heads': 2}},), not {value!r}",
    )
    object.__setattr__(spec, "variants", tuple(ReadOnly(variant) for variant in variants))


def is_count(value: object) -> bool:
    """Whether a value is a whole number of at least one."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def check_same_as(spec: Any) -> None:
    """Check that ``same_as`` is an address or ``None``."""
    address = spec.same_as
    is_address = isinstance(address, str) and bool(address.strip())
    complaint = f"same_as should be the address of another subject, not {address!r}"
    require(spec, address is None or is_address, complaint)


def freeze_common(spec: Any) -> None:
    """Check the types of the fields that scoring functions, mechanisms and layers share."""
    check_spec_name(spec.kind, spec.name)
    check_callable(spec, "make")
    check_callable(spec, "sizes", "reference", optional=True)
    if spec.dtypes is not None:
        freeze_tuple(spec, "dtypes", DTYPES)
        require(spec, bool(spec.dtypes), "dtypes is empty; leave it None for all")
    freeze_tuple(spec, "laws")
    object.__setattr__(spec, "laws", tuple(dict.fromkeys(map(heir, spec.laws))))
    freeze_exempt(spec)
    for field in ("formula", "source"):
        check_type(spec, field, str, "text")
    if hasattr(spec, "equal_sizes"):
        check_type(spec, "equal_sizes", bool, "True or False")
    _freeze_variants(spec)
    equal_sizes = getattr(spec, "equal_sizes", False)
    signed = signed_make(spec.name, spec.kind, spec.make, equal_sizes=equal_sizes)
    object.__setattr__(spec, "make", signed)
