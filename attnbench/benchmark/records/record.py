"""Records: the result of measuring one subject at one case, stored as one line of JSON.

A record contains everything that is needed to repeat the measurement, and the name of its contract:
numbers measured under different contracts are never compared. This module does not import torch, so
that reports on recorded runs start quickly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any

from attnbench.errors import RecordError

BASELINE = "scaled_dot"
"""The subject with which every subject but layers is paired, including itself."""

LAYER_BASELINE = "causal_attention"
"""The layer with which every layer is paired, including itself."""


BASELINES = (BASELINE, LAYER_BASELINE)
"""Both baselines, unless a run names another."""


def baseline_of(kind: str, baselines: tuple[str, str] = BASELINES) -> str:
    """The name of the subject with which subjects of a kind are paired."""
    return baselines[kind == "layer"]


SCHEMA = 1
"""Version of the fields; increased when one that is read is removed or changes its meaning."""

FORMAT = "attnbench-record"

STATUSES = {
    "ok": "agreed with the reference on this case",
    "unverified": "did not agree with the reference on this case, or could not be compared; "
    "not ranked",
    "unsupported": "the subject does not support this case; not measured",
    "out_of_memory": "the case does not fit in this machine's memory; not measured",
    "timeout": "the time limit passed; not measured",
    "failed": "the subject raised an error; not measured",
    "crashed": "the subject's process ended; not measured",
}
"""Every status of a record; only ``ok`` may be ranked."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measurement: one subject, one case, one contract, and the processes that took it.

    Times are those of one call, in seconds; ``direction`` says what a call computes. A later record
    with the same :attr:`key` in a run includes the earlier one and replaces it.

    Args:
        run: id of the run, which is also the name of its file.
        created: time of creation, ISO 8601 in UTC.
        contract: name of the contract; see
            :class:`attnbench.benchmark.contract.Contract`.
        subject: address of the subject.
        kind: ``scoring``, ``kernel``, ``mechanism`` or ``layer``.
        case: stable id of the case.
        workload: displayed name of the workload or grid that the case comes from.
        lead, q_len, kv_len, query_size, key_size, value_size, kv_heads: sizes; ``kv_heads`` is the
            number of key and value heads if they are grouped, else ``None``.
        dtype, device, mask, seed: as in :class:`attnbench.Case`; the device is the torch name.
        direction: ``forward`` or ``forward_backward``; for a layer ``prefill`` or ``decode``, where
            ``q_len`` is the number of tokens of a call.
        cache: ``warm`` or ``cold``.
        timing: ``call``, as a user calls it, or ``device``, by a replayed CUDA graph.
        status: a key of :data:`STATUSES`.
        reason: why the status is not ``ok``.
        baseline: subject that it was paired with; ``None`` if there is no ratio.
        ratio: time over the baseline's, both measured in turn in the same processes.
        ratio_low, ratio_high: 95 % interval of the ratio over processes (over blocks, if there was
            only one process).
        ratios: ratio of each process.
        gain: for a kernel: the time of its scoring function over its own.
        time_s: median over processes of a low quantile of slots, as the contract says.
        time_q1_s, time_q3_s: quartiles over processes if there are at least three, else over slots.
        times_s: time of each process.
        samples_s: each slot: the mean time of ``calls`` consecutive calls.
        calls: calls in a slot.
        null_s: time of a call whose kernel computes nothing: the overhead of a call.
        first_call_s: time of the first call in the process, including compilation.
        compile_s: of that, the time that compilers took: 0 if nothing was compiled.
        compiled: ``compiled`` if the first call compiled anything, ``cache`` if all of it came from
            a cache, and empty if there was nothing to compile.
        peak_bytes: most bytes alive during a call beyond those alive before it, which include
            inputs and parameters.
        tokens_per_s: for a layer: tokens of a call, over all items, per second.
        cache_bytes_per_token: for a layer that decodes: bytes of its cache per token given to it.
        error_abs: largest absolute error of the output against float64.
        error_ratio: largest error over the allowed error; at most 1 if they agree.
        error_rows: number of query rows compared.
        matmul_operations: operations in matrix products.
        compulsory_bytes: bytes of inputs, parameters and results, which any implementation moves.
        roofline_share: the least time in which the machine could move ``compulsory_bytes`` and do
            ``matmul_operations``, over the time; ``None`` if the operations are unknown.
        sentinel: ceilings of the machine.
        load: cores kept busy by other processes, number of cores, share of disturbed slots, and
            share of time stolen by a hypervisor.
        inputs: path and SHA-256 of the file of saved inputs, if the case has one.
        threads: torch's threads within an operator.
        machine: node, system, processor, cores and memory; in a cluster also the machine's name.
        device_name: name of the processor or accelerator that computed.
        versions: versions of python, torch, attnbench, and the subject's distribution.
        accelerator: for an accelerator: versions of CUDA, cuDNN and the driver, whether TF32 is
            allowed, and its clocks after the measurement with the reasons if they were low.
        runs_as: for a kernel with several code paths: the one that ran.
        commit: git commit of the working directory, with ``+dirty`` if files differ; or ``""``.
        command: command line of the run.
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
    first_call_s: float | None = None
    compile_s: float | None = None
    compiled: str = ""
    peak_bytes: int | None = None
    tokens_per_s: float | None = None
    cache_bytes_per_token: float | None = None
    error_abs: float | None = None
    error_ratio: float | None = None
    error_rows: int = 0
    matmul_operations: int | None = None
    compulsory_bytes: int | None = None
    roofline_share: float | None = None
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
    schema: int = SCHEMA

    @property
    def machine_name(self) -> str:
        """The name of the machine in its cluster; empty without a cluster."""
        return str(self.machine.get("name", ""))

    @property
    def where(self) -> str:
        """The device that computed and, in a cluster, its machine, since devices may be alike."""
        return f"{self.device_name} of {self.machine_name}".removesuffix(" of ")

    @property
    def key(self) -> tuple[str, str, str]:
        """The contract, subject and case, which identify a measurement in a run."""
        return self.contract, self.subject, self.case

    def to_json(self) -> str:
        """Convert to one line of JSON, without a newline."""
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, where: str = "record") -> Record:
        """Parse one line of JSON.

        Raises:
            RecordError: the line is damaged, not a record of attnbench, or of another version.
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
        specs = fields(cls)
        required = [f.name for f in specs if f.default is MISSING and f.default_factory is MISSING]
        missing = [name for name in required if name not in content]
        if missing:
            raise RecordError(f"{where} is damaged: it lacks {', '.join(missing)}.")
        if content["status"] not in STATUSES:
            raise RecordError(f"{where} has the unknown status {content['status']!r}.")
        values = {name: value for name, value in content.items() if name in {f.name for f in specs}}
        for name in ("lead", "samples_s", "times_s", "ratios"):
            if name in values:
                values[name] = tuple(values[name])
        return cls(**values)
