import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import attnbench
from attnbench.errors import DuplicateNameError, UnknownNameError
from attnbench.registry.catalog import Registry, load, registry
from attnbench.registry.discovery import Plugin, call_hooks, discover, load_plugin


def spec(name: Any = "cosine", **changes: Any) -> Any:
    return attnbench.ScoringSpec(name=name, make=lambda q, k: nn.Identity(), **changes)


def plugin(name: Any = "p", distribution: Any = "dist", specs: Any = (), **changes: Any) -> Any:
    return Plugin(
        **{
            "name": name,
            "value": "",
            "distribution": distribution,
            "version": "1.0",
            "status": "ok",
            "specs": tuple(specs),
            **changes,
        }
    )


LAW = attnbench.Invariant(name="unit_variance", check=lambda s, c: None, law=True)


def hooks(**functions: Any) -> Any:
    return types.SimpleNamespace(__name__="namespace", **functions)


def test_built_ins_come_in_through_entry_points() -> None:
    assert {"additive", "gaussian", "scaled_dot", "bilinear", "vector_sum", "dot"} <= set(
        attnbench.subjects()
    )
    assert attnbench.subjects() == sorted(attnbench.subjects())
    assert all(p.entry_point is not None for p in registry().plugins)


def test_an_unknown_law_fails_the_plugin_and_nothing_of_it_is_registered() -> None:
    laws = plugin("laws", specs=[LAW])
    found = Registry([plugin(specs=[spec("good"), spec("bad", laws=("unit_varianc",))]), laws])
    (failed,) = found.failures
    assert "bad names the law 'unit_varianc', which no plugin registers." in failed.message
    assert "Did you mean 'unit_variance'" in failed.message
    assert found.specs() == []


def test_an_unknown_law_is_excused_while_a_plugin_that_may_bring_it_is_blocked() -> None:
    needs = spec(laws=("my_law",))
    absent = plugin("laws", "my-laws", status="blocked")
    assert Registry([plugin(specs=[needs], requires=("my-laws",)), absent]).failures == []
    assert Registry([plugin(specs=[needs]), absent]).failures != []


def test_an_exemption_without_a_reason_fails_the_plugin() -> None:
    found = Registry([plugin(specs=[LAW, spec(exempt={"unit_variance": " "})])])
    assert "exempt from 'unit_variance' without a reason" in found.failures[0].message


def test_a_hook_needs_no_decorator_and_may_be_a_generator() -> None:
    mine = spec()

    def attnbench_scorings() -> Any:
        yield mine

    assert call_hooks(hooks(attnbench_scorings=attnbench_scorings)) == (mine,)


@pytest.mark.parametrize(
    ("namespace", "message"),
    [
        (hooks(attnbench_scoring=lambda: [spec()]), "Did you mean 'attnbench_scorings'"),
        (hooks(attnbench_scorings=lambda: 3), "returned 3, but should return an iterable"),
        (hooks(attnbench_scorings=lambda: spec()), "write 'return \\[spec\\]'"),
        (hooks(attnbench_scorings=lambda: [3]), "gave 3 \\(int\\), but should give ScoringSpec"),
        (
            hooks(attnbench_scorings=lambda: [attnbench.Invariant(name="i", check=print)]),
            "other kinds have hooks of their own",
        ),
        (hooks(), "has no hook"),
    ],
    ids=["mistyped", "no iterable", "bare spec", "wrong item", "wrong hook", "no hook"],
)
def test_a_plugin_that_gives_something_else_is_an_error_that_says_what_to_do(
    namespace: Any, message: Any
) -> None:
    with pytest.raises(attnbench.AttnbenchError, match=message):
        call_hooks(namespace)


class Entry:
    """An entry point that loads what it is given, or raises it."""

    dist = None

    def __init__(self, value: Any) -> None:
        self.value = value

    def load(self) -> Any:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (ImportError("no module"), "ImportError"),
        (SystemExit(3), "SystemExit"),
        (hooks(attnbench_scorings=lambda: 1 / 0), "ZeroDivisionError"),
    ],
)
def test_a_plugin_that_fails_does_not_touch_the_others(value: Any, told: str) -> None:
    good = plugin(
        "good", status="found", entry_point=Entry(hooks(attnbench_scorings=lambda: [spec()]))
    )
    bad = plugin("bad", status="found", entry_point=Entry(value))
    found = load([bad, good])
    assert [p.status for p in found.plugins] == ["failed", "ok"]
    assert told in found.plugins[0].message
    assert "Traceback" in found.plugins[0].trace
    assert found.get("cosine")


def test_kernels_come_by_priority() -> None:
    kernels = [
        attnbench.KernelSpec(name=name, scoring="cosine", attend=torch.add, priority=priority)
        for name, priority in (("slow", 0), ("fast", 2), ("mid", 1))
    ]
    found = Registry([plugin(specs=[spec(), *kernels])])
    assert [k.name for k in found.kernels(found.get("cosine"))] == ["fast", "mid", "slow"]
    assert found.get("cosine/fast") is kernels[1]


def test_a_kernel_belongs_to_the_scoring_function_of_its_own_distribution() -> None:
    first, second = spec(), spec()
    kernel = attnbench.KernelSpec(name="fast", scoring="cosine", attend=torch.add)
    found = Registry([plugin(specs=[first, kernel]), plugin("q", "other", [second])])
    assert found.scoring_for(kernel) is first
    assert found.kernels(first) == [kernel]
    assert found.kernels(second) == []


def test_a_kernel_of_an_unknown_scoring_function_is_an_error() -> None:
    kernel = attnbench.KernelSpec(name="fast", scoring="cosin", attend=torch.add)
    with pytest.raises(UnknownNameError, match="Did you mean 'cosine'"):
        Registry([plugin(specs=[spec(), kernel])]).scoring_for(kernel)


def test_two_invariants_of_one_name_are_refused_with_who_brings_them() -> None:
    first, second = (attnbench.Invariant(name="holds", check=lambda s, c: None) for _ in range(2))
    both = Registry([plugin("a", "attn-extra", [first]), plugin("b", "my-laws", [second])])
    with pytest.raises(DuplicateNameError) as raised:
        both.invariants()
    assert "invariant 'holds' is registered twice" in str(raised.value)
    assert "by attn-extra 1.0 (entry point 'a')" in str(raised.value)
    assert "Uninstall one, or set ATTNBENCH_DISABLED_PLUGINS=b." in str(raised.value)


@pytest.mark.parametrize(
    ("needs", "fits"),
    [
        ("attnbench", True),
        ("attnbench>=0.1", True),
        ("attnbench[asv]>=0.0.1", True),
        ("attnbench>=99,<100", False),
        ("ATTNBENCH<0.0.1", False),
        ("attnbench>=99; python_version < '3'", True),
        ("attnbench-other>=99", True),
    ],
)
def test_a_plugin_made_for_another_version_of_the_core_fails_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, needs: str, fits: bool
) -> None:
    about = tmp_path / "fast-0.3.dist-info"
    about.mkdir()
    text = f"Metadata-Version: 2.1\nName: fast\nVersion: 0.3\nRequires-Dist: {needs}\n"
    (about / "METADATA").write_text(text)
    (about / "entry_points.txt").write_text("[attnbench]\nfast = fast_hooks\n")
    (tmp_path / "fast_hooks.py").write_text("def attnbench_kernels():\n    return []\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = (plugin for plugin in discover() if plugin.name == "fast")
    loaded = load_plugin(found)
    assert loaded.status == ("ok" if fits else "failed")
    if not fits:
        assert "fast 0.3 is made for attnbench" in loaded.message
        assert "pip install --upgrade attnbench fast" in loaded.message
        assert "\n" not in loaded.message


def test_a_built_in_name_keeps_its_meaning_whoever_else_registers_it() -> None:
    mine, theirs, more = spec(), spec(), spec()
    found = Registry(
        [
            plugin("cosine", "attnbench", [mine, LAW]),
            plugin("scores", "my-scores", [theirs, LAW], version="0.1"),
            plugin("more", "more-scores", [more]),
        ]
    )
    assert found.get("cosine") is mine
    assert found.get("my-scores:cosine") is theirs
    addresses = [str(address) for address, _, _ in found.specs()]
    assert addresses == ["cosine", "more-scores:cosine", "my-scores:cosine"]
    assert found.invariants() == [LAW]
    first, _, law = found.shadowed
    assert first == (
        "my-scores 0.1 (entry point 'scores') registers 'cosine', which is built in: the name "
        "means the built-in one. my-scores:cosine reaches the other; rename it."
    )
    assert law.endswith("the built-in one. Rename yours, which does not run.")


@pytest.mark.parametrize("version", [1, 2])
def test_a_plugin_may_state_the_contract_that_it_is_written_for(version: int) -> None:
    mine = spec()
    stated = hooks(attnbench_contract=lambda: version, attnbench_scorings=lambda: [mine])
    assert call_hooks(stated) == (mine,)


@pytest.mark.parametrize("version", ["2", 0, True])
def test_a_contract_that_is_no_version_is_an_error(version: Any) -> None:
    stated = hooks(attnbench_contract=lambda: version, attnbench_scorings=lambda: [spec()])
    with pytest.raises(attnbench.AttnbenchError, match=r"should return the version .*, 1 to 3"):
        call_hooks(stated)
