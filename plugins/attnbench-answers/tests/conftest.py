"""The tests use the helpers of the repository's own tests."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))
