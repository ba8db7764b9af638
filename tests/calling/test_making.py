"""How modules are made of classes: what is given for each argument, and what is refused."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from attnbench_plugins.adapters.making.maker import MakingError
from attnbench_plugins.adapters.making.recipes import recipe_from, recipe_of
from attnbench_plugins.adapters.making.widths import Widths
from torch import nn

from tests.calling.conftest import loaded

HEADS = """
class Heads(nn.Module):
    def __init__(self, {arguments}):
        super().__init__()
        {lines}
        self.proj = nn.Linear({width}, {width})
"""


def heads(arguments: str, width: str = "width", lines: str = "pass") -> str:
    """The source of a module with one projection."""
    return HEADS.format(arguments=arguments, width=width, lines=lines)


CONFIG = """
@dataclass
class {name}:
    n_embd: int = 768
    n_head: int = 12
    dropout: float = 0.1
"""
SPLIT = "assert config.n_embd % config.n_head == 0"

MADE = {
    "sizes by name": (heads("width, num_heads"), "Heads(width=size, num_heads=2)"),
    "a default that is a size, and dropout": (
        heads("d_model=512, nhead=8, attn_drop=0.1, label_dim=1, name='a'", "d_model"),
        "Heads(d_model=size, nhead=2, attn_drop=0.0)",
    ),
    "steps of a convolution": (
        heads("dim, kv_proj_stride, dilation, kernel_size", "dim"),
        "Heads(dim=size, kv_proj_stride=1, dilation=1, kernel_size=3)",
    ),
    "features of a head": (
        heads("n_head, d_model, d_k, d_v", "d_model"),
        "Heads(n_head=2, d_model=size, d_k=size // 2, d_v=size // 2)",
    ),
    "an annotated config": (
        CONFIG.format(name="Shape") + heads("config: 'Shape'", "config.n_embd", SPLIT),
        "Heads(config=Shape(n_embd=size, n_head=2, dropout=0.0))",
    ),
    "a config that holds the one that is read": (
        "@dataclass\nclass Whole:\n    text_config: str = 'of another file'\n"
        + heads("config: Whole", "config.hidden_size"),
        "Heads(config=types.SimpleNamespace(hidden_size=size))",
    ),
    "the only config of the file": (
        CONFIG.format(name="ModelConfig") + heads("config", "config.n_embd", SPLIT),
        "Heads(config=ModelConfig(n_embd=size, n_head=2, dropout=0.0))",
    ),
    "a named tuple": (
        "class Shape(typing.NamedTuple):\n    dim: int\n    depth: int = 3\n"
        + heads("shape: Shape", "shape.dim"),
        "Heads(shape=Shape(dim=size, depth=1))",
    ),
    "a stand-in": (
        heads("args", "args.dim", "getattr(args, 'unknown', 3) + args.max_seq_len"),
        "Heads(args=types.SimpleNamespace(max_seq_len=64, dim=size))",
    ),
    "a stand-in for a dict": (
        heads("cfg", "cfg['emb_dim']", "cfg.get('unknown', 3) + cfg['n_heads']"),
        "Heads(cfg=dict(n_heads=2, emb_dim=size))",
    ),
    "a config within a config": (
        heads("config", "config.text_config.hidden_size"),
        "Heads(config=types.SimpleNamespace(text_config=types.SimpleNamespace(hidden_size=size)))",
    ),
    "a norm that is refused where it is none": (
        heads("dim, norm_layer=None", "dim", "assert norm_layer is not None, 'no norm'"),
        "Heads(dim=size, norm_layer=nn.LayerNorm)",
    ),
    "a tuple of sizes": (
        heads("dim, kernel_size: tuple[int, int]", "dim", "rows, columns = kernel_size"),
        "Heads(dim=size, kernel_size=(3, 3))",
    ),
    "a key of a table": (
        "NORMS = {'layer': nn.LayerNorm}\n"
        + heads("dim, kind: str", "dim", "self.norm = NORMS[kind](dim)"),
        "Heads(dim=size, kind='layer')",
    ),
    "the processor that is called as the class is": (
        "class OtherProcessor: ...\nclass HeadsProcessor2_0: ...\n"
        + heads("dim, processor", "dim", "assert type(processor).__name__.startswith('Heads')"),
        "Heads(dim=size, processor=HeadsProcessor2_0())",
    ),
    "a name of a config that says nothing": (
        heads("config", "config.hidden_size", "self.spam = config.spam"),
        "Heads(config=types.SimpleNamespace(spam=None, hidden_size=size))",
    ),
    "an enumeration": (
        "class Kind(enum.Enum):\n    NEAR = 1\n    FAR = 2\n" + heads("dim, kind: Kind", "dim"),
        "Heads(dim=size, kind=Kind.NEAR)",
    ),
    "a method that the code compares with": (
        heads("method, size", "size", "if method != 'dotted': raise ValueError(method)"),
        "Heads(method='dotted', size=size)",
    ),
    "what a base takes": (
        heads("dim, heads=8", "dim")
        + "class More(Heads):\n    def __init__(self, *, extra=1, **rest):\n"
        "        super().__init__(**rest)\n",
        "More(dim=size, heads=2)",
    ),
    "no argument": ("class Plain(nn.Module):\n    pass\n", "Plain()"),
    "a module with lazy parameters": (
        heads("dim", "dim", "self.lazy = nn.LazyLinear(dim)"),
        "Heads(dim=size)",
    ),
}


def last_class(folder: Path, text: str) -> Any:
    """The last class that a source defines."""
    return [v for v in vars(loaded(folder, text)).values() if isinstance(v, type)][-1]


@pytest.mark.parametrize("name", MADE)
def test_a_class_is_made_and_the_line_says_how(repository: Path, name: str) -> None:
    text, line = MADE[name]
    recipe = recipe_of(last_class(repository, text))
    assert recipe.line == line  # which was run
    guessed = {"a name of a config that says nothing": "config.spam", "a key of a table": "kind"}
    found = guessed.get(name, "method" if "compares" in name else "")
    assert recipe.guessed == ((found,) if found else ())
    assert not recipe().training
    assert not recipe.on_cpu  # nothing asks for a GPU
    if "size" in line:
        assert recipe(Widths(width=24)).get_parameter("proj.weight").shape == (24, 24)


def test_an_assertion_about_sizes_is_met_by_wider_ones(repository: Path) -> None:
    cls = last_class(repository, heads("dim, heads", "dim", "assert dim % (heads * 16) == 0"))
    recipe = recipe_of(cls)
    assert recipe.base.width == 64


def test_a_module_that_keeps_its_stand_in_can_be_copied_and_stored(repository: Path) -> None:
    lines = "self.config, self.heads = config, config.n_heads"
    made = recipe_of(last_class(repository, heads("config", "config.emb_dim", lines)))()
    for config in (copy.deepcopy(made).config, pickle.loads(pickle.dumps(made.config))):
        assert config.n_heads == config["n_heads"] == 2
        assert getattr(config, "spam", 3) == 3


def test_a_module_is_copied() -> None:
    module = nn.Linear(2, 2)
    made = recipe_of(module)()
    assert made is not module
    assert torch.equal(made.get_parameter("weight"), module.weight)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("self.big = nn.Linear(60_000, 60_000)", "makes more than 268,435,456 numbers"),
        (
            "import urllib.request; urllib.request.urlopen('http://a.b')",
            "DownloadError: it opens a connection",
        ),
        (
            "raise ValueError('seven heads\\nare needed')",
            r"ValueError: seven heads at source\.py:\d+ \(7 calls tried, the first Heads",
        ),
        ("self.lazy = Heads(dim)", "RecursionError"),
    ],
)
def test_why_a_class_cannot_be_made_is_said_in_a_line(
    repository: Path, lines: str, said: str
) -> None:
    with pytest.raises(MakingError, match=rf"^Heads cannot be made: .*{said}"):
        recipe_of(last_class(repository, heads("dim", "dim", lines)))


def test_what_a_constructor_asks_of_a_gpu_is_done_on_the_cpu(repository: Path) -> None:
    recipe = recipe_of(last_class(repository, heads("dim", "dim", "self.x = torch.ones(2).cuda()")))
    assert recipe.on_cpu
    assert recipe().get_parameter("proj.weight").device == torch.device("cpu")


def test_what_attributes_are_read_of_is_a_config_whatever_its_name(repository: Path) -> None:
    cls = last_class(repository, heads("__C", "__C.HIDDEN_SIZE"))
    assert recipe_of(cls)(Widths(width=6)).get_parameter("proj.weight").shape == (6, 6)


def test_a_choice_to_do_nothing_is_not_made(repository: Path) -> None:
    text = """
        class Choosing(nn.Module):
            def __init__(self, kind, dim):
                super().__init__()
                assert kind in ("none", "dot", "general")
                self.kind, self.proj = kind, nn.Linear(dim, dim)
        """
    recipe = recipe_of(last_class(repository, text))
    assert recipe.line == "Choosing(kind='dot', dim=size)"


def test_a_size_that_is_too_large_does_not_hide_what_others_raise(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnbench.calling.sandbox.LIMIT_ELEMENTS", 2**14)
    text = heads("dim, {}=None", "dim", "self.x = torch.ones(dim, 2 * dim); {}()")
    with pytest.raises(MakingError, match="'NoneType' object is not callable"):
        recipe_of(last_class(repository, text.replace("{}", "spam")))
    monkeypatch.undo()
    assert "act=nn.GELU" in recipe_of(last_class(repository, text.replace("{}", "act"))).line


def test_a_written_recipe_is_followed(repository: Path) -> None:
    cls = last_class(repository, CONFIG.format(name="Shape") + heads("a, b", "a.n_embd"))
    recipe = recipe_from("Heads(Shape(n_embd=E, n_head=H), b=[E])", cls)
    assert recipe(Widths(width=6)).get_parameter("proj.weight").shape == (6, 6)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Heads(", "is no expression of Python"),
        ("Heads(Spam)", "NameError: name 'Spam' is not defined"),
        ("3", "it gives int, not a module"),
    ],
)
def test_a_written_recipe_that_cannot_be_run_is_one_error(
    repository: Path, text: str, said: str
) -> None:
    with pytest.raises(MakingError, match=said):
        recipe_from(text, last_class(repository, heads("dim", "dim")))
