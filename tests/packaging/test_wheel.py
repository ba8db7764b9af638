import json
import zipfile
from typing import Any


def test_the_wheel_holds_its_packages_and_nothing_else(contents: Any) -> None:
    assert {name.split("/")[0].split("-")[0] for name in contents} == {
        "attnbench",
        "attnbench_plugins",
    }


def test_the_wheel_is_typed_and_holds_its_data(contents: Any) -> None:
    assert {"attnbench/py.typed", "attnbench_plugins/py.typed"} <= set(contents)
    assert any(name.startswith("attnbench_plugins/new/templates/new/") for name in contents)


def test_an_sdist_was_built_and_holds_the_licence(built: Any) -> None:
    import tarfile

    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = archive.getnames()
    assert any(name.endswith("/LICENSE") for name in names)
    assert any(name.endswith("/plugins/attnbench_plugins/scorings/additive.py") for name in names)


def test_the_main_job_runs_from_outside_the_checkout(environment: Any) -> None:
    result = environment.attnbench(*("run", "additive", "gaussian", "scaled_dot"))
    assert "scaled_dot" in result.out
    records = list((environment.cwd / "results" / "attnbench").glob("*.jsonl"))
    assert records
    lines = [json.loads(line) for path in records for line in path.read_text().splitlines()]
    assert {line["subject"] for line in lines} >= {"additive", "gaussian", "scaled_dot"}


def test_the_wheel_of_the_kernels_serves_every_python_and_holds_libraries_and_no_source(
    kernels: Any,
) -> None:
    assert "-py3-none-" in kernels.name
    assert not kernels.name.endswith("-any.whl")
    names = {name.rpartition("/")[2] for name in zipfile.ZipFile(kernels).namelist()}
    assert "loops_portable.so" in names
    assert not [name for name in names if name.endswith((".cpp", ".h", ".o"))]


def test_kernels_run_without_a_compiler(environment: Any, kernels: Any) -> None:
    environment.install("--no-deps", str(kernels))
    try:
        shown = environment.attnbench("list", "additive", CXX="/no/such/compiler").out
        assert "factorised" in shown
        assert "runs as: native, " in shown
    finally:
        environment.uninstall("attnbench-kernels")
