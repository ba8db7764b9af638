"""Parallel groups of one process, which the constructors of sharded layers ask for."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Callable
from typing import TypeVar

from torch import distributed

_Made = TypeVar("_Made")
_STARTERS = ("fairscale.nn.model_parallel.initialize", "megatron.core.parallel_state")
"""Modules that keep groups of their own, which their ``initialize_model_parallel`` makes."""
_ASKS = re.compile(r"group (?:is|has) not (?:been )?initiali[sz]ed", re.IGNORECASE)


def with_groups(make: Callable[[], _Made]) -> _Made:
    """What a constructor gives; where it asks for process groups, with some of this process."""
    try:
        return make()
    except Exception as error:  # whatever it raises
        if not _ASKS.search(str(error)) or has_groups():
            raise
    store = distributed.HashStore()  # type: ignore[attr-defined]  # it is there
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    with contextlib.redirect_stdout(io.StringIO()):
        for starter in filter(None, map(sys.modules.get, _STARTERS)):
            starter.initialize_model_parallel(1)
    return make()


def has_groups() -> bool:
    """Whether there are process groups."""
    return distributed.is_available() and distributed.is_initialized()
