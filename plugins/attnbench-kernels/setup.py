"""Compiles the loops ahead of time: a library of plain C functions for each instruction set.

The libraries know nothing of Python and torch, so one wheel serves every version of either. Each
is chosen when the package is imported. Without a compiler the package installs, and runs eagerly.
"""

import copy
import os
import platform
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

FLAGS = ["-O3", "-g0", "-std=c++17"]
FLAGS += ["-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"]
SETS = {"portable": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    # those that torch.backends.cpu.get_cpu_capability() promises by these names
    SETS["avx2"] = ["-mavx2", "-mfma"]
    SETS["avx512"] = [*SETS["avx2"], "-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq"]
SOURCES = [f"attnbench_kernels/{name}" for name in ("loops.cpp", "attend.h", "slopes.h")]
SOURCES += ["attnbench_kernels/vectors.h", "setup.py"]


class Libraries(build_ext):
    """Builds libraries that ctypes loads, with OpenMP where the compiler has it."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = os.cpu_count()  # each library takes 3 s

    def get_ext_filename(self, fullname: str) -> str:
        return f"{fullname.replace('.', '/')}.so"

    def build_extension(self, ext: Extension) -> None:
        built, newest = Path(self.get_ext_filename(ext.name)), max(map(os.path.getmtime, SOURCES))
        if self.editable_mode and built.exists() and built.stat().st_mtime > newest:
            self.copy_file(str(built), self.get_ext_fullpath(ext.name))
            return
        apart = copy.copy(self)  # they share a source, and so the name of an object file
        apart.build_temp = os.path.join(self.build_temp, ext.name)
        plain = ext.extra_compile_args
        try:
            ext.extra_compile_args = [*plain, "-fopenmp"]
            ext.extra_link_args = ["-fopenmp"]
            super(Libraries, apart).build_extension(ext)
        except CompileError:  # Apple's clang: one thread
            ext.extra_compile_args, ext.extra_link_args = plain, []
            super(Libraries, apart).build_extension(ext)


class Wheel(bdist_wheel):
    """A wheel for every Python of a platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            f"attnbench_kernels.loops_{name}",
            SOURCES[:1],
            depends=SOURCES[1:],
            extra_compile_args=[*FLAGS, *flags],
            language="c++",
            optional=True,
        )
        for name, flags in SETS.items()
    ],
    cmdclass={"build_ext": Libraries, "bdist_wheel": Wheel},
)
