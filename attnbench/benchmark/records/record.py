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

__all__ = ["FORMAT", "SCHEMA", "STATUSES", "Record"]

SCHEMA = 1
"""Version of the record's fields; raised when one is removed or changes its meaning."""

FORMAT = "attnbench-record"

STATUSES = {
    "ok": "agreed with the reference on this case, and was measured on a quiet machine",
    "unverified": "did not agree with the reference on this case, or could not be held against it; "
    "not ranked",
    "void": "the machine was busy: a sentinel was more than 10 % off its idle value; not ranked",
    "unsupported": "the subject does not take this case; not measured",
    "out_of_memory": "the case does not fit in this machine's memory; not measured",
    "timeout": "the time limit passed; not measured",
    "failed": "the subject raised an error; not measured",
    "crashed": "the subject's process ended; not measured",
}
"""Every status of a record; only ``ok`` may be ranked."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """One measurement: one process, one subject, one case, one contract.

    Times are of one call, in seconds; a call is what ``direction`` says.

    Args:
        run: id of the run, which is also the name of its file.
        process: number of the process within the run, from 0: its round. Processes of one subject
            and case are independent of each other; samples within one are not.
        created: when, ISO 8601 in UTC.
        contract: name of the contract, :class:`attnbench.benchmark.measuring.contract.Contract`.
        subject: its address.
        kind: ``scoring``, ``kernel`` or ``mechanism``.
        case: stable id of the case.
        workload: name of the workload or grid that the case comes from, for people.
        lead, q_len, kv_len, query_size, key_size, value_size, kv_heads: its sizes; ``kv_heads`` is
            the number of key and value heads where they divide the query's, else ``None``.
        dtype, device, mask, seed: as in :class:`attnbench.Case`; the device is the torch name.
        direction: ``forward`` or ``forward_backward``.
        cache: ``warm`` or ``cold``.
        status: a key of :data:`STATUSES`.
        reason: why it is not ``ok``.
        time_s: median of the samples.
        time_q1_s, time_q3_s: their quartiles.
        samples_s: each sample: the mean time of ``calls`` consecutive calls.
        calls: calls in a sample.
        relative_error: standard error of the median over the median; the contract says its target.
        first_call_s: the first call in the process, with whatever it compiles.
        peak_bytes: most bytes of tensors alive during a call beyond those before it; inputs and
            parameters are not in it.
        error_abs: largest absolute error of the output against float64.
        error_ratio: largest error over what is allowed of it; above 1 is not agreement.
        error_rows: query rows that were compared.
        operations: arithmetic operations that the call executes, of all kinds.
        matmul_operations: those in matrix products, by torch's ``FlopCounterMode``.
        moved_bytes: bytes that its operators read and write.
        bandwidth_share: ``moved_bytes`` a second over the machine's measured copy bandwidth.
        matmul_share: ``matmul_operations`` a second over its measured rate of matrix products.
        sentinel: readings around the measurement and their idle values, seconds and rates.
        inputs: path and SHA-256 of the file of saved inputs, if the case is one.
        threads: of torch within an operator.
        machine: node, system, processor, cores, memory.
        device_name: of the processor or accelerator that computed.
        versions: of python, torch, attnbench, and the subject's distribution.
        commit: git commit of the working directory, with ``+dirty`` if it was changed; or ``""``.
        command: the command line that made it.
        measuring_s: time spent on measuring: first call, memory, counts, error, sentinels, samples.
        overhead_s: time spent beyond that: starting the process, making module and inputs.
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
    reason: str = ""
    time_s: float | None = None
    time_q1_s: float | None = None
    time_q3_s: float | None = None
    samples_s: tuple[float, ...] = ()
    calls: int = 1
    relative_error: float | None = None
    first_call_s: float | None = None
    peak_bytes: int | None = None
    error_abs: float | None = None
    error_ratio: float | None = None
    error_rows: int = 0
    operations: int | None = None
    matmul_operations: int | None = None
    moved_bytes: int | None = None
    bandwidth_share: float | None = None
    matmul_share: float | None = None
    sentinel: Mapping[str, float] = field(default_factory=dict)
    inputs: Mapping[str, str] | None = None
    threads: int = 1
    machine: Mapping[str, Any] = field(default_factory=dict)
    device_name: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    command: str = ""
    measuring_s: float | None = None
    overhead_s: float | None = None
    schema: int = SCHEMA

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What a resumed run does not measure again: contract, subject, case and process."""
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
        for name in ("lead", "samples_s"):
            if name in values:
                values[name] = tuple(values[name])
        return cls(**values)


def _required(spec: Any) -> bool:
    return spec.default is MISSING and spec.default_factory is MISSING
