# mypy: ignore-errors
# Triton has no types, and is not there where types are checked.
"""Notes how long Triton takes to compile these kernels, and whether a cache had them."""

from __future__ import annotations

from typing import Any

from triton import knobs

from attnbench.testing import note_compiled


def listen() -> None:
    """Note each kernel of this package that Triton compiles or loads; other listeners stay."""
    before = knobs.compilation.listener

    def noted(*, src: Any, times: Any, cache_hit: bool, **more: Any) -> None:
        if getattr(getattr(src, "fn", None), "__module__", "").startswith(__package__):
            note_compiled(times.total / 1e6, cached=cache_hit)
        if before is not None:
            before(src=src, times=times, cache_hit=cache_hit, **more)

    knobs.compilation.listener = noted
