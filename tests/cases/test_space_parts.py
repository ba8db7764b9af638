"""The scheduled cases of a subject."""

from __future__ import annotations

from attnbench.cases.case import Case
from attnbench.cases.domain import Domain
from attnbench.cases.space_parts import Space


class Square:
    """A subject of as many keys as queries."""

    dtypes = ("float32",)

    def legal(self, case: Case) -> Case:
        return case.replace(kv_len=case.q_len)

    def takes_mask(self, kind: str) -> bool:
        return kind == "none"


def test_no_row_of_the_schedule_is_made_long_in_both_sizes() -> None:
    domain = Domain(dtypes=("float32",), masks=("none",))
    cases = Space(Square(), domain).scheduled(0)
    assert max(case.q_len for case in cases) == 257
