"""Building blocks for plugins that bring styles of call.

A style reads the arguments of its callee by :func:`arguments` and the roles of their names, makes
it within :func:`confined`, calls it within :func:`refusals`, and gives the spec that
:func:`adapted_spec` makes.
"""

from attnbench.attention.masks import valid_lens_mask
from attnbench.attention.torch_internals import OperationMode, nested_tensors
from attnbench.calling.adapted_specs import (
    LAYOUTS,
    FoundScoring,
    adapted,
    adapted_spec,
    fold_mask,
    known_style,
    name_of,
    with_causality,
)
from attnbench.calling.importing import computes_attention, is_attention, notes_of
from attnbench.calling.refusals import in_one_line, refusals
from attnbench.calling.roles import FORWARD, METHODS, SETTINGS, TENSORS, named, role_of
from attnbench.calling.sandbox import (
    DownloadError,
    TooLargeError,
    TooLongError,
    causes,
    confined,
)
from attnbench.calling.scaled_dot import SCALED_DOT, Rows, pooled_rows, scaled_dot_rows
from attnbench.calling.signature import (
    FIRST,
    NOTHING,
    Argument,
    Keywords,
    arguments,
    call_arguments,
    call_written,
    forward_of,
    keywords_of,
    plain_type,
    renamed,
    renames,
)
from attnbench.processes.tracebacks import source_line_of
from attnbench.registry.catalog import registry
from attnbench.specs import DTYPES
from attnbench.specs.conventions import FINITE, Conventions

__all__ = [
    "DTYPES",
    "FINITE",
    "FIRST",
    "FORWARD",
    "LAYOUTS",
    "METHODS",
    "NOTHING",
    "SCALED_DOT",
    "SETTINGS",
    "TENSORS",
    "Argument",
    "Conventions",
    "DownloadError",
    "FoundScoring",
    "Keywords",
    "OperationMode",
    "Rows",
    "TooLargeError",
    "TooLongError",
    "adapted",
    "adapted_spec",
    "arguments",
    "call_arguments",
    "call_written",
    "causes",
    "computes_attention",
    "confined",
    "fold_mask",
    "forward_of",
    "in_one_line",
    "is_attention",
    "keywords_of",
    "known_style",
    "name_of",
    "named",
    "nested_tensors",
    "notes_of",
    "plain_type",
    "pooled_rows",
    "refusals",
    "registry",
    "renamed",
    "renames",
    "role_of",
    "scaled_dot_rows",
    "source_line_of",
    "valid_lens_mask",
    "with_causality",
]
