"""Subjects of checks and benchmarks, with one interface for every kind.

A :class:`Subject` is a spec together with the options of its address. Each kind has a class:
:mod:`~attnbench.subject.scoring_subject` (kernels, too),
:mod:`~attnbench.subject.mechanism_subject` and :mod:`~attnbench.subject.layer`.
:mod:`attnbench.subject.lookup` finds them by address.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.errors import DtypeError, UsageError
from attnbench.registry.address import Address
from attnbench.registry.discovery import Spec
from attnbench.specs import DTYPES, MechanismSpec, ScoringSpec
from attnbench.specs.conventions import Conventions, format_conventions
from attnbench.subject.tensors import Inputs, make_inputs


@dataclass(frozen=True, eq=False, repr=False)
class Subject(ABC):
    """A scoring function, a kernel, a mechanism or a layer, with its options.

    Args:
        name: name of the subject, with its options.
        spec: its spec.
        address: address by which it is found, and it alone.
    """

    size_count: ClassVar[int]
    """How many of ``query_size, key_size, value_size`` its ``make`` takes."""

    usual: ClassVar[Mapping[str, Any]] = {}
    """The defaults of conventions that differ for this kind."""

    least_eps: ClassVar[float] = 0.0
    """The least unit of rounding. In layers, tables of positions and softmax are often in float32
    for any dtype.
    """

    name: str
    spec: Spec
    address: Address

    @property
    def kind(self) -> str:
        """``"scoring"``, ``"kernel"``, ``"mechanism"`` or ``"layer"``."""
        return self.spec.kind

    @property
    def options(self) -> Mapping[str, Any]:
        """Keyword arguments for ``make``."""
        return self.address.options

    def __repr__(self) -> str:
        """The kind and the name, which is short enough for a test's id or a traceback."""
        return f"<{self.kind} {self.name}>"

    @property
    def stored_as(self) -> str:
        """What its failures are stored under; subjects of two files may have one name."""
        return " ".join(filter(None, (self.address.source, self.name)))

    @property
    def check_command(self) -> str:
        """The command that checks it."""
        return shlex.join(["attnbench", "check", str(self.address)])

    @property
    @abstractmethod
    def maker(self) -> ScoringSpec | MechanismSpec:
        """The spec whose ``make`` returns the module; for a kernel that of its scoring function."""

    @property
    @abstractmethod
    def accepts(self) -> tuple[str, ...]:
        """The keyword arguments that it takes besides a mask."""

    @property
    def scoring(self) -> ScoringSpec | None:
        """The scoring function: itself, or the one that a kernel computes."""
        return None

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The names of the supported dtypes."""
        return self.maker.dtypes or DTYPES

    @property
    def laws(self) -> tuple[str, ...]:
        """The laws that it obeys: the declared ones, and that of relative positions."""
        relative = self.kind == "mechanism" and self.conventions.positions == "relative"
        implied = ("leading_padding_equals_deleting",) if relative else ()
        return tuple(dict.fromkeys((*self.maker.laws, *implied)))

    @property
    def exempt(self) -> Mapping[str, str]:
        """Exempt invariants with their reasons; for a kernel also those of its scoring function."""
        return {**self.maker.exempt, **self.spec.exempt}

    @property
    def same_as(self) -> str | None:
        """The address of another subject with which it agrees."""
        return getattr(self.spec, "same_as", None)

    @property
    def _stated(self) -> Mapping[str, Any]:
        return getattr(self.spec, "conventions", {})

    @functools.cached_property
    def conventions(self) -> Conventions:
        """The conventions that it follows, with the defaults of its kind."""
        return Conventions(**{**self.usual, **self._stated})

    def eps(self, dtype: torch.dtype) -> float:
        """One relative unit in the last place of the dtype in which it computes for ``dtype``."""
        computed = (float(torch.finfo(kind).eps) for kind in self._computed_in(dtype))
        return max(self.least_eps, *computed)

    def largest(self, dtype: torch.dtype) -> float:
        """The largest number of the dtype in which it computes for ``dtype``."""
        return min(float(torch.finfo(kind).max) for kind in self._computed_in(dtype))

    def _computed_in(self, dtype: torch.dtype) -> tuple[torch.dtype, ...]:
        """A given dtype, and the one in which it computes whatever it is given."""
        own = self.conventions.internal_dtype
        return (dtype,) if own is None else (dtype, getattr(torch, own))

    @property
    def followed(self) -> str:
        """The conventions that its spec names, but the defaults, as text; ``""`` for none."""
        usual = Conventions(**self.usual)
        return format_conventions({n: v for n, v in self._stated.items() if v != getattr(usual, n)})

    @property
    def about(self) -> tuple[str, ...]:
        """A line with its style of call and conventions; none for the defaults."""
        style = getattr(self.spec, "style", None)
        known = [f"called as {style}"] if style and style != "spec_of" else []
        parts = [*known, *getattr(self.spec, "notes", ())] if style else []
        parts += [f"conventions: {self.followed}"] if self.followed else []
        return (f"{self.name}: {'; '.join(parts)}",) if parts else ()

    @property
    def limited(self) -> str:
        """A line on the sizes that are not tried, since it raises for them; empty for none."""
        return ""

    @property
    def gives_weights(self) -> bool:
        """Whether weights are available: returned, or shown by the identity as value."""
        return "return_weights" in self.accepts or "pools_values" in self.laws

    def legal(self, case: Case) -> Case:
        """The nearest case with sizes, dtype and mask that the subject supports."""
        sizes = case.sizes
        longer = sizes.q_len > sizes.kv_len and self.conventions.causal == "always"
        square = case.mask.startswith("causal") and self.conventions.causal == "square"
        if longer or square:
            sizes = sizes.replace(kv_len=sizes.q_len)
        if getattr(self.maker, "equal_sizes", False):
            sizes = sizes.replace(key_size=sizes.query_size)
        sizes = self._nearest(sizes)
        case = case.with_sizes(sizes)
        return (case if case.dtype in self.dtypes else case.replace(dtype=self.dtypes[0])).legal()

    def _nearest(self, sizes: Any) -> Any:
        """What the spec's ``sizes`` makes of sizes, with the options that it takes."""
        nearest = self.maker.sizes
        if nearest is None:
            return sizes
        known = inspect.signature(nearest).parameters if self.options else ()
        return nearest(sizes, **{k: v for k, v in self.options.items() if k in known})

    def unsupported(self, case: Case) -> str | None:
        """The reason why it does not support a case, or ``None``."""
        return None

    def takes_mask(self, kind: str) -> bool:
        """Whether it supports some case with this kind of mask."""
        widths = (4, 16, 64)
        cases = (Case(mask=kind, query_size=e, key_size=e, value_size=e) for e in widths)
        return any(self.unsupported(self.legal(case)) is None for case in cases)

    def make(self, query_size: int, key_size: int, value_size: int) -> nn.Module:
        """Make a module in float32 on the CPU, with parameters from torch's global generator."""
        sizes = (query_size, key_size, value_size)
        return self.maker.make(*sizes[: self.size_count], **self.options)

    def made(self, case: Case, seed: int) -> nn.Module:
        """Make a module for a case, in its dtype and on its device, with parameters of a seed."""
        torch.default_generator.manual_seed(seed)
        module = self.make(case.query_size, case.key_size, case.value_size)
        module.eval()
        return module.to(dtype=getattr(torch, case.dtype), device=case.device)

    @functools.cached_property
    def constant_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that begin as one number throughout, such as a bias of zeros.

        A single number counts if it is 0: a gate that begins closed hides what it lets through.
        """
        sizes = self.legal(Case()).sizes
        with torch.random.fork_rng(devices=[]):
            module = self.make(sizes.query_size, sizes.key_size, sizes.value_size)
        return tuple(
            name
            for name, p in (module.named_parameters() if isinstance(module, nn.Module) else ())
            if not nn.parameter.is_lazy(p)
            and p.is_floating_point()
            and bool((p == (p.flatten()[0] if p.numel() > 1 else 0)).all())
        )

    def unsettle(self, module: nn.Module) -> None:
        """Move parameters off the one number they begin as, which would hide how they are used."""
        with torch.no_grad():
            for parameter in map(module.get_parameter, self.constant_parameters):
                steps = torch.arange(1.0, parameter.numel() + 1)
                parameter.add_(steps.sin().view(parameter.shape) / 4)

    def build(self, case: Case) -> tuple[nn.Module, Inputs]:
        """Build module and inputs of a case from its seed; seeds torch's global generator.

        Parameters that are initially constant are changed.
        """
        # parameters are drawn on the CPU; seeding every device too would take as long as the rest
        torch.default_generator.manual_seed(case.seed)
        module = self.make(case.query_size, case.key_size, case.value_size)
        if not isinstance(module, nn.Module):
            raise DtypeError(
                f"make of {self.name} gave a {type(module).__name__}, not a torch.nn.Module."
            )
        if self.constant_parameters:
            self.unsettle(module)
        dtype = getattr(torch, case.dtype)
        state = (*module.parameters(), *module.buffers())
        if case.device != "cpu" or any(t.is_floating_point() and t.dtype != dtype for t in state):
            module = module.to(dtype=dtype, device=case.device)  # as slow as making it
        module.eval()
        return module, self.inputs(case)

    def inputs(self, case: Case) -> Inputs:
        """The inputs of a case, with causality by the subject's convention."""
        causal = self.conventions.causal
        inputs = make_inputs(case)
        if causal == "bottom_right":
            return inputs
        mask = inputs.attn_mask
        if causal == "always" and mask is not None:  # no row may be without keys
            first = torch.arange(mask.shape[-1], device=mask.device) == 0
            mask = mask | first if mask.dtype == torch.bool else mask.masked_fill(first, 0.0)
        return inputs.replace(
            attn_mask=mask, causal="bottom_right" if causal == "square" else causal
        )

    @abstractmethod
    def output(self, module: nn.Module, inputs: Inputs) -> Tensor:
        """The output ``(..., L, Ev)`` of a module from :meth:`build`."""

    def output_and_weights(self, module: nn.Module, inputs: Inputs) -> tuple[Tensor, Tensor | None]:
        """The output and weights that a subject returns if it accepts ``return_weights``."""
        return self.output(module, inputs), None

    def scores(self, module: nn.Module, inputs: Inputs) -> Tensor | None:
        """The scores ``(..., L, S)`` before mask and softmax; ``None`` where it shows none."""
        return None

    def weights(self, module: nn.Module, inputs: Inputs) -> Tensor | None:
        """The weights ``(..., L, S)``; ``None`` if they are not available.

        Scoring functions, and mechanisms that accept ``return_weights``, return them. Otherwise the
        identity as value shows them, if the subject declares ``pools_values``.
        """
        if "return_weights" in self.accepts:
            return self.output_and_weights(module, inputs)[1]
        return self._shown(module, inputs) if "pools_values" in self.laws else None

    def _shown(self, module: nn.Module, inputs: Inputs) -> Tensor:
        """The output for the identity as value, in blocks as wide as the value was if need be."""
        lead, kv_len = inputs.key.shape[:-2], inputs.key.shape[-2]
        eye = torch.eye(kv_len, dtype=inputs.query.dtype, device=inputs.query.device)
        if self.kind == "kernel":
            with contextlib.suppress(UsageError):  # it refuses a value this wide
                return self.output(module, inputs.replace(value=eye.expand(*lead, *eye.shape)))
        width = inputs.value.shape[-1]
        blocks = torch.split(nn.functional.pad(eye, (0, -kv_len % width)), width, -1)
        shown = [
            self.output(module, inputs.replace(value=block.expand(*lead, *block.shape)))
            for block in blocks
        ]
        return torch.cat(shown, -1)[..., :kv_len]
