"""A plugin whose import fails."""

import a_module_that_is_not_there  # noqa: F401
