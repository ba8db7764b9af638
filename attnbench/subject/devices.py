"""Devices: those available, and a check of a requested one."""

from __future__ import annotations

import torch

from attnbench.errors import DeviceError, nearest


def available_devices() -> list[str]:
    """The names of the CPU and of the accelerator, if there is one."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ["cpu", *([accelerator.type] if accelerator is not None else [])]


def check_device(name: str) -> None:
    """Check that a device is available.

    Raises:
        DeviceError: it is not available, or stores no values (``meta``).
    """
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
    else:
        if torch.device(name).type != "meta":
            return
        reason = "it holds no values"
    raise DeviceError(f"no device {name!r} here ({reason}). {nearest(name, available_devices())}")
