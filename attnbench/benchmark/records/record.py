"""Records: what one measurement of one subject at one case gave, one JSON line each.

A record carries everything that is needed to repeat it, and the name of the contract under which
its numbers were taken: numbers of different contracts are never compared. Importing this module
imports no torch, so that reports of recorded runs start fast.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from attnbench.errors import RecordError

__all__ = [
    "BASELINE",
    "FORMAT",
    "LAYER_BASELINE",
    "SCHEMA",
    "STATUSES",
    "Record",
    "baseline_of",
]

BASELINE = "scaled_dot"
"""The subject that every other one, and itself, is paired with; layers have one of their own."""

LAYER_BASELINE = "causal_attention"
"""The layer that every layer, and itself, is paired with."""


def baseline_of(kind: str) -> str:
    """The subject that those of a kind are paired with."""
    return LAYER_BASELINE if kind == "layer" else BASELINE


SCHEMA = 1
"""Version of the record's fields; raised when one is removed or changes its meaning."""

FORMAT = "attnbench-record"

STATUSES = {
    "ok": "agreed with the reference on this case",
    "unverified": "did not agree with the reference on this case, or could not be held against it; "
    "not ranked",
    "void": "the machine was busy, when an older attnbench measured; not ranked",
    "unsupported": "the subject does not take this case; not measured",
    "out_of_memory": "the case does not fit in this machine's memory; not measured",
    "timeout": "the time limit passed; not measured",
    "failed": "the subject raised an error; not measured",
    "crashed": "the subject's process ended; not measured",
}
"""Every status of a record; only ``ok`` may be ranked."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measurement: one subject, one case, one contract, and the processes that took it.

    Times are of one call, in seconds; a call is what ``direction`` says. A later record of the same
    :attr:`key` in a run holds all that an earlier one did, and replaces it.

    Args:
        run: id of the run, which is also the name of its file.
        process: 0; an older attnbench wrote a record for each process, and numbered them.
        created: when, ISO 8601 in UTC.
        contract: name of the contract; see
            :class:`attnbench.benchmark.measuring.contract.Contract`.
        subject: its address.
        kind: ``scoring``, ``kernel``, ``mechanism`` or ``layer``.
        case: stable id of the case.
        workload: name of the workload or grid that the case comes from, for people.
        lead, q_len, kv_len, query_size, key_size, value_size, kv_heads: its sizes; ``kv_heads`` is
            the number of key and value heads where they divide the query's, else ``None``.
        dtype, device, mask, seed: as in :class:`attnbench.Case`; the device is the torch name.
        direction: ``forward`` or ``forward_backward``; of a layer ``prefill`` or ``decode``, where
            ``q_len`` is the number of tokens of a call.
        cache: ``warm`` or ``cold``.
        timing: ``call``, as a user calls it, or ``device``, by a replayed CUDA graph.
        status: a key of :data:`STATUSES`.
        reason: why it is not ``ok``.
        baseline: what it was paired with; ``None`` without a ratio.
        ratio: its time over the baseline's, both measured in turn in the same processes.
        ratio_low, ratio_high: the 95 % interval of the ratio, from processes (from blocks, if there
            was one process only).
        ratios: the ratio of each process.
        gain: of a kernel: its scoring function's time over its own.
        time_s: median over processes of a low quantile of slots, as the contract says; of an older
            contract the median of the samples.
        time_q1_s, time_q3_s: quartiles over three processes or more, else over slots.
        times_s: the time of each process.
        samples_s: each slot: the mean time of ``calls`` consecutive calls.
        calls: calls in a slot.
        null_s: time of a call that computes nothing: what it costs to get to a kernel.
        relative_error: of an older contract: standard error of the median over the median.
        first_call_s: the first call in the process, with whatever it compiles.
        peak_bytes: most bytes alive during a call beyond those before it; inputs and parameters are
            not in it.
        tokens_per_s: of a layer: tokens of a call, those of all items, over its time.
        cache_bytes_per_token: of a layer that decodes: bytes of the tensors of its cache over the
            tokens that it was given.
        error_abs: largest absolute error of the output against float64.
        error_ratio: largest error over what is allowed of it; above 1 is not agreement.
        error_rows: query rows that were compared.
        operations: arithmetic operations that the call executes, of all kinds.
        matmul_operations: those in matrix products.
        compulsory_bytes: of inputs, parameters and results: what every way to compute it moves.
        roofline_share: the least time in which the machine could move ``compulsory_bytes`` and do
            ``matmul_operations``, over the time; ``None`` if the operations are unknown.
        moved_bytes, bandwidth_share, matmul_share: of older records: bytes that the operators read
            and write, and shares of the machine's ceilings.
        sentinel: the machine's ceilings; in older records also readings around the measurement.
        load: how many cores others kept busy meanwhile, of how many; shares of slots that were
            disturbed, and of time that a hypervisor took.
        inputs: path and SHA-256 of the file of saved inputs, if the case is one.
        threads: of torch within an operator.
        machine: node, system, processor, cores, memory; of a cluster also its name there.
        device_name: of the processor or accelerator that computed.
        versions: of python, torch, attnbench, and the subject's distribution.
        accelerator: of one: versions of CUDA, cuDNN and the driver, whether TF32 is allowed, and
            after the measurement its clocks and the reasons for which they were low.
        runs_as: of a kernel: which of its code paths ran, if it has several.
        commit: git commit of the working directory, with ``+dirty`` if it was changed; or ``""``.
        command: the command line that made it.
        timing_s: time spent in slots.
        measuring_s: time spent on measuring: first call, memory, counts, error, slots.
        overhead_s: time spent beyond that in the last process: making module and inputs.
    """

    run: str
    created: str
    contract: str
    subject: str
    case: str
    direction: str
    dtype: str
    device: str
    status: str
    process: int = 0
    kind: str = "scoring"
    workload: str = ""
    lead: tuple[int, ...] = ()
    q_len: int = 0
    kv_len: int = 0
    query_size: int = 0
    key_size: int = 0
    value_size: int = 0
    kv_heads: int | None = None
    mask: str = "none"
    seed: int = 0
    cache: str = "warm"
    timing: str = "call"
    reason: str = ""
    baseline: str | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    ratios: tuple[float, ...] = ()
    gain: float | None = None
    time_s: float | None = None
    time_q1_s: float | None = None
    time_q3_s: float | None = None
    times_s: tuple[float, ...] = ()
    samples_s: tuple[float, ...] = ()
    calls: int = 1
    null_s: float | None = None
    relative_error: float | None = None
    first_call_s: float | None = None
    peak_bytes: int | None = None
    tokens_per_s: float | None = None
    cache_bytes_per_token: float | None = None
    error_abs: float | None = None
    error_ratio: float | None = None
    error_rows: int = 0
    operations: int | None = None
    matmul_operations: int | None = None
    compulsory_bytes: int | None = None
    roofline_share: float | None = None
    moved_bytes: int | None = None
    bandwidth_share: float | None = None
    matmul_share: float | None = None
    sentinel: Mapping[str, float] = field(default_factory=dict)
    load: Mapping[str, float] = field(default_factory=dict)
    inputs: Mapping[str, str] | None = None
    threads: int = 1
    machine: Mapping[str, Any] = field(default_factory=dict)
    device_name: str = ""
    accelerator: Mapping[str, Any] = field(default_factory=dict)
    runs_as: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    command: str = ""
    timing_s: float | None = None
    measuring_s: float | None = None
    overhead_s: float | None = None
    schema: int = SCHEMA

    @property
    def process_times_s(self) -> tuple[float, ...]:
        """The time of each process, of an older record too."""
        return self.times_s or (() if self.time_s is None else (self.time_s,))

    @property
    def machine_name(self) -> str:
        """The name of the machine in the cluster that it was one of; empty without a cluster."""
        return str(self.machine.get("name", ""))

    @property
    def where(self) -> str:
        """The device that computed, and in a cluster its machine: alike devices are several."""
        return f"{self.device_name} of {self.machine_name}".removesuffix(" of ")

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What names a measurement in a run: contract, subject, case and process."""
        return self.contract, self.subject, self.case, self.process

    def to_json(self) -> str:
        """One line of JSON, without its newline."""
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, where: str = "record") -> Record:
        """The record of a line.

        Args:
            text: the line.
            where: file and line, for the message.

        Raises:
            RecordError: damaged, of another program, or of another version.
        """
        try:
            content = json.loads(text)
        except ValueError as error:
            raise RecordError(f"{where} is damaged: it is not JSON ({error}).") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise RecordError(
                f'{where} is not a record of attnbench: it has no "format": "{FORMAT}". '
                "Keep other files out of the folder of records."
            )
        schema = content.get("schema")
        if schema != SCHEMA:
            age = "a newer" if isinstance(schema, int) and schema > SCHEMA else "an older"
            advice = "upgrade attnbench" if age == "a newer" else "measure again"
            raise RecordError(
                f"{where} was written by {age} attnbench: its schema is {schema!r}, and this one "
                f"reads {SCHEMA}; {advice}, or move the file away."
            )
        known = {f.name: f for f in fields(cls)}
        missing = [n for n, f in known.items() if _required(f) and n not in content]
        if missing:
            raise RecordError(f"{where} is damaged: it lacks {', '.join(missing)}.")
        if content["status"] not in STATUSES:
            raise RecordError(f"{where} has the unknown status {content['status']!r}.")
        values = {name: value for name, value in content.items() if name in known}
        for name in ("lead", "samples_s", "times_s", "ratios"):
            if name in values:
                values[name] = tuple(values[name])
        return cls(**values)


def _required(spec: Any) -> bool:
    return spec.default is MISSING and spec.default_factory is MISSING
