"""What the tests of this folder share with the others."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
