"""torch's global switches, which decide the kernels that a call takes.

Code under test may set them, when it is loaded or called, and the calls of others would be slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.backends import cuda, mkldnn

_SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    (cuda.math_sdp_enabled, cuda.enable_math_sdp),
    (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (lambda: mkldnn.enabled, mkldnn.set_flags),
)
_USUAL = [get() for get, _ in _SWITCHES]


def put_back() -> None:
    """Set each switch as it was when this module was imported."""
    for (get, put), usual in zip(_SWITCHES, _USUAL, strict=True):
        if get() != usual:
            put(usual)
