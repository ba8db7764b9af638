"""Files and modules of addresses: what they may be called, and what their errors say."""

import importlib
import shlex
from pathlib import Path

import pytest

import attnbench
from attnbench.errors import AddressError, SpecError, StyleError, UnknownNameError
from attnbench.subject.lookup import resolve
from tests.cli_runs import python

SPEC = """
import attnbench
from torch import nn

class Scores(nn.Module):
    def __init__(self, width=2):
        super().__init__()
        self.width = width

    def forward(self, query, key):
        return query @ key.mT * {factor}

SPEC = attnbench.ScoringSpec(
    name="mine", make=lambda q, k, *, a=1: Scores(a), equal_sizes=True, laws=())
"""


def test_a_file_does_not_stand_for_the_standard_library_module_of_its_name(tmp_path: Path) -> None:
    file = tmp_path / "profile.py"
    file.write_text("import profile_parts\n" + SPEC.format(factor=1))
    (tmp_path / "profile_parts.py").write_text("")  # its folder is importable
    code = (
        "from attnbench.subject.lookup import resolve\n"
        f"(subject,) = resolve({str(file)!r} + ':SPEC')\n"
        "import cProfile, profile\n"
        "assert hasattr(profile, 'Profile'), profile\n"
        "print(subject.name)\n"
    )
    done = python("-c", code, folder=tmp_path.parent)
    assert (done.stdout, done.returncode) == ("mine\n", 0), done.stderr


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "same.py").write_text(SPEC.format(factor=number))
    one, two = (resolve(f"{tmp_path}/{number}/same.py:SPEC")[0] for number in (1, 2))
    assert one.spec.make.__module__ != two.spec.make.__module__
    assert resolve(f"{tmp_path}/1/same.py:SPEC")[0].spec is one.spec
    assert importlib.import_module(one.spec.make.__module__)


@pytest.mark.parametrize("folder", ["d (1)", "it's, here", "a with b=1"])
def test_the_check_command_names_the_subject_alone_and_whole(tmp_path: Path, folder: str) -> None:
    file = tmp_path / folder / "f.py"
    file.parent.mkdir()
    file.write_text(SPEC.format(factor=1) + "\nBOTH = [SPEC, attnbench.get('dot')]\n")
    (subject,) = resolve(f"{str(file)!r}:SPEC(a=2)")
    assert subject.name == "mine(a=2)"
    (again,) = resolve(shlex.split(subject.check_command)[-1])
    assert (again.address, again.spec) == (subject.address, subject.spec)
    for one in resolve(f"{str(file)!r}:BOTH"):
        assert [s.name for s in resolve(shlex.split(one.check_command)[-1])] == [one.name]


def test_a_spec_that_raises_is_told_of_where_its_name_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text("import attnbench\nSPEC = attnbench.LayerSpec(name='wrong', size=3)\n")
    with pytest.raises(UnknownNameError, match=r"line 2 raises TypeError: .*'size'"):
        resolve(f"{file}:SPEC")


def test_two_specs_of_one_name_in_one_list_are_an_error(tmp_path: Path) -> None:
    file = tmp_path / "twice.py"
    file.write_text(SPEC.format(factor=1) + "\nBOTH = [SPEC, SPEC]\n")
    with pytest.raises(AddressError, match=r"lists two specs of one name \(mine, mine\)"):
        resolve(f"{file}:BOTH")


def test_get_follows_conventions_and_refuses_what_is_no_part_of_a_spec() -> None:
    spec = attnbench.get("soft with hidden_slots=finite")
    assert isinstance(spec, attnbench.MechanismSpec)
    assert spec.conventions == {"hidden_slots": "finite"}
    with pytest.raises(StyleError, match="soft is a MechanismSpec, which says itself"):
        attnbench.get("soft as sdpa with hidden_slots=finite")
    with pytest.raises(SpecError, match="no convention"):
        attnbench.get("soft with hiden_slots=finite")
