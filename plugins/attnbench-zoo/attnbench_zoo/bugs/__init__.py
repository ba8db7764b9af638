"""Mistakes as rows of text; ``import attnbench_zoo.bugs.NAME`` is the changed source of one."""

import sys

from attnbench_zoo.patches import Finder

sys.meta_path.append(Finder())
