"""Devices: those available, and a check of a requested one."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator

import torch

from attnbench.errors import DeviceError, message_of, nearest


def available_devices() -> list[str]:
    """The names of the CPU and of the accelerator, if there is one."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return ["cpu", *([accelerator.type] if accelerator is not None else [])]


def is_lost(name: str) -> bool:
    """Whether no call on an accelerator succeeds any more, as after an illegal access."""
    if torch.device(name).type == "cpu":
        return False
    try:
        torch.zeros(1, device=name).item()
    except RuntimeError:
        return True
    return False


def generator_of(name: str) -> torch.Generator:
    """The generator that random calls on a device draw from."""
    device = torch.device(name)
    if device.type != "cuda":
        return torch.default_generator
    index = torch.cuda.current_device() if device.index is None else device.index
    return torch.cuda.default_generators[index]


def other_random_states() -> dict[str, object]:
    """The states of random numbers that are not torch's."""
    numpy = sys.modules.get("numpy")
    states: dict[str, object] = {"Python's random": random.getstate()}
    if numpy is not None:
        _, words, place, *_ = numpy.random.get_state()
        states["numpy.random"] = (words.tobytes(), place)
    return states


def seed(device: str, number: int) -> None:
    """Seed all random numbers that a call may draw: torch's, Python's and NumPy's."""
    generator_of(device).manual_seed(number)
    random.seed(number)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(number)


def check_device(name: str) -> None:
    """Check that a device is available.

    Raises:
        DeviceError: it is not available, or stores no values (``meta``).
    """
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = message_of(error)
    else:
        if torch.device(name).type != "meta":
            return
        reason = "it holds no values"
    raise DeviceError(f"no device {name!r} here ({reason}). {nearest(name, available_devices())}")


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """A context that restores torch's global generator, and computes with one thread.

    The tensors of a check are so small that a second thread would only wait for the first.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
