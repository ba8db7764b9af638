"""The classes that asv measures, one a subject, and the names and cases of its results."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.measure import Bench, measure_row
from attnbench.benchmark.records import BASELINES, baseline_of
from attnbench.benchmark.timing import contract
from attnbench.benchmark.verification import Unverified
from attnbench.benchmark.workloads import layer_case
from attnbench.cases.case import Case
from attnbench.errors import AttnbenchError, UsageError
from attnbench.subject.lookup import resolve
from attnbench.subject.lookup import subjects as installed_names
from attnbench.subject.subject import Subject

CASES = {
    "8x4 heads, L=S=64": Case((8, 4), 64, 64, 64, 64, 64),
    "4 heads, L=S=256, causal": Case((1, 4), 256, 256, 64, 64, 64, mask="causal"),
    "4x4 heads, L=1, S=1024": Case((4, 4), 1, 1024, 64, 64, 64),
    "4 heads, 256, bfloat16": Case((1, 4), 256, 256, 64, 64, 64, dtype="bfloat16"),
    "4 heads, 64, float16": Case((1, 4), 64, 64, 64, 64, 64, dtype="float16"),
}
"""Cases by name, in the order of asv's parameters: append new ones, and never change one.

The names are short, since asv's page shows about 24 characters.
"""

LAYER_CASES = {
    f"{case.direction}, {case.workload}": case
    for case in (
        layer_case("prefill", 1, 256),
        layer_case("prefill", 8, 64),
        layer_case("decode", 1, 64),
        layer_case("decode", 1, 1024),
        layer_case("decode", 8, 1024),
    )
}
"""The cases of layers."""


VERSION = f"{contract.VERSION}.6"
"""asv compares results of equal versions only; raise the second part when this module changes."""

_CONTRACT = contract.Contract(blocks=12)
_PROCESSES = 10
"""asv's test assumes independent samples, and those of one process are not: each process gives one,
and with fewer than ten the test can detect nothing. A ratio has one more, so that asv's median is
one of them and has no further digits."""


@dataclass(frozen=True)
class _Tracked:
    """A quantity that asv tracks.

    Args:
        title: name of the quantity on the published page.
        unit: asv's name of the unit.
        field: field of a measurement.
        processes: number of processes that measure it; if several, each gives a sample.
        of: ``attention`` or ``layers`` if it applies to these only; empty for both.
    """

    title: str
    unit: str
    field: str
    processes: int = 1
    of: str = ""


TRACKED = {
    "track_time": _Tracked("time, forward", "seconds", "time_s", _PROCESSES),
    "track_time_backward": _Tracked(
        "time, forward and backward", "seconds", "time_s", _PROCESSES, "attention"
    ),
    "track_peak_bytes": _Tracked("peak memory, forward", "bytes", "peak_bytes"),
    "track_error": _Tracked("error, of what is allowed", "", "error_ratio"),
    "track_first_call": _Tracked(
        "first call, with what it compiles", "seconds", "first_call_s", _PROCESSES
    ),
    "track_ratio": _Tracked("time over {baseline}", "", "ratio", _PROCESSES + 1),
    "track_cache_bytes": _Tracked(
        "bytes of cache a token", "bytes", "cache_bytes_per_token", of="layers"
    ),
}
"""The tracked quantities by the name of their benchmark method."""


def _has_accelerator() -> bool:
    """Whether there seems to be an accelerator, determined without touching it."""
    device = torch.accelerator.current_accelerator(check_available=False)
    files = map(Path, ("/dev/nvidiactl", "/dev/kfd"))
    return device is not None and (device.type != "cuda" or any(file.exists() for file in files))


DEVICES = ("cpu", "accelerator") if _has_accelerator() else ("cpu",)
"""The devices, in the order of asv's parameters."""

_ASV_NAMES = (
    "setup|teardown|setup_cache|timeout|version|params|param_names|skip_params|number|repeat|rounds"
    "|processes|sample_time|warmup_time|min_run_count|timer|type|unit"
)
"""Settings that asv reads from a benchmark's module; a class must not have such a name."""


def class_name(address: str) -> str:
    """The name of a subject's class, such as ``additive__factorised``."""
    name = re.sub(r"[/(]|, ", "__", address.removesuffix(")")).replace("=", "_")
    label = re.sub(r"\W", "_", name, flags=re.ASCII)  # \w also matches characters such as "²"
    if label != name or not label[0].isalpha() or re.fullmatch(_ASV_NAMES, label):
        # other characters all become "_": the sum keeps my-score and my.score apart
        label = f"subject_{label}_{zlib.crc32(address.encode()):08x}"
    return label


def fill(
    namespace: MutableMapping[str, Any],
    subjects: Iterable[str] | None = None,
    *,
    baseline: str | None = None,
) -> None:
    """Define one benchmark class per subject in the namespace of a module.

    Args:
        namespace: the module's ``globals()``.
        subjects: addresses; by default every installed subject. The results of one that is not
            installed are ``n/a``.
        baseline: address of the subject that ``track_ratio`` compares with, instead of
            ``scaled_dot`` or, if it is a layer, of ``causal_attention``.

    Raises:
        UsageError: two addresses give the same class name.
    """
    names: dict[str, str] = {}
    for address in installed_names() if subjects is None else subjects:
        name = class_name(address)
        if names.setdefault(name, address) != address:
            raise UsageError(
                f"{address!r} and {names[name]!r} would both be the benchmark class {name}; "
                "rename one, or fill() them into two modules."
            )
    module = str(namespace["__name__"])
    baselines = BASELINES
    if baseline is not None:
        is_layer = _is_layer(baseline)
        baselines = (BASELINES[0], baseline) if is_layer else (baseline, BASELINES[1])

    @functools.cache
    def versions() -> dict[str, str]:
        return _expected_versions(namespace.get("__file__"), module)

    suite = functools.partial(_suite, module=module, versions=versions, baselines=baselines)

    def missing_class(name: str) -> type:
        if name.startswith("_") or name not in {key.partition(".")[0] for key in versions()}:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return suite(name, None)

    namespace.update({name: suite(name, address) for name, address in names.items()})
    namespace["__getattr__"] = missing_class


Versions = Callable[[], Mapping[str, str]]


def _suite(
    name: str, address: str | None, module: str, versions: Versions, baselines: tuple[str, str]
) -> type:
    """The class of a subject; without an address, that of a missing subject."""

    def setup(self: Any, case: str, device: str) -> None:
        if address is None:
            raise NotImplementedError(f"{name} is not installed at this commit")
        self.place = _place(address, LAYER_CASES.get(case) or BenchCase(CASES[case]), device)

    is_layer = address is not None and _is_layer(address)
    baseline = baseline_of("layer" if is_layer else "", baselines)
    cases = list(LAYER_CASES if is_layer else CASES)
    methods = {
        method: _benchmark(f"{name}.{method}", address or name, versions, tracked, cases, baseline)
        for method, tracked in TRACKED.items()
        if tracked.of in ("", "layers" if is_layer else "attention") or address is None
    }
    content = {"setup": setup, "timeout": 300, "param_names": ["case", "device"], **methods}
    return type(name, (), {"__module__": module, "__doc__": address, **content})


def _is_layer(address: str) -> bool:
    """Whether an address is that of an installed layer."""
    try:
        return resolve(address)[0].kind == "layer"
    except AttnbenchError:
        return False


def _benchmark(
    name: str,
    address: str,
    versions: Versions,
    tracked: _Tracked,
    cases: Sequence[str],
    baseline: str,
) -> Callable[..., Any]:
    """Make a method ``track_*``."""
    method = name.rpartition(".")[2]

    def benchmark(self: Any, case: str, device: str) -> Any:
        subject, bench_case = self.place
        if method == "track_time_backward":
            bench_case = replace(bench_case, direction="forward_backward")
        bench = Bench(_CONTRACT, seed=os.getpid(), baselines=(baseline, baseline))
        fields = measure_row(subject, bench_case, bench)
        if fields["status"] != "ok":
            raise Unverified(f"{subject.name}: {fields['reason']}")
        value = fields[tracked.field]
        if not isinstance(value, int):  # asv prints all digits, and NaN as n/a
            value = math.nan if value is None else float(f"{value:.4g}")
        # the form in which asv stores samples that it took itself
        one = {"samples": [value], "number": fields["calls"]}
        return one if tracked.processes > 1 else value

    def setup(case: str, device: str) -> None:
        version = versions().get(name)
        if version not in (None, VERSION):
            raise NotImplementedError(f"this commit measures as of {VERSION}, not of {version}")

    # asv reads these attributes, and stores the plain ones in its benchmarks.json
    vars(benchmark).update(
        setup=setup,
        unit=tracked.unit,
        version=VERSION,
        rounds=tracked.processes,
        params=[list(cases), list(DEVICES)],
        subject=address,
        pretty_name=f"{address}: {tracked.title.format(baseline=baseline)}",
    )
    benchmark.__name__ = method
    return benchmark


def _place(address: str, case: BenchCase, device: str) -> tuple[Subject, BenchCase]:
    """A subject, and a case on a device.

    Raises:
        NotImplementedError: there is nothing to measure, because the device or the subject does not
            exist or the subject does not support the case. asv shows ``n/a``.
    """
    if device != "cpu":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            raise NotImplementedError("there is no accelerator")
        device = accelerator.type
    try:
        subject = resolve(address)[0]
    except AttnbenchError as error:
        raise NotImplementedError(str(error)) from None
    case = replace(case, case=case.case.replace(device=device))
    if case.of_layers and case.suits(subject.kind):
        case = case.sized(subject.legal(case.case).query_size)
    reason = case.reason_against(subject)
    if reason is not None:
        raise NotImplementedError(f"{address} does not support this case: {reason}")
    return subject, case


def _expected_versions(file: str | None, module: str) -> dict[str, str]:
    """The version of each ``class.method`` that asv lists in its results before it starts.

    Args:
        file: path of the module with the benchmarks.
        module: its name; asv's names are relative to the folder ``benchmarks``.
    """
    prefix = module.partition(".")[2] + "."
    folders = [Path(os.environ["ASV_CONF_DIR"])] if "ASV_CONF_DIR" in os.environ else []
    folders += Path(file).resolve().parents if file else []
    names = ("asv.conf.json", "asv.conf.jsonc")
    conf = next((p for f in folders for name in names if (p := f / name).is_file()), None)
    try:
        # the file may have comments, which the standard library does not read
        pattern = r'^\s*"results_dir"\s*:\s*"([^"]+)"'
        match = re.search(pattern, conf.read_text("utf-8") if conf else "", re.MULTILINE)
        results = (conf or Path()).parent / (match[1] if match else "results")
        content = json.loads((results / "benchmarks.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {
        name.removeprefix(prefix): str(row.get("version"))
        for name, row in content.items()
        if name.startswith(prefix) and isinstance(row, dict)
    }
