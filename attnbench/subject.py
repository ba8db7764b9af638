"""Subjects: what a check or a benchmark runs on, behind one face for all three kinds.

A :class:`Subject` is a scoring function (run by ``attend`` on its plain path), one of its kernels,
or a mechanism, together with its options. :func:`resolve` finds it by address.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.addresses import Address, format_options, parse_address
from attnbench.attending import attend, scores_of
from attnbench.cases import Case
from attnbench.errors import AddressError, DtypeError, OptionError, UnknownNameError, nearest
from attnbench.inputs import Inputs, make_inputs
from attnbench.registry import Registry, Spec, registry
from attnbench.specs import DTYPES, KernelSpec, MechanismSpec, ScoringSpec, check_options

__all__ = ["Inputs", "Subject", "get", "resolve", "subjects"]


@dataclass(frozen=True, eq=False)
class Subject:
    """A scoring function, a kernel or a mechanism, with its options.

    Args:
        name: its address.
        kind: ``"scoring"``, ``"kernel"`` or ``"mechanism"``.
        spec: what was declared.
        scoring: for a scoring function itself, for a kernel the one that it computes.
        options: keyword arguments for ``make``.
        address: what :func:`resolve` finds it by, before options: a name, or a file's attribute.
    """

    name: str
    kind: str
    spec: Spec
    scoring: ScoringSpec | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    address: str = ""

    @property
    def maker(self) -> ScoringSpec | MechanismSpec:
        """The spec whose ``make`` gives the module: for a kernel its scoring function's."""
        if isinstance(self.spec, KernelSpec):
            assert self.scoring is not None
            return self.scoring
        return self.spec

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Names of the dtypes that it supports."""
        return self.maker.dtypes or DTYPES

    @property
    def laws(self) -> tuple[str, ...]:
        """Laws that it declares: for a kernel those of its scoring function, and that it pools."""
        laws = self.maker.laws
        pools = () if isinstance(self.spec, MechanismSpec) else ("pools_values",)
        return tuple(dict.fromkeys((*laws, *pools)))

    @property
    def exempt(self) -> Mapping[str, str]:
        """Invariants that it does not obey, with reasons; a kernel has its scoring's too."""
        return {**self.maker.exempt, **self.spec.exempt}

    @property
    def accepts(self) -> tuple[str, ...]:
        """Keyword arguments that it takes beyond ``attn_mask``."""
        if isinstance(self.spec, MechanismSpec):
            return self.spec.accepts
        common = ("is_causal", "valid_lens", "enable_gqa")
        return common if self.kind == "kernel" else (*common, "dropout_p", "return_weights")

    @property
    def gives_weights(self) -> bool:
        """Whether weights can be had: handed back, or shown by the identity as value."""
        return "return_weights" in self.accepts or "pools_values" in self.laws

    def legal(self, case: Case) -> Case:
        """The nearest case whose sizes, dtype and mask are legal here."""
        sizes = case.sizes
        if self.maker.equal_sizes:
            sizes = sizes.replace(key_size=sizes.query_size)
        if self.maker.sizes is not None:
            known = inspect.signature(self.maker.sizes).parameters
            sizes = self.maker.sizes(sizes, **{k: v for k, v in self.options.items() if k in known})
        dtype = case.dtype if case.dtype in self.dtypes else self.dtypes[0]
        return case.with_sizes(sizes).replace(dtype=dtype).legal()

    def unsupported(self, case: Case) -> str | None:
        """Why a kernel cannot run a case; ``None`` for all else."""
        if isinstance(self.spec, KernelSpec) and self.spec.supports is not None:
            return self.spec.supports(case)
        return None

    def make(self, query_size: int, key_size: int, value_size: int) -> nn.Module:
        """A new module in float32 on the CPU, with parameters from torch's global generator."""
        sizes = (query_size, key_size, value_size)
        count = 3 if isinstance(self.spec, MechanismSpec) else 2
        return self.maker.make(*sizes[:count], **self.options)

    def build(self, case: Case) -> tuple[nn.Module, Inputs]:
        """The module and the inputs of a case, from its seed; seeds torch's global generator."""
        torch.manual_seed(case.seed)
        module = self.make(case.query_size, case.key_size, case.value_size)
        if not isinstance(module, nn.Module):
            raise DtypeError(
                f"make of {self.name} gave a {type(module).__name__}, not a torch.nn.Module."
            )
        module = module.to(dtype=getattr(torch, case.dtype), device=case.device).eval()
        return module, make_inputs(case)

    def output(self, module: nn.Module, inputs: Inputs) -> Tensor:
        """The output ``(..., L, Ev)`` of a module from :meth:`build`."""
        if isinstance(self.spec, MechanismSpec):
            result = self._call(module, inputs, return_weights=False)
            output: Tensor = result[0] if isinstance(result, tuple) else result
            return output
        return attend(
            module,
            inputs.query,
            inputs.key,
            inputs.value,
            attn_mask=inputs.attn_mask,
            valid_lens=inputs.valid_lens,
            is_causal=inputs.is_causal,
            dropout_p=inputs.dropout_p,
            enable_gqa=inputs.enable_gqa,
            kernel=self._kernel,
        )

    @property
    def _kernel(self) -> Any:
        return self.spec if isinstance(self.spec, KernelSpec) else "plain"

    def scores(self, module: nn.Module, inputs: Inputs) -> Tensor | None:
        """The scores ``(..., L, S)`` before mask and softmax; ``None`` for a mechanism."""
        if self.scoring is None:
            return None
        return scores_of(module, inputs.query, inputs.key)

    def weights(self, module: nn.Module, inputs: Inputs) -> Tensor | None:
        """The weights ``(..., L, S)``; ``None`` if they cannot be had.

        They are handed back by a scoring function and by a mechanism that accepts
        ``return_weights``; else the identity as value shows them, if it declares ``pools_values``.
        """
        if self.kind == "scoring":
            _, weights = attend(
                module,
                inputs.query,
                inputs.key,
                inputs.value,
                attn_mask=inputs.attn_mask,
                valid_lens=inputs.valid_lens,
                is_causal=inputs.is_causal,
                dropout_p=inputs.dropout_p,
                enable_gqa=inputs.enable_gqa,
                kernel="plain",
                return_weights=True,
            )
            return weights
        if "return_weights" in self.accepts:
            result = self._call(module, inputs, return_weights=True)
            if not isinstance(result, tuple) or len(result) != 2:
                raise DtypeError(
                    f"{self.name} accepts return_weights, but gave {type(result).__name__} "
                    "instead of (output, weights)."
                )
            weights = result[1]
            assert weights is None or isinstance(weights, Tensor)
            return weights
        if "pools_values" not in self.laws:
            return None
        return self._shown_weights(module, inputs)

    def _shown_weights(self, module: nn.Module, inputs: Inputs) -> Tensor:
        """The output for the identity as value, in blocks as wide as the value was."""
        width, kv_len = inputs.value.shape[-1], inputs.key.shape[-2]
        eye = torch.eye(kv_len, dtype=inputs.query.dtype, device=inputs.query.device)
        blocks = []
        for start in range(0, kv_len, width):
            block = nn.functional.pad(
                eye[:, start : start + width], (0, max(0, start + width - kv_len))
            )
            value = block.expand(*inputs.key.shape[:-2], kv_len, width)
            blocks.append(self.output(module, inputs.replace(value=value)))
        return torch.cat(blocks, -1)[..., :kv_len]

    def _call(self, module: nn.Module, inputs: Inputs, *, return_weights: bool) -> Any:
        """Call a mechanism with what it accepts; the rest is folded into its ``attn_mask``."""
        keywords: dict[str, Any] = {}
        attn_mask, valid_lens, is_causal = inputs.attn_mask, inputs.valid_lens, inputs.is_causal
        if is_causal and "is_causal" in self.accepts:
            keywords["is_causal"], is_causal = True, False
        if valid_lens is not None and "valid_lens" in self.accepts:
            keywords["valid_lens"], valid_lens = valid_lens, None
        if is_causal or valid_lens is not None:
            rest = inputs.replace(valid_lens=valid_lens, is_causal=is_causal)
            folded = rest.mask.as_tensor()
            assert folded is not None
            attn_mask = folded
        if inputs.dropout_p and "dropout_p" in self.accepts:
            keywords["dropout_p"] = inputs.dropout_p
        if inputs.enable_gqa and "enable_gqa" in self.accepts:
            keywords["enable_gqa"] = True
        if return_weights:
            keywords["return_weights"] = True
        return module(inputs.query, inputs.key, inputs.value, attn_mask=attn_mask, **keywords)


def get(name: str) -> Spec:
    """The spec of a name, ``scoring/kernel`` or ``distribution:name``.

    Raises:
        UnknownNameError: no loaded plugin brings it; the nearest names are offered.
        DuplicateNameError: more than one does.
    """
    return registry().get(name)


def subjects() -> list[str]:
    """Addresses of every installed subject, sorted; those with options that a spec lists too."""
    return [subject.name for subject in installed()]


def installed(source: Registry | None = None) -> list[Subject]:
    """Every installed subject, sorted by address."""
    source = source or registry()
    found = []
    for address, spec, _ in source.specs():
        variants = () if isinstance(spec, KernelSpec) else spec.variants
        for options in ({}, *variants):
            found.append(_subject(spec, address, address + format_options(options), options))
    return sorted(found, key=lambda subject: subject.name)


def resolve(target: str | Spec) -> list[Subject]:
    """The subjects of an address or a spec; more than one where a file's attribute holds many.

    Raises:
        UnknownNameError, DuplicateNameError, AddressError, OptionError: nothing or too much is
            meant, or an option is unknown.
    """
    if isinstance(target, ScoringSpec | KernelSpec | MechanismSpec):
        name = f"{target.scoring}/{target.name}" if isinstance(target, KernelSpec) else target.name
        return [_subject(target, name, name, {})]
    if not isinstance(target, str):
        raise AddressError(
            f"a target is an address or a spec, not {target!r}; "
            "declare attnbench.ScoringSpec(name=..., make=...)."
        )
    address = parse_address(target)
    if address.source is None or _is_distribution(address.source):
        text = target.partition("(")[0].strip()
        spec = registry().get(text)
        return [_subject(spec, text, text + format_options(address.options), address.options)]
    return _resolve_attribute(address, target)


def make_scoring(address: str | ScoringSpec, query_size: int, key_size: int) -> nn.Module:
    """The module of a scoring function, by address with options; what a mechanism's option names.

    Raises:
        UnknownNameError, OptionError, ShapeError: it is unknown, or cannot be made that way.
    """
    found = resolve(address)
    if len(found) != 1 or found[0].kind != "scoring":
        raise OptionError(
            f"scoring={address} is not a scoring function; one is "
            f"{', '.join(s.name for s in installed() if s.kind == 'scoring')}."
        )
    return found[0].make(query_size, key_size, 0)


def _is_distribution(source: str) -> bool:
    wanted = source.replace("_", "-").replace(".", "-").lower()
    return any(
        p.distribution.replace("_", "-").replace(".", "-").lower() == wanted
        for p in registry().plugins
    )


def _subject(
    spec: Spec,
    address: str,
    name: str,
    options: Mapping[str, Any],
    near: Iterable[Spec] = (),
) -> Subject:
    if isinstance(spec, KernelSpec):
        scoring = _scoring_of_kernel(spec, near)
        check_options(name, scoring.make, options)
        return Subject(name, "kernel", spec, scoring, options, address)
    check_options(name, spec.make, options)
    if isinstance(spec, ScoringSpec):
        return Subject(name, "scoring", spec, spec, options, address)
    return Subject(name, "mechanism", spec, None, options, address)


def _scoring_of_kernel(kernel: KernelSpec, near: Iterable[Spec]) -> ScoringSpec:
    for spec in near:
        if isinstance(spec, ScoringSpec) and spec.name == kernel.scoring:
            return spec
    return registry().scoring_for(kernel)


def _resolve_attribute(address: Address, target: str) -> list[Subject]:
    assert address.source is not None
    module = _load_file(address.source) if address.is_file else _import(address.source, target)
    if not hasattr(module, address.name):
        names = [
            n
            for n, v in vars(module).items()
            if isinstance(v, ScoringSpec | KernelSpec | MechanismSpec)
        ]
        raise UnknownNameError(
            f"{address.source} has no attribute {address.name!r}. {nearest(address.name, names)}"
        )
    value = getattr(module, address.name)
    is_one = isinstance(value, ScoringSpec | KernelSpec | MechanismSpec)
    specs = [value] if is_one or not isinstance(value, Iterable) else list(value)
    for spec in specs:
        if not isinstance(spec, ScoringSpec | KernelSpec | MechanismSpec):
            raise AddressError(
                f"{target} is {spec!r}, but should be a ScoringSpec, KernelSpec or MechanismSpec, "
                "or an iterable of them."
            )
    bare = target.partition("(")[0].strip() if address.options else target
    return [
        _subject(
            spec,
            bare,
            (f"{spec.scoring}/{spec.name}" if isinstance(spec, KernelSpec) else spec.name)
            + format_options(address.options),
            address.options,
            near=specs,
        )
        for spec in specs
    ]


def _import(name: str, target: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise UnknownNameError(
            f"{target}: there is neither a distribution nor a module {name!r}; "
            "a file is addressed as path/to/file.py:ATTRIBUTE."
        ) from None


def _load_file(text: str) -> ModuleType:
    path = Path(text).resolve()
    if not path.is_file():
        raise AddressError(f"there is no file {text!r} (looked at {path}).")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = path.stem
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) != str(path):
        name = f"{path.stem}_{zlib.crc32(str(path).encode()):08x}"  # another file of that name
        known = sys.modules.get(name)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that its modules can be pickled
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
