"""The description of an accelerator in a record: versions, modes and clocks."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from typing import Any

import torch

_THROTTLES = {
    "idle": "nvmlClocksThrottleReasonGpuIdle",
    "application clocks": "nvmlClocksThrottleReasonApplicationsClocksSetting",
    "power cap": "nvmlClocksThrottleReasonSwPowerCap",
    "hardware slowdown": "nvmlClocksThrottleReasonHwSlowdown",
    "sync boost": "nvmlClocksThrottleReasonSyncBoost",
    "thermal, by software": "nvmlClocksThrottleReasonSwThermalSlowdown",
    "thermal, by hardware": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "power brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
}
"""Why clocks are lower than they could be, and NVML's names of it."""


def accelerator_facts(device: torch.device) -> dict[str, Any]:
    """Collect versions and modes of torch's CUDA libraries.

    With ``nvidia-ml-py`` installed, also the driver and the clocks. Empty for a CPU; facts that
    cannot be read are left out.
    """
    if device.type != "cuda":
        return {}
    facts: dict[str, Any] = {
        "cuda": torch.version.cuda or torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]  # no types there
        "tf32": {
            "matmul": torch.backends.cuda.matmul.allow_tf32,
            "cudnn": torch.backends.cudnn.allow_tf32,
        },
    }
    if importlib.util.find_spec("pynvml") is not None:
        facts |= _by_nvml(device)
    return {name: value for name, value in facts.items() if value is not None}


def _by_nvml(device: torch.device) -> dict[str, Any]:
    nvml: Any = importlib.import_module("pynvml")
    facts: dict[str, Any] = {}
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return facts
    try:
        with contextlib.suppress(nvml.NVMLError):
            facts["driver"] = nvml.nvmlSystemGetDriverVersion()
        with contextlib.suppress(nvml.NVMLError):
            # torch numbers the visible devices and NVML all of them; both know the UUID
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            clocks = {"sm": nvml.NVML_CLOCK_SM, "memory": nvml.NVML_CLOCK_MEM}
            for name, clock in clocks.items():
                with contextlib.suppress(nvml.NVMLError):
                    facts[f"{name}_clock_mhz"] = nvml.nvmlDeviceGetClockInfo(handle, clock)
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
            facts["throttled"] = [
                reason for reason, name in _THROTTLES.items() if bits & getattr(nvml, name)
            ]
    finally:
        nvml.nvmlShutdown()
    return facts
