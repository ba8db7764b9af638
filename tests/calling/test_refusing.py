"""What is said of code that cannot be made or called, and that lines to paste can be run."""

import re
import traceback
from pathlib import Path

import pytest
from attnbench_plugins.adapters.adaptation import spec_of
from attnbench_plugins.adapters.making.maker import MakingError
from attnbench_plugins.adapters.making.recipes import recipe_from, recipe_of
from attnbench_plugins.adapters.refusing import Raised, not_called

import attnbench
from attnbench.calling.signature import call_arguments
from attnbench.errors import StyleError
from attnbench.subject.lookup import resolve
from tests.calling.conftest import loaded

SOURCE = """
class Attention(nn.Module):
    def __init__(self, dim, spam):
        super().__init__()
        self.table = spam["table"]

class Layer(nn.Module):
    def forward(self, x, eggs, ham=None): ...

def plain(query, spam, key): ...
def pairs(x, spam, mask): ...
def unknown(a, b): ...
"""


def test_what_cannot_be_guessed_of_a_constructor_is_marked(repository: Path) -> None:
    with pytest.raises(MakingError) as raised:
        recipe_of(loaded(repository, SOURCE).Attention)
    assert str(raised.value).splitlines() == [
        "Attention cannot be made: TypeError: 'int' object is not subscriptable at source.py:10 "
        "(21 calls tried, the first Attention(dim=E, spam=E))",
        'Say what spam should be, for E features: --make "Attention(dim=E, spam=...)".',
    ]


@pytest.mark.parametrize(
    ("name", "said", "call"),
    [
        ("Layer", "(x as hidden); say what eggs should be.", "f(x=hidden, eggs=...)"),
        (
            "plain",
            "(query as query, key as key); say what spam should be.",
            "f(query=query, spam=..., key=key)",
        ),
        ("pairs", "mask as mask); say what spam should be.", "f(x=hidden, spam=..., mask=mask)"),
        ("unknown", "(none says what it is); say what a and b should be.", "f(a=..., b=...)"),
    ],
)
def test_of_what_cannot_be_called_the_call_to_complete_is_printed(
    repository: Path, name: str, said: str, call: str
) -> None:
    target = getattr(loaded(repository, SOURCE), name)
    named = call_arguments(target) or []
    first, second, roles, example = not_called(
        target, named, [Raised("TypeError: no")]
    ).splitlines()
    assert roles == (
        "Or say which is query, key, value, memory, hidden, mask or lengths, or its value: "
        f'--call "{call}".'
    )
    assert first == (
        f"{name} cannot be called: of 1 calls that were tried the likeliest raises TypeError: no"
    )
    assert second.endswith(said)
    assert "example=(args, kwargs)" in example
    told = not_called(target, named, [], said=True)
    assert "That is as --call says" in told
    assert "read by their names" not in not_called(
        target, named, [Raised("'int' object is not callable")]
    )


REFUSED = """
class Attention(nn.Module):
    def __init__(self, dim, {taken}):
        super().__init__()
        self.table, self.proj = {made}, nn.Linear(dim, dim)
    def forward(self, x{more}):
        q = self.proj(x){used}
        return (q @ q.mT).softmax(-1) @ x
"""


@pytest.mark.parametrize(
    ("taken", "made", "filled"),
    [
        ("spam", "spam['table']", "dict(table=1)"),
        ("window_size", "window_size['table']", "dict(table=1)"),  # of which tuples are tried
        ("spam, eggs=3", "spam[eggs - 3].strip()", "['a']"),
        ("spam", "torch.zeros(2) @ spam.matrix", "types.SimpleNamespace(matrix=torch.zeros(2))"),
    ],
)
def test_the_printed_way_to_make_it_is_right_once_it_is_filled_in(
    repository: Path, taken: str, made: str, filled: str
) -> None:
    target = loaded(repository, REFUSED.format(taken=taken, made=made, more="", used="")).Attention
    with pytest.raises(MakingError) as raised:
        spec_of(target)
    printed = re.search(r'--make "(.*)"', str(raised.value))
    assert printed is not None
    assert spec_of(recipe_from(printed[1].replace("...", filled), target)).name == "Attention"


@pytest.mark.parametrize(
    ("more", "used", "filled"),
    [
        (", spam", " + spam['shift']", "{'shift': 1.0}"),
        (", eggs, spam=2", " * eggs.count(2)", "[2]"),
    ],
)
def test_the_printed_call_is_right_once_it_is_filled_in(
    repository: Path, more: str, used: str, filled: str
) -> None:
    target = loaded(repository, REFUSED.format(taken="spam=1", made="1", more=more, used=used))
    with pytest.raises(StyleError) as raised:
        spec_of(target.Attention)
    printed = re.search(r'--call "f(.*)"', str(raised.value))
    assert printed is not None
    (subject,) = resolve(target.Attention, f"called{printed[1].replace('...', filled)}")
    assert f"always {more.split(', ')[1]}={filled}" in str(subject.spec.notes[0])


UNFILLED = """
class Chosen(nn.Module):
    def __init__(self, dim, heads=3, wide=None):
        super().__init__()
        if heads != 3:
            raise ValueError("three heads")

class Filled(nn.Module):
    def __init__(self, embed_dim, vdim=None):
        super().__init__()
        self.out = nn.Linear(vdim, embed_dim)

class Nested(nn.Module):
    def __init__(self, conf):
        super().__init__()
        assert conf.spam.eggs == "ham"
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Chosen", 'Say how it is made, for E features: --make "Chosen(dim=E, heads=...)".'),
        (
            "Nested",
            'Say what spam and eggs should be, for E features: --make "Nested('
            'conf=types.SimpleNamespace(spam=types.SimpleNamespace(eggs=...)))".',
        ),
    ],
)
def test_what_is_offered_is_not_what_failed(repository: Path, name: str, said: str) -> None:
    with pytest.raises(MakingError) as raised:
        recipe_of(getattr(loaded(repository, UNFILLED), name))
    assert str(raised.value).splitlines()[1] == said


def test_a_size_that_none_stands_for_is_given_at_last(repository: Path) -> None:
    assert (
        recipe_of(loaded(repository, UNFILLED).Filled).line == "Filled(embed_dim=size, vdim=size)"
    )


ROLES = """
class Pair(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q = nn.Linear(dim, dim, bias=False)
    def forward(self, aa, bb, cc):
        scores = (self.q(aa)[:, None] * bb).sum(-1).masked_fill(cc == 0, -1e9)
        return (scores.softmax(-1)[..., None] * bb).sum(1), scores.softmax(-1)

class Flashing(nn.Module):
    def forward(self, queries, keys, values):
        scores = torch.einsum("blhe,bshe->bhls", queries, keys)
        return torch.einsum("bhls,bshd->blhd", scores.softmax(-1), values)
"""


def test_what_arguments_are_may_be_said_in_a_call(repository: Path) -> None:
    target = loaded(repository, ROLES).Pair
    with pytest.raises(StyleError, match=r'--call "f\(aa=..., bb=..., cc=...\)"'):
        spec_of(target)
    (subject,) = resolve(target, "called(aa=query, bb=memory, cc=mask)")
    assert "called with aa (B, E), bb (B, S, E); cc (B, S), True may attend" in subject.about[0]
    with pytest.raises(StyleError, match="'spam' is none of hidden, query"):
        resolve(target, "called(aa=spam)")
    with pytest.raises(StyleError, match="has no argument 'dd', but aa, bb, cc"):
        resolve(target, "called(dd=query)")


def test_a_class_is_called_in_the_layout_of_a_style(repository: Path) -> None:
    target = loaded(repository, ROLES).Flashing
    for style in ("flash", "flash(queries=query, keys=key, values=value)"):
        (subject,) = resolve(target, style)
        assert "called with queries (B, L, H, E), keys (B, S, H, E)" in subject.about[0]


def test_an_error_in_python_ends_at_the_line_of_the_user(repository: Path) -> None:
    with pytest.raises(StyleError, match=r"^Nested cannot be made: ") as raised:
        attnbench.check(loaded(repository, UNFILLED).Nested)
    assert raised.value.__suppress_context__
    assert raised.value.__cause__ is None
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert names == [test_an_error_in_python_ends_at_the_line_of_the_user.__name__, "called"]
