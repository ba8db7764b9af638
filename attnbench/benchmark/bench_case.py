"""Benchmark cases: the sizes at which a subject is measured, and what is timed.

Creating a case does not import torch; building its inputs does.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from attnbench.benchmark.timing.contract import LAYER_DIRECTIONS
from attnbench.cases.case import Case

if TYPE_CHECKING:
    from torch import nn

    from attnbench.subject.subject import Subject
    from attnbench.subject.tensors import Inputs


@dataclass(frozen=True)
class BenchCase:
    """A case and the direction that is timed at it.

    Args:
        case: the sizes, dtype, device, mask and seed.
        direction: a key of :data:`attnbench.benchmark.timing.contract.DIRECTIONS`.
        workload: label for display: a workload's name, ``L=S=...`` or a file name.
        kv_heads: number of key and value heads if grouped (it divides the query's), else ``None``.
        path: file of saved inputs; if ``None``, tensors are drawn from the seed.
        sha256: SHA-256 of that file.
    """

    case: Case
    direction: str = "forward"
    workload: str = ""
    kv_heads: int | None = None
    path: str | None = None
    sha256: str = ""

    @property
    def of_layers(self) -> bool:
        """Whether this is a layer case: ``lead`` is ``(B,)``, ``q_len`` the tokens of a call."""
        return self.direction in LAYER_DIRECTIONS

    @property
    def tokens(self) -> int | None:
        """Number of tokens that one call of a layer outputs; ``None`` for attention."""
        return self.case.lead[0] * self.case.q_len if self.of_layers else None

    def suits(self, kind: str) -> bool:
        """Whether subjects of this kind can be measured here: layers have their own cases."""
        return self.of_layers == (kind == "layer")

    def sized(self, size: int) -> BenchCase:
        """The same layer case with another E."""
        return replace(
            self, case=self.case.replace(query_size=size, key_size=size, value_size=size)
        )

    @property
    def id(self) -> str:
        """Stable id of the case, independent of the set that lists it."""
        parts = [self.case.id, self.direction]
        if self.kv_heads is not None:
            parts.append(f"kv{self.kv_heads}")
        if self.path is not None:
            parts.append(f"inputs-{self.sha256[:12]}")
        return "-".join(parts)

    def reason_against(self, subject: Subject) -> str | None:
        """The reason why a subject does not support this case, or ``None`` if it does."""
        if not self.suits(subject.kind):
            group = "attention, with query, key and value" if subject.kind == "layer" else "a layer"
            return f"it is a {subject.kind}, and the case is one of {group}"
        if self.case.dtype not in subject.dtypes:
            return f"it supports {', '.join(subject.dtypes)}"
        if self.of_layers:
            return self._reason_against_layer(subject)
        here, nearest = asdict(self.case.sizes), asdict(subject.legal(self.case).sizes)
        if here != nearest:
            differences = [f"{n} = {v}, not {here[n]}" for n, v in nearest.items() if v != here[n]]
            return f"it does not take these sizes; the nearest have {', '.join(differences)}"
        if self.kv_heads is not None and "enable_gqa" not in subject.accepts:
            return "it does not take grouped heads"
        return subject.unsupported(self.case)

    def _reason_against_layer(self, subject: Subject) -> str | None:
        size = subject.legal(self.case).query_size
        if size != self.case.query_size:
            return f"it does not take E = {self.case.query_size}; the nearest is {size}"
        if self.direction != "decode":
            return None
        cache, length = getattr(subject.spec, "cache", None), self.case.kv_len
        if cache is None:
            return "it has no cache, so it cannot decode token by token"
        if cache.capacity is not None and cache.capacity < length:
            return f"its cache holds {cache.capacity} tokens, and the case has {length}"
        return None

    def build(self, subject: Subject) -> tuple[nn.Module, Inputs]:
        """Build the module and the inputs; seeds torch's global generator."""
        from attnbench.benchmark.timed_calls import step_inputs
        from attnbench.subject.input_files import load_inputs
        from attnbench.subject.tensors import make_inputs

        case = self.case
        if self.direction == "decode":
            return step_inputs(subject, case)
        if self.path is not None:
            inputs = load_inputs(Path(self.path))
            inputs = inputs.replace(**{n: t.to(case.device) for n, t in inputs.tensors()})
            return subject.made(case, case.seed), inputs
        if self.kv_heads is None:
            return subject.build(case)
        module, inputs = subject.build(case.replace(lead=(*case.lead[:-1], self.kv_heads)))
        # with the same seed, the query's extra heads would repeat the numbers of the keys
        query_case = case.replace(kv_len=1, mask="none", seed=case.seed + 1)
        return module, inputs.replace(query=make_inputs(query_case).query, enable_gqa=True)
