"""The compiled loops of ``loops.cpp``: one library for each instruction set, made with the package.

Their functions take pointers and sizes only, so one build serves every Python and every torch.
Where the package was installed without a compiler :func:`library` warns once and gives ``None``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from pathlib import Path

import torch

from attnbench import UsageError

VARIABLE = "ATTNBENCH_LOOPS"
"""The environment variable that names an instruction set, instead of the widest."""
TRITON = "triton"
"""The value of it that selects the Triton kernels; on the CPU only by Triton's interpreter."""


class NotCompiledWarning(UserWarning):
    """A kernel runs eagerly, many times slower."""


def instruction_sets() -> list[str]:
    """The instruction sets of this processor that the loops are compiled for, the widest first."""
    wide = {"AVX512": ["avx512", "avx2"], "AVX2": ["avx2"]}
    return [*wide.get(torch.backends.cpu.get_cpu_capability(), []), "portable"]


def _chosen() -> str:
    known, forced = instruction_sets(), os.environ.get(VARIABLE)
    if not forced or forced == TRITON:
        return known[0]
    if forced not in known:
        raise UsageError(
            f"{VARIABLE}={forced!r}, but this processor has {', '.join(known)}. "
            f"Set one of these or {TRITON}, or unset {VARIABLE}."
        )
    return forced


def described() -> str:
    """Which loops run on the CPU, in a few words.

    Raises:
        attnbench.UsageError: the environment variable names an unknown instruction set.
    """
    if library() is None:
        return "eager, since its compiled loops cannot be loaded"
    return f"native, {_chosen()}"


@functools.cache
def library() -> ctypes.CDLL | None:
    """The loops for this processor; ``None``, with one warning, if they were not compiled.

    Raises:
        attnbench.UsageError: the environment variable names an unknown instruction set.
    """
    try:
        loaded = ctypes.CDLL(str(Path(__file__).with_name(f"loops_{_chosen()}.so")))
    except OSError as error:
        warnings.warn(
            f"attnbench's kernels run eagerly, many times slower: their loops cannot be loaded "
            f"({error}). Install attnbench-kernels from a wheel, or where there is a C++ compiler.",
            NotCompiledWarning,
            stacklevel=2,
        )
        return None
    for name in ("attend_single", "attend_double", "slopes_single", "slopes_double"):
        function = getattr(loaded, name)
        function.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_double, ctypes.c_void_p]
        function.restype = None
    return loaded
