"""The cases that the built-in kernels support."""

from __future__ import annotations

import attnbench

__all__ = ["on_known_devices"]


def on_known_devices(case: attnbench.Case) -> str | None:
    """``None`` on a CPU and on an NVIDIA or AMD GPU, else the reason why it is not supported."""
    if case.device in ("cpu", "cuda"):
        return None
    return f"written for the CPU and for CUDA, and not tried on {case.device}"
