from attnbench_plugins import properties

from attnbench.checking.plan import select_invariants
from attnbench.invariants.toolkit import decorator


def test_every_invariant_has_a_hint_and_every_hint_an_invariant() -> None:
    invariants = select_invariants(None)
    assert [one.name for one in invariants if not one.hint] == []
    assert {*decorator.HINTS, *properties.HINTS} <= {one.name for one in invariants}
