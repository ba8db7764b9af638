"""Building blocks for plugins that bring styles of call.

A style reads the arguments of its callee by :func:`arguments` and the roles of their names, makes
it within :func:`confined`, calls it within :func:`refusals`, and gives the spec that
:func:`adapted_spec` makes.
"""

from attnbench.attention.masks import valid_lens_mask as valid_lens_mask
from attnbench.attention.torch_internals import OperationMode as OperationMode
from attnbench.attention.torch_internals import nested_tensors as nested_tensors
from attnbench.calling.adapted_specs import LAYOUTS as LAYOUTS
from attnbench.calling.adapted_specs import FoundScoring as FoundScoring
from attnbench.calling.adapted_specs import adapted as adapted
from attnbench.calling.adapted_specs import adapted_spec as adapted_spec
from attnbench.calling.adapted_specs import fold_mask_heads as fold_mask_heads
from attnbench.calling.adapted_specs import known_style as known_style
from attnbench.calling.adapted_specs import name_of as name_of
from attnbench.calling.adapted_specs import with_causality as with_causality
from attnbench.calling.importing import computes_attention as computes_attention
from attnbench.calling.importing import is_attention as is_attention
from attnbench.calling.importing import notes_of as notes_of
from attnbench.calling.refusals import in_one_line as in_one_line
from attnbench.calling.refusals import refusals as refusals
from attnbench.calling.roles import FORWARD as FORWARD
from attnbench.calling.roles import METHODS as METHODS
from attnbench.calling.roles import SETTINGS as SETTINGS
from attnbench.calling.roles import TENSORS as TENSORS
from attnbench.calling.roles import named as named
from attnbench.calling.roles import role_of as role_of
from attnbench.calling.sandbox import DownloadError as DownloadError
from attnbench.calling.sandbox import TooLargeError as TooLargeError
from attnbench.calling.sandbox import TooLongError as TooLongError
from attnbench.calling.sandbox import causes as causes
from attnbench.calling.sandbox import confined as confined
from attnbench.calling.scaled_dot import SCALED_DOT as SCALED_DOT
from attnbench.calling.scaled_dot import Rows as Rows
from attnbench.calling.scaled_dot import pooled_rows as pooled_rows
from attnbench.calling.scaled_dot import scaled_dot_rows as scaled_dot_rows
from attnbench.calling.signature import FIRST as FIRST
from attnbench.calling.signature import NOTHING as NOTHING
from attnbench.calling.signature import Argument as Argument
from attnbench.calling.signature import Keywords as Keywords
from attnbench.calling.signature import arguments as arguments
from attnbench.calling.signature import call_arguments as call_arguments
from attnbench.calling.signature import call_written as call_written
from attnbench.calling.signature import forward_of as forward_of
from attnbench.calling.signature import keywords_of as keywords_of
from attnbench.calling.signature import plain_type as plain_type
from attnbench.calling.signature import renamed as renamed
from attnbench.calling.signature import renames as renames
from attnbench.processes.tracebacks import source_line_of as source_line_of
from attnbench.registry.catalog import registry as registry
from attnbench.specs import DTYPES as DTYPES
from attnbench.specs.conventions import FINITE as FINITE
from attnbench.specs.conventions import LAYER_DEFAULTS as LAYER_DEFAULTS
from attnbench.specs.conventions import Conventions as Conventions
