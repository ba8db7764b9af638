"""Which cases the built-in kernels run."""

from __future__ import annotations

import attnbench

__all__ = ["on_known_devices"]


def on_known_devices(case: attnbench.Case) -> str | None:
    """``None`` on a CPU or an NVIDIA or AMD GPU; elsewhere, that nothing was tried there."""
    if case.device in ("cpu", "cuda"):
        return None
    return f"written for the CPU and for CUDA, and not tried on {case.device}"
