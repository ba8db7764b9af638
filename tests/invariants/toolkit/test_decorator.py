"""An invariant is declared beside its check, whose name and docstring it takes."""

from types import ModuleType

import pytest

from attnbench.cases.case import Case
from attnbench.cases.case_space import space_of
from attnbench.cases.space_parts import Space
from attnbench.errors import UsageError
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.registry.discovery import call_hooks
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject
from attnbench.testing import LayerCase, layer_invariant


@invariant(hint="A promise is forgotten.", law=True, masks=("causal",))
def keeps_its_word(subject: Subject, case: Case) -> None:
    """It keeps what it
    promised.

    Nobody asks what else is written here.
    """


@invariant(mask=("causal",))
def mistyped(subject: Subject, case: Case) -> None:
    """Its decorator has an argument that no space of cases has."""


def test_name_statement_and_cases_come_from_the_check_and_its_decorator() -> None:
    assert keeps_its_word.name == "keeps_its_word"
    assert keeps_its_word.statement == "It keeps what it promised."
    assert keeps_its_word.hint == "A promise is forgotten."
    assert keeps_its_word.law
    assert keeps_its_word.cases is not None
    (subject,) = resolve("scaled_dot")
    (space,) = space_of(keeps_its_word.cases(subject)).parts
    assert isinstance(space, Space)
    assert space.domain.masks == ("causal",)


def test_an_argument_that_no_space_of_cases_has_is_named() -> None:
    assert mistyped.cases is not None
    (subject,) = resolve("scaled_dot")
    with pytest.raises(UsageError, match="mask"):
        mistyped.cases(subject)


def test_a_check_on_layers_gets_the_layer_at_the_case() -> None:
    given: list[LayerCase] = []

    @layer_invariant()
    def sees_a_layer(layer: LayerCase) -> None:
        """It is given a layer."""
        given.append(layer)

    assert sees_a_layer.kinds == ("layer",)
    (subject,) = resolve("causal_attention")
    case = subject.legal(Case((2,), 3, 3, 8, 8, 8))
    sees_a_layer.check(subject, case)
    assert (given[0].subject, given[0].case) == (subject, case)
    assert given[0].hidden.shape == (2, 3, 8)


def test_a_module_without_hooks_gives_its_invariants_also_when_code_replaced_a_check() -> None:
    module = ModuleType("of_one_invariant")
    vars(module)["promise"] = keeps_its_word
    check = keeps_its_word.check
    try:
        object.__setattr__(keeps_its_word, "check", print)
        assert call_hooks(module) == (keeps_its_word,)
    finally:
        object.__setattr__(keeps_its_word, "check", check)
