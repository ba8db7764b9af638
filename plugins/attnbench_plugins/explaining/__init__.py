"""What explains a failure: the first difference of two calls, and the script that shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import attnbench


@attnbench.hookimpl
def attnbench_explain(
    subject: attnbench.Subject, failures: Sequence[Any]
) -> Iterator[attnbench.Clue]:
    """The first difference, which the first failure that tells it shows."""
    from attnbench_plugins.explaining.first_difference import first_differences  # hypothesis

    yield from islice(first_differences(subject, failures), 1)
