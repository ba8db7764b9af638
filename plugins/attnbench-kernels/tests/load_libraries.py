"""Load the libraries of an installed wheel, where torch is not installed, and list them."""

import ctypes
from importlib.util import find_spec
from pathlib import Path

spec = find_spec("attnbench_kernels")
assert spec is not None
assert spec.origin is not None
found = sorted(Path(spec.origin).parent.glob("loops_*.so"))
assert found, "the wheel holds no library"
for path in found:
    library = ctypes.CDLL(str(path))
    for name in ("attend_single", "attend_double", "slopes_single", "slopes_double"):
        assert getattr(library, name)
    print(path.name)
