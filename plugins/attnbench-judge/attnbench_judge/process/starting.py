"""A script that becomes a candidate's process in its cell, once it has imported torch.

No code of a candidate runs before that, and nothing of the judge is here. Its arguments are what
the cell is given, in JSON, and the file descriptors of the channel, the shared memory and the pipe
of reports.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
candidate, cell = map(importlib.import_module, ("candidate", "cell"))
sys.path.pop()

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    channel, memory, report = map(int, sys.argv[2:])
    gc.freeze()  # so that collecting in the candidate's process does not look at all of torch
    sys.argv = sys.argv[:1]
    cell.enter(given, report, partial(candidate.main, channel, memory))
    os._exit(0)
