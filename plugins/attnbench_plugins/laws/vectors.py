"""Laws: invariants that hold only for subjects that declare them.

Those about where query and key lie are also held far from the origin, on numbers that the dtype
represents exactly, so that moving them costs no rounding. A subject may multiply them by factors
before it subtracts, which rounds each of them once more: what changes further is its doing.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from attnbench import Case, Inputs, InvariantViolation, Subject
from attnbench.testing import (
    Baseline,
    Oracle,
    agree_within,
    benign,
    has_scores,
    holds,
    invariant,
    needs,
)

_FAR = {
    "float64": (1024.0, 64.0),
    "float32": (1024.0, 64.0),
    "float16": (32.0, 16.0),
    "bfloat16": (16.0, 4.0),
}
"""By dtype, an offset, and a grid of 1/n on which sums with it are exact."""


class _Law:
    """A subject at a case, its query and key on a grid, at the origin or at an offset.

    A scoring function is held to its scores, a kernel or a mechanism to its output.
    """

    def __init__(self, subject: Subject, case: Case, *, far: bool | None = None) -> None:
        base = Baseline(subject, case)
        self.offset, self.grid = _FAR[case.dtype]
        self.base = base.on(self.place(base.inputs))
        self.inputs = self.base.inputs
        self.where = ""
        if case.variant("place", "near") == "far" if far is None else far:
            self.base = self.base.on(self.moved(self.inputs))
            self.where = f"{self.offset:g} from the origin, "
        self.what = "scores" if subject.kind == "scoring" else "output"

    def place(self, inputs: Inputs) -> Inputs:
        """The inputs with query and key rounded to the grid."""
        near = self.grid * 2.0
        query, key = (
            (t.double() * self.grid).round().clamp(-near, near).div(self.grid).to(t.dtype)
            for t in (inputs.query, inputs.key)
        )
        return inputs.replace(query=query, key=key)

    def moved(self, inputs: Inputs) -> Inputs:
        """The inputs with query and key moved far from the origin, without rounding."""
        return inputs.replace(query=inputs.query + self.offset, key=inputs.key + self.offset)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """The scores of other queries and keys."""
        given = self.base.inputs.replace(query=query, key=key)
        return needs(self.base.subject.scores(self.base.module, given)).detach()

    def budget(self, query: Tensor, key: Tensor, units: float = 16.0) -> Tensor:
        """``(*lead, L, S)``: what rounding query, key and parameters by some units moves scores."""
        base = self.base
        given = base.inputs.replace(query=query, key=key, attn_mask=None, valid_lens=None)
        oracle = Oracle(base.subject, base.module, given.replace(is_causal=False))
        return oracle.score_budget(units=units)

    def same(
        self, inputs: Inputs, change: str, other: str, units: float = 16.0, *, there: float = 0.0
    ) -> None:
        """Raise where other inputs do not give the same scores, or output.

        Args:
            inputs: the other ones.
            change, other: what they and the first ones are called.
            units: number of units in the last place by which each feature may be rounded.
            there: number of units by which each feature of the other inputs may be rounded. Those
                of the first ones allow nothing where they are exactly 0.
        """
        if self.what == "output":
            self.base.expect(self.base.run(inputs), f"{self.where}{change} output", other)
            return
        mine = self.base.inputs
        expected = self.scores(mine.query, mine.key)
        budget = self.budget(mine.query, mine.key, units)
        if there:
            budget = torch.maximum(budget, self.budget(inputs.query, inputs.key, there))
        got = self.scores(inputs.query, inputs.key)
        agree_within(got, expected, budget, f"{self.where}{change} scores", other)


_law = functools.partial(
    invariant,
    cases=lambda subject, **narrowed: benign(
        subject,
        masks=("none", "boolean"),
        regimes=("normal",),
        max_features=65,
        variants={"place": ("near", "far")},
        **narrowed,
    ),
    law=True,
)


@_law(
    hint="query and key enter other than by their difference, or it is expanded",
    beyond=(Case((1,), 3, 33, 8, 8, 8),),
)  # torch.cdist expands squares of more than 25 rows
def translation_invariant(subject: Subject, case: Case) -> None:
    """Scores are the same if query and key are moved together, however far."""
    law = _Law(subject, case, far=False)
    change = f"query and key both moved by {law.offset:g},"
    law.same(law.moved(law.inputs), change, "the call at the origin", there=2.0)


@_law(hint="features are treated unlike one another, beyond products and distances")
def rotation_invariant(subject: Subject, case: Case) -> None:
    """Scores are the same if query and key are rotated together."""
    law = _Law(subject, case)
    inputs, size = law.base.inputs, case.query_size
    order = torch.randperm(size, generator=law.base.generator)
    signs = torch.randint(2, (size,), generator=law.base.generator) * 2 - 1
    turned = (t[..., order] * signs.to(t) for t in (inputs.query, inputs.key))
    query, key = turned
    change = "features of query and key both permuted and flipped,"
    law.same(inputs.replace(query=query, key=key), change, "the call without that")
    if law.where or case.is_narrow:
        return  # a general rotation is not exact
    noise = torch.randn(size, size, generator=law.base.generator, dtype=torch.float64)
    turn = torch.linalg.qr(noise)[0]
    query, key = ((t.cpu().double() @ turn).to(t) for t in (inputs.query, inputs.key))
    rotated = inputs.replace(query=query, key=key)
    # the rotation rounds too: each feature is a sum, and the turn itself is one in float64 only
    change = "query and key both rotated,"
    law.same(rotated, change, "the call without that", units=64.0, there=64.0)


@_law(hint="the query enters the output")
def query_independent(subject: Subject, case: Case) -> None:
    """The output is the same for any query."""
    law = _Law(subject, case)
    base = law.base
    noise = torch.randn(base.inputs.query.shape, generator=base.generator, dtype=torch.float64)
    query = base.inputs.query + noise.to(base.inputs.query)
    change = f"{law.where}with other queries, output"
    base.expect(base.run(base.inputs.replace(query=query)), change, "the call with the first ones")


@_law(hint="a nonlinearity, a norm or a constant enters the scores", applies=has_scores)
def bilinear(subject: Subject, case: Case) -> None:
    """Scores are linear in the query and in the key."""
    law = _Law(subject, case)
    query, key = law.base.inputs.query, law.base.inputs.key
    for name, one, fixed in (("query", query, key), ("key", key, query)):
        other = one.roll(1, -2)
        # powers of two and a difference of neighbours on the grid, so that no input is rounded
        difference, *pairs = (
            (moved, fixed) if name == "query" else (fixed, moved)
            for moved in (2 * one - 2 * other, one, other)
        )
        got, (first, second) = law.scores(*difference), (law.scores(*pair) for pair in pairs)
        expected = 2 * first.double() - 2 * second.double()
        budget = sum((2 * law.budget(*pair) for pair in pairs), torch.zeros(()))
        agree_within(
            got,
            expected,
            budget,
            f"{law.where}scores of 2 * {name} - 2 * {name}.roll(1, -2)",
            "the same sum of their scores",
        )


@invariant(
    hint="a factor or a norm is missing, or rounds above 1",
    masks=("none",),
    max_len=17,
    applies=has_scores,
    law=True,
)
def bounded_by_one(subject: Subject, case: Case) -> None:
    """Scores lie between -1 and 1."""
    module, inputs = subject.build(case)
    scores = needs(subject.scores(module, inputs))
    bound = 1.0 + 4 * torch.finfo(scores.dtype).eps
    holds(scores.abs() <= bound, "scores", scores, "between -1 and 1")


@_law(hint="the scores do not fall with the distance everywhere", applies=has_scores)
def monotone_in_distance(subject: Subject, case: Case) -> None:
    """A key nearer to the query scores no less than one further away."""
    law = _Law(subject, case)
    query, key = law.base.inputs.query, law.base.inputs.key
    scores = law.scores(query, key).cpu().double()
    slack = law.budget(query, key)
    difference = query.cpu().double().unsqueeze(-2) - key.cpu().double().unsqueeze(-3)
    distance = difference.square().sum(-1)
    order = distance.argsort(-1)
    near, far = order[..., :-1], order[..., 1:]
    (s_near, s_far), (t_near, t_far), (d_near, d_far) = (
        (t.gather(-1, near), t.gather(-1, far)) for t in (scores, slack, distance)
    )
    rising = (s_far > s_near + t_near + t_far) & (d_far > d_near)
    if bool(rising.any()):
        place = tuple(rising.nonzero()[0].tolist())
        row = ", ".join(map(str, place[:-1]))
        one, other = int(far[place]), int(near[place])
        raise InvariantViolation(
            f"{law.where}scores[{row}, {one}] = {float(s_far[place]):.6g}, of a key at distance "
            f"{float(d_far[place]) ** 0.5:.4g} from its query, but should be at most "
            f"scores[{row}, {other}] = {float(s_near[place]):.6g}, of a key at distance "
            f"{float(d_near[place]) ** 0.5:.4g}"
        )
