"""The Triton kernels compiled to machine code of GPUs that are not there."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from attnbench.attention.compile_times import compilations

pytestmark = pytest.mark.slow
triton = pytest.importorskip("triton")

SHARED_KIB = {70: 96, 75: 64, 80: 163, 86: 99, 90: 227}
"""Shared memory that a block may take, by compute capability (CUDA's programming guide)."""
SPILLED = 256
"""Bytes a thread may put aside; with tiles twice as high it was up to 9208."""


def compiled(name: str, capability: int, **constants: Any) -> Any:
    """A kernel's machine code, for float32 and for 128 units and values."""
    from attnbench_kernels.triton_loops import arguments, backward, forward
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(forward if name == "_forward" else backward, name)
    width = 128 if name == "_forward" else backward._WIDTH
    constants |= {"units": 128, "padded": 128, "width": width}
    if name != "_forward":
        constants |= {"stride": 128, "chunk": backward.chunk_of(128)}
    pointers = kernel.arg_names[: kernel.arg_names.index("q_len")]
    types = dict.fromkeys(pointers, "*fp32") | dict.fromkeys(constants, "constexpr")
    if constants["kind"] == 1:
        types["mask"] = "*u8"
    signature = {given: types.get(given, "i32") for given in kernel.arg_names}
    even = [*pointers, "features"]  # torch's tensors, and 128
    aligned = {(kernel.arg_names.index(given),): [["tt.divisibility", 16]] for given in even}
    return triton.compile(
        ASTSource(kernel, signature, constexprs=constants, attrs=aligned),
        target=GPUTarget("cuda", capability, 32),
        options=dict(arguments.OPTIONS),
    )


@pytest.mark.parametrize("name", ["_forward", "_backward_rows", "_backward_slots"])
@pytest.mark.parametrize(
    ("capability", "kind", "causal", "squares"),
    [
        (70, 0, True, False),
        (75, 1, False, False),
        (80, 0, False, False),
        (86, 2, False, False),
        (90, 2, False, True),
        (90, 0, False, False),
    ],
)
def test_it_compiles_into_the_registers_and_the_shared_memory_of_a_gpu(
    name: str, capability: int, kind: int, causal: bool, squares: bool,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = compiled(name, capability, kind=kind, causal=causal, squares=squares)
    assert found.metadata.shared <= SHARED_KIB[capability] * 1024
    (tmp_path / "code").write_bytes(found.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    said = subprocess.run(
        [str(tool), "-res-usage", str(tmp_path / "code")],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    spilled = [int(size) for size in re.findall(r"STACK:(\d+)", said)]
    assert spilled
    assert max(spilled) <= SPILLED, said


def test_compiling_is_told_from_loading_what_a_cache_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    for source in ("compiled", "cache"):
        with compilations() as found:
            compiled("_forward", 90, kind=0, causal=False, squares=True)
        assert found.source == source
        assert found.seconds > 0
