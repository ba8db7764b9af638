"""Files as they stand in a repository: what is imported how, and what looks like attention."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnbench.calling.importing import candidates, load, notes_of
from attnbench.errors import AddressError, UnknownNameError
from tests.calling.conftest import written

ATTENTION = """
from torch import nn

class Attention(nn.Module):
    def forward(self, q, k, v):
        return (q @ k.mT).softmax(-1) @ v
"""


def test_a_file_does_not_stand_for_the_standard_library_module_of_its_name(tmp_path: Path) -> None:
    file = written(tmp_path / "profile.py", "import profile_parts\nNAME = 'mine'\n")
    written(tmp_path / "profile_parts.py", "")  # its folder is importable
    code = (
        "from attnbench.calling.importing import load\n"
        f"module = load({file!r})\n"
        "import cProfile, profile\n"
        "assert hasattr(profile, 'Profile'), profile\n"
        "print(module.NAME)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path.parent,
    )
    assert (done.stdout, done.returncode) == ("mine\n", 0), done.stderr


def test_a_file_in_a_package_is_imported_under_the_name_of_the_package(repository: Path) -> None:
    for folder in ("src/spam", "src/spam/layers"):
        written(repository / folder / "__init__.py", "")
    written(repository / "src/spam/sizes.py", "WIDTH = 8")
    file = written(
        repository / "src/spam/layers/eggs.py", "from ..sizes import WIDTH\nimport spam.sizes"
    )
    module = load(file)
    assert (module.__name__, module.WIDTH, notes_of(module)) == ("spam.layers.eggs", 8, ())


def test_a_package_that_cannot_be_imported_does_not_stand_in_the_way_of_its_file(
    repository: Path,
) -> None:
    written(repository / "ham/__init__.py", "open('weights.bin')")
    written(repository / "ham/sizes.py", "WIDTH = 8")
    module = load(written(repository / "ham/eggs.py", "from .sizes import WIDTH"))
    assert module.WIDTH == 8
    assert "its package was not run, which raises FileNotFoundError" in notes_of(module)[0]


def test_what_lies_beside_a_file_of_a_package_is_there_for_it(repository: Path) -> None:
    written(repository / "parts" / "__init__.py", "")
    written(repository / "parts" / "beside_it_9.py", "SIZE = 3")
    net = written(repository / "parts" / "net.py", "from beside_it_9 import SIZE")
    assert load(net).SIZE == 3


def test_a_version_that_is_asked_for_and_a_folder_without_an_init_are_no_obstacle(
    repository: Path,
) -> None:
    written(repository / "whole" / "__init__.py", "from .top import OLD")
    written(repository / "whole" / "top.py", "from .inner.deep import OLD")
    asked = "import missing_9\nfrom importlib import metadata\nOLD = metadata.version('missing_9')"
    written(repository / "whole" / "inner" / "deep.py", asked)
    assert load(written(repository / "whole" / "net.py", "from . import OLD")).OLD == "999.0.0"


def test_a_package_that_was_not_run_is_said_though_its_file_needs_a_stub(repository: Path) -> None:
    written(repository / "lamb/__init__.py", "open('weights.bin')")
    module = load(written(repository / "lamb/chops.py", "import nowhere_to_be"))
    assert [note.partition(",")[0] for note in notes_of(module)] == [
        "its package was not run",
        "not installed",
    ]


def test_what_is_not_installed_is_stubbed_and_raises_when_it_is_used(repository: Path) -> None:
    file = written(
        repository / "uses.py",
        """
        import nowhere_to.be.found as found
        from nowhere_to import Base, register, trunc_normal_
        try:
            import nowhere_else
        except ImportError:
            nowhere_else = None

        class Layer(Base):
            def call(self, x: found.Tensor | None):
                return found.call(x)

        @register("name")
        def plain(x):
            return isinstance(x, found.Tensor)
        """,
    )
    module = load(file)
    assert notes_of(module) == ("not installed, and stubbed: nowhere_to",)
    assert module.nowhere_else is None
    assert module.trunc_normal_ is torch.nn.init.trunc_normal_
    assert module.plain(1) is False
    with pytest.raises(ModuleNotFoundError, match=r"nowhere_to\.Base is used, and nowhere_to is n"):
        module.Layer()
    with pytest.raises(ModuleNotFoundError, match="nowhere_to is not installed"):
        module.Layer.call(None, 1)


def test_a_handler_that_only_raises_is_not_ready_for_what_is_missing(repository: Path) -> None:
    text = """
        try:
            from nowhere_to.io import manager
        except ImportError:
            try:
                from nowhere_else.io import manager
            except ImportError:
                raise ImportError("please install nowhere_to")
        """
    module = load(written(repository / "asks.py", text))
    assert notes_of(module) == ("not installed, and stubbed: nowhere_to",)


def test_a_module_that_is_loaded_when_it_is_used_has_no_file_before(repository: Path) -> None:
    text = """
        import sys, types
        class Lazy(types.ModuleType):
            def __getattr__(self, name):
                raise ImportError(name)
        sys.modules["lazy_one"] = Lazy("lazy_one")
        """
    load(written(repository / "lazily.py", text))
    assert sys.modules.pop("lazy_one").__file__ is None  # which inspect asks of every module


def test_a_folder_of_the_root_goes_before_a_file_of_its_name_beside(repository: Path) -> None:
    written(repository / "tools/masking.py", "KIND = 'root'\n")
    written(repository / "layers/tools.py", "")
    module = load(written(repository / "layers/made.py", "from tools.masking import KIND"))
    assert module.KIND == "root"


def test_a_loop_over_a_stub_ends(repository: Path) -> None:
    text = "from nowhere_to.data import KINDS\nIDS = [kind['id'] for kind in KINDS]\n"
    module = load(written(repository / "kinds.py", text))
    assert module.IDS == []
    with pytest.raises(ModuleNotFoundError, match="nowhere_to"):
        list(module.KINDS)


def test_a_stub_is_new_enough_and_what_an_installed_package_lacks_is_told_apart(
    repository: Path,
) -> None:
    module = load(
        written(
            repository / "lacks.py",
            """
            import nowhere_to
            from torch._nowhere import something
            if int(nowhere_to.__version__.split(".")[0]) < 2:
                raise ImportError("it is too old")

            def used():
                return something()
            """,
        )
    )
    assert notes_of(module) == (
        "not installed, and stubbed: nowhere_to",
        "not in its package, and stubbed: torch._nowhere",
    )
    with pytest.raises(ModuleNotFoundError, match="this torch has no such module"):
        module.used()


def test_a_registry_is_filled_once_though_a_stub_is_needed_on_the_way(repository: Path) -> None:
    written(
        repository / "names.py",
        "NAMES = []\ndef add(name):\n    assert name not in NAMES\n    NAMES.append(name)",
    )
    written(repository / "first.py", "import names\nnames.add('first')\nimport nowhere_at_all")
    module = load(written(repository / "second.py", "import first, names"))
    assert module.names.NAMES == ["first"]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            "import argparse\nargs = argparse.ArgumentParser()\nargs.add_argument('file')\n"
            "args = args.parse_args()",
            "SystemExit: 2",
        ),
        ("open('data.txt')", "FileNotFoundError"),
        ("for step in range(9):\n    step / 0", "ZeroDivisionError"),
        ("print('loss'); raise KeyboardInterrupt if 0 else SystemExit('no data')", "no data"),
    ],
)
def test_of_a_script_that_fails_only_the_definitions_are_run(
    repository: Path, capsys: pytest.CaptureFixture[str], statement: str, said: str
) -> None:
    module = load(written(repository / "train.py", f"WIDTH = 8\n{statement}\nDEPTH = WIDTH + 1"))
    assert module.DEPTH == 9
    assert "only the definitions of train.py were run, whose line " in notes_of(module)[0]
    assert said in notes_of(module)[0]
    assert capsys.readouterr().out == ""


def test_what_a_script_sets_where_it_is_run_is_set(repository: Path) -> None:
    block = "if __name__ == '__main__':\n    d_k = d_v = 64\n    text = 'a'\n    width = d_k / 0\n"
    module = load(written(repository / "script.py", f"d_v = 8\n{block}"))
    assert (module.d_k, module.d_v) == (64, 8)
    assert not hasattr(module, "text")
    assert notes_of(module) == ("as where the file is run: d_k=64",)


def test_a_script_that_trains_is_stopped(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnbench.calling.importing.LIMIT_S", 0.2)
    module = load(written(repository / "loop.py", "WIDTH = 8\nwhile True:\n    pass"))
    assert module.WIDTH == 8
    assert " raises TooLongError: it takes more than" in notes_of(module)[0]


def test_what_an_installed_package_asks_of_a_gpu_is_not_said_of_the_file(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = "import torch\ndef load(device=torch.device('cuda')): ..."
    written(repository / "site-packages" / "asks_for_gpu.py", asks)
    monkeypatch.syspath_prepend(str(repository / "site-packages"))
    assert notes_of(load(written(repository / "needs.py", "import asks_for_gpu"))) == ()
    assert notes_of(load(written(repository / "alone.py", asks)))


def test_what_asks_for_a_gpu_at_import_is_done_on_the_cpu(repository: Path) -> None:
    file = written(
        repository / "gpu.py",
        """
        import torch
        torch.set_default_dtype(torch.float16)
        layer = torch.nn.Linear(2, 2).cuda()
        table = torch.zeros(3, device="cuda:0").to("cuda")
        """,
    )
    module = load(file)
    assert notes_of(module) == ("what its import asks of a GPU was done on the CPU",)
    assert module.table.device == module.layer.weight.device == torch.device("cpu")
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        ("nowhere.py", AddressError, "there is no file"),
        ("nowhere_module", UnknownNameError, "neither a distribution nor a module"),
    ],
)
def test_what_is_not_there_is_one_error(source: str, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        load(source)


def test_what_is_stubbed_is_said_where_an_import_fails(repository: Path) -> None:
    with pytest.raises(AddressError, match="not installed, and stubbed: spam_of"):
        load(written(repository / "bad.py", "import spam_of\nclass A(Unknown):\n    pass"))


@pytest.mark.parametrize("text", ["def f(:", "class A(Unknown):\n    pass"])
def test_a_file_whose_definitions_fail_is_one_error_with_its_place(
    repository: Path, text: str
) -> None:
    with pytest.raises(AddressError, match=r"cannot be imported: .*\n  at .*bad\.py:1$"):
        load(written(repository / "bad.py", text))


def test_two_packages_of_one_name_are_not_confused(repository: Path) -> None:
    for folder in ("one", "two"):
        written(repository / folder / "twin/__init__.py", "")
        written(repository / folder / "twin/eggs.py", "")
    load("one/twin/eggs.py")
    with pytest.raises(AddressError, match=r"was imported from .*one/twin/eggs.py"):
        load("two/twin/eggs.py")


def test_what_looks_like_attention_is_found_by_name_by_what_it_computes_and_by_what_it_holds(
    repository: Path,
) -> None:
    text = f"""{ATTENTION}
class Pool(nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x

class Block(nn.Module):
    def __init__(self):
        self.attn = Attention()
    def forward(self, x):
        return x + self.attn(x, x, x)

class Sampler(nn.Module):
    def forward(self, x):
        return x.softmax(-1)

class AttentionConfig:
    width = 8

class Base(nn.Module):
    pass

def attention(query, key, value): ...
def attention_mask(size): ...
def imported(): ...
"""
    assert [*candidates(load(written(repository / "many.py", text)))] == [
        "Attention",
        "Pool",
        "Block",
        "attention",
    ]


def test_a_file_that_no_line_of_its_own_stops_says_what_stops_it(repository: Path) -> None:
    with pytest.raises(AddressError, match=r"SyntaxError: 'return' outside function"):
        load(written(repository / "returning.py", "WIDTH = 8\nreturn\n"))


_FINDER = """
import sys
from importlib.machinery import ModuleSpec


class Finder:
    @classmethod
    def find_spec(cls, name, path, target=None):
        return ModuleSpec(name, cls) if name == "lately.moves" else None

    @classmethod
    def create_module(cls, spec):
        return None

    @classmethod
    def exec_module(cls, module):
        module.WIDTH = 8


sys.meta_path.append(Finder)
__path__ = []
"""


def test_what_a_package_lets_be_found_at_its_import_is_no_stub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    written(tmp_path / "lately.py", _FINDER)
    module = load(written(tmp_path / "model.py", "from lately.moves import WIDTH\n"))
    assert (module.WIDTH, notes_of(module)) == (8, ())
