"""The adapter of what textbooks teach: ``forward(queries, keys, values, valid_lens)``."""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling.adapted import name_of, spec_of
from attnbench.calling.facts import least_size, share_of_last
from attnbench.calling.keywords import keywords_of
from attnbench.calling.scaled_dot_floats import scaled_dot_rows
from attnbench.calling.styles.constructors import HEADS, asks_for_heads, constructor_arguments
from attnbench.calling.styles.fitting import better
from attnbench.calling.styles.renaming import renames
from attnbench.calling.styles.textbook_calls import (
    SLOTS,
    Form,
    TextbookMaker,
    refuse_missing_weights,
)
from attnbench.calling.styles.textbook_dropout import look_at_dropout
from attnbench.errors import StyleError, headline
from attnbench.processes.tracebacks import is_own_code
from attnbench.specs import MechanismSpec, Sizes

_CLEAR = 1e-4
_ABOVE = -999_999.0
"""A textbook's -1e6, but so that no scores far apart are tried."""
_DTYPES = ("float32", "float64")
"""A textbook's -1e6 is -inf in float16, and it divides a product that overflows there."""


@renames
def textbook(make: Callable[..., Any], **fields: Any) -> MechanismSpec:
    """Make a spec of a class, module or function as textbooks have it.

    It is called with query, key and value ``(B, L, E)``, under any of their usual names, and with
    the lengths ``(B,)`` or ``(B, L)`` of the keys, or a mask in which True may attend, where it
    takes one. The sizes that a constructor asks for by their usual names (``key_size``,
    ``num_hiddens``, ``num_heads``, ``dropout`` ...) are filled in. The form that takes one query at
    a time, one key vector and a fixed number of values is called for each query. Small calls show
    what it does by convention, and the report's first line says it.

    Args:
        make: a class, a function that attends, or a module.
        fields: fields of the spec, which override what is found out; conventions and exemptions are
            added.

    Raises:
        StyleError: no form of call gives an output, or the constructor asks for something unknown.
    """
    probe = _Probe(make)
    known: dict[str, Any] = {
        "make": probe.maker,
        "equal_sizes": probe.equal_sizes,
        "dtypes": _DTYPES,
        "sizes": probe.sizes,
        "conventions": probe.conventions(),
    }
    weights, pools = probe.weights()
    refuse_missing_weights(make, weights, fields.get("accepts", ()))
    drops, idle, exempt = look_at_dropout(probe.maker, probe.inputs(), weights)
    takes = {"valid_lens": probe.takes_lengths, "return_weights": weights, "dropout_p": drops}
    known["accepts"] = tuple(name for name, given in takes.items() if given)
    known["laws"] = ("pools_values",) if pools else ()
    if pools and probe.is_scaled_dot():
        known |= {"reference": scaled_dot_rows, "formula": "softmax(q·k / √E) v"}
    formula = probe.formula(pools, "reference" in {**known, **fields})
    if probe.form.single:
        exempt = dict.fromkeys(_ONE_KEY, "all slots share one key vector, the first")
    known |= {"exempt": exempt, "idle_dropout": idle}
    return spec_of("textbook", make, known, fields, (*probe.notes(), *formula))


_ONE_KEY = ("every_attendable_key_matters",)

_FORMS = ((), ("alone",), ("single", "alone"), ("flat",), ("needs",), ("needs", "by_head"))
"""The forms that are tried, by what is unusual about them."""


class _Probe:
    """What small calls show of a callee."""

    def __init__(self, make: Any) -> None:
        self.make, self.maker = make, TextbookMaker(make)
        self.heads = inspect.isclass(make) and asks_for_heads(make)
        self.raised: Exception | None = None
        callee = self._made(8, 8, 8).callee
        keywords = keywords_of(callee)
        if keywords is None:
            raise StyleError(
                f"{name_of(make)} cannot be called as textbook: nothing tells its "
                "arguments; wrap it in a function that names them."
            )
        self.form = self.maker.form = Form(keywords)
        if not self._find_form():
            raise StyleError(
                f"{name_of(make)} cannot be called as textbook: with query (2, 3, 8), "
                f"key (2, 5, 8) and value (2, 5, 8), all at once and one query at a time, it "
                f"{self._complaint()}.{self._square(Form(keywords))}{better(make)}"
            ) from self.raised
        self.equal_sizes = self.call(sizes=(8, 4, 8)) is None
        self.one_size = self.equal_sizes and self.call(sizes=(8, 8, 4)) is None
        self.takes_lengths = False

    def _made(self, *sizes: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.maker(*sizes).eval()

    def inputs(self, sizes: tuple[int, int, int] | None = None, lead: int = 2) -> list[Tensor]:
        """Query, key and value with 3 queries and 5 keys."""
        sizes = sizes or ((1, 1, 1) if self.form.flat else (8, 8, 8))
        generator = torch.Generator().manual_seed(1)
        lengths = (3, SLOTS, SLOTS)
        return [
            torch.randn(lead, length, size, generator=generator)
            for length, size in zip(lengths, sizes, strict=True)
        ]

    def call(
        self,
        tensors: list[Tensor] | None = None,
        *,
        sizes: tuple[int, int, int] | None = None,
        **given: Any,
    ) -> Any:
        """The result of a call; ``None`` if it raises or the output has another shape."""
        tensors = self.inputs(sizes) if tensors is None else tensors
        try:
            with torch.no_grad():
                found = self._made(*(tensor.shape[-1] for tensor in tensors))(*tensors, **given)
        except Exception as error:  # whatever it raises, it does not take this
            self.raised = error
            return None
        output = found[0] if isinstance(found, tuple) else found
        wanted = (*tensors[0].shape[:-1], tensors[2].shape[-1])
        return found if tuple(output.shape) == wanted else None

    def _find_form(self) -> bool:
        form, errors = self.form, []
        for unusual in _FORMS:
            for flag in ("single", "alone", "flat", "needs", "by_head"):
                setattr(form, flag, flag in unusual)
            if not form.needs or form.mask or form.lengths:
                if self.call() is not None:
                    return True
                errors.append(self.raised)
        self.raised = errors[0]
        return False

    def _complaint(self) -> str:
        if self.raised is None:
            return "gives an output of another shape than (2, 3, 8)"
        frames = traceback.extract_tb(self.raised.__traceback__)
        places = [f"{f.filename}:{f.lineno}" for f in frames if is_own_code(f.filename)]
        place = f" ({Path(places[-1]).name})" if places else ""
        return f"raises {headline(self.raised)[:150].rstrip('.')}{place}"

    def _square(self, form: Form) -> str:
        """A sentence where it takes as many queries as keys alone, in that form."""
        raised, self.maker.form = self.raised, form
        form.needs = bool(form.mask or form.lengths)
        query, key, value = self.inputs((8, 8, 8))
        takes = self.call([torch.cat([query, key[:, 3:]], 1), key, value]) is not None
        self.raised, self.maker.form = raised, self.form
        return " It works if there are as many queries as keys." if takes else ""

    def sizes(self, sizes: Sizes) -> Sizes:
        """The nearest sizes that it takes."""
        if self.form.single:
            sizes = sizes.replace(kv_len=SLOTS)
        if self.form.flat:
            sizes = sizes.replace(query_size=1, key_size=1, value_size=1)
        width = -(-sizes.value_size // HEADS) * HEADS if self.heads else sizes.value_size
        one = self.one_size or (self.heads and self.equal_sizes)
        same = {"query_size": width, "key_size": width} if one else {}
        return sizes.replace(value_size=width, **same)

    def conventions(self) -> dict[str, Any]:
        """The conventions that calls show."""
        tensors = self.inputs()
        lengths = self._takes(valid_lens=torch.tensor([2, 3])) if self.form.lengths else False
        rows = torch.tensor([[1, 2, 3], [2, 3, 4]])
        self.form.one_length = lengths and not self._takes(valid_lens=rows)
        mask = torch.ones(3, SLOTS, dtype=torch.bool).tril(1)
        boolean = bool(self.form.mask) and self._takes_mask(mask)
        bias = torch.zeros(3, SLOTS).masked_fill(~mask, -math.inf)
        floating = boolean and self._takes(attn_mask=bias)
        if floating:  # some masks of numbers are 1 where a key is left, and are not added
            one, two = (_first(self.call(attn_mask=given)) for given in (mask, bias))
            floating = _close(one, two)
        self.takes_lengths = lengths
        taken = {"boolean": boolean, "floating": floating, "lengths": lengths}
        forms = [form for form, takes in taken.items() if takes]
        found: dict[str, Any] = {"masks": tuple(forms)}
        if self.form.single:
            return found | {"positions": "absolute"}
        if not forms:
            return found
        found["empty_rows"] = self._empty_rows()
        tensors[2][:, 1:] = math.nan
        poisoned = self.call(tensors, **self._hidden(1))
        if poisoned is None or not bool(_first(poisoned).isfinite().all()):
            found["hidden_slots"] = "finite"
        low = self._mask_value()
        return found | ({} if low is None else {"mask_value": low})

    def _takes_mask(self, mask: Tensor) -> bool:
        """Whether it takes a mask, in a batch that cannot be taken for heads."""
        for self.form.by_head in (False, True):
            if self.call(self.inputs(lead=HEADS + 1), attn_mask=mask) is not None:
                return True
        self.form.by_head = False
        return False

    def _takes(self, **given: Any) -> bool:
        return self.call(**given) is not None

    def _hidden(self, left: int) -> dict[str, Any]:
        """The lengths or the mask that leave the first keys of each row."""
        if self.takes_lengths:
            return {"valid_lens": torch.full((2,), left)}
        return {"attn_mask": (torch.arange(SLOTS) < left).expand(3, SLOTS)}

    def _empty_rows(self) -> str:
        found = self.call(**self._hidden(0))
        if found is None:
            return "refused"
        output = _first(found)
        if bool(output.isnan().any()):
            return "nan"
        return "zeros" if bool((output == 0).all()) else "mean"

    def _mask_value(self) -> float | None:
        """The finite score that hides a key, where a dot product reaches below it."""

        def hidden(score: float) -> float:
            size, (query, key, value) = math.sqrt(score) / 8**0.25, self.inputs()
            query, key, one = query * 0 + size, key * 0 + size, value * 0 + 1
            values = one * 0, one, torch.cat([one[:, :1] * 0, one[:, 1:]], 1)
            calls = ([query, keys, v] for keys in (key, -key) for v in values)  # either sign
            found = [self.call(given, **self._hidden(1)) for given in calls]
            return share_of_last([None if each is None else _first(each) for each in found])

        found = least_size(hidden)  # None if no number stands for it: then it hides nothing
        turns = next(self._made(8, 8, 8).parameters(), None) is not None  # scores, either way
        least = _ABOVE if turns else -math.inf
        return None if found is None else max(-float(f"{found:.2g}"), least)

    def weights(self) -> tuple[bool, bool]:
        """Whether it gives weights, and whether the output is weights times value."""
        found = self.call(return_weights=True)
        if not isinstance(found, tuple) or found[1] is None:
            return False, False
        query, _, value = self.inputs()
        weights: Tensor = found[1]
        if weights.shape != (*query.shape[:-1], SLOTS):
            return False, False
        return True, _close(weights @ value, _first(found))

    def is_scaled_dot(self) -> bool:
        """Whether it computes ``softmax(q·k / √E) v``."""
        query, key, value = self.inputs()
        found = self.call()
        expected = nn.functional.scaled_dot_product_attention(query, key, value)
        return found is not None and _close(_first(found), expected)

    def formula(self, pools: bool, referenced: bool) -> tuple[str, ...]:
        """The remark on a formula that no reference checks."""
        if referenced:
            return ()
        query, key, _ = self.inputs()
        found = self.call(return_weights=True) if pools else None
        if isinstance(found, tuple) and self.equal_sizes:
            scores, dots = found[1].log(), query @ key.mT
            scores, dots = (t - t.mean(-1, keepdim=True) for t in (scores, dots))
            factor = float((scores * dots).sum() / dots.square().sum())
            if _close(scores, factor * dots):
                return (f"its scores are {factor:.3g}·q·k for E = 8, where 1/√E is 0.354",)
        return ("no reference: a wrong but self-consistent formula would pass",)

    def notes(self) -> tuple[str, ...]:
        """The facts for the report's first line."""
        found = ["recognised by its arguments"]
        if inspect.isclass(self.make):
            given = constructor_arguments(self.make, 8, 8, 8, SLOTS)
            found += [f"made with {', '.join(given)}"] if given else []
        return (*found, *self.form.in_words(), "in float32 and float64")


def _first(found: Any) -> Tensor:
    output: Tensor = found[0] if isinstance(found, tuple) else found
    return output


def _close(got: Tensor, expected: Tensor) -> bool:
    return got.shape == expected.shape and torch.allclose(got, expected, _CLEAR, _CLEAR)
