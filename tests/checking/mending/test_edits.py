"""Small changes of source text."""

from __future__ import annotations

import ast
import textwrap

import pytest

from attnbench.checking.mending.edit_context import Edit, Kind
from attnbench.checking.mending.edits import edits
from attnbench.checking.mending.running_code import signatures_of

TENSOR: Kind = ("tensor", 3, "floating", (2, 3, 4))
NAMES: dict[str, Kind] = {
    "query": TENSOR,
    "key": TENSOR,
    "scales": ("tensor", 1, "floating", (4,)),
    "mask": ("tensor", 2, "bool", (3, 3)),
    "real": ("tensor", 2, "bool", (2, 3)),
    "first": ("number", 2),
    "last": ("number", 5),
    "scale": ("number", 0.5),
    "causal": ("number", True),
    "self.norm": ("module", "LayerNorm"),
}


def made(source: list[str], ran: dict[int, dict[str, Kind]]) -> list[Edit]:
    """The changes of the first definition of a file."""
    tree = ast.parse("\n".join(source))
    return edits(tree.body[0], source, ran, signatures_of(tree))


def changed(line: str, before: str = "") -> set[str]:
    """The lines that the changes of the last line of a function make of it."""
    source = f"def attend(query, key, *, shift=False):\n    {before or 'pass'}\n    {line}".split(
        "\n"
    )
    return {edit.applied(source)[2].strip() for edit in made(source, {3: NAMES})}


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("return query", "return key"),
        ("x = (query * first + key)", "x = ((key * last + query))"),
        (
            "x = torch.cdist(query, key)",
            'x = torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist")',
        ),
        ("with torch.no_grad(): x = query", "with torch.enable_grad(): x = query"),
        ("x = query[:, first:last]", "x = query[:, first:first]"),
        ("x = query[:, first:last]", "x = query[:, first:(last) + 1]"),
        ("x = query[:, first:]", "x = query[:, :first]"),
        ("x = query[:, first:]", "x = query[:, first:last]"),
        ("x = query @ key.mT * scale", "x = query @ key.mT / scale"),
        ("x = query - key", "x = (key - query)"),
        ("x = query - key", "x = query"),
        ("x = query ** scale", "x = query ** (-scale)"),
        ("x = query.detach().norm()", "x = query.norm()"),
        ("x = query.mean(dim=-2)", "x = query.mean(dim=-1)"),
        ("x = query.repeat(first)", "x = query.repeat_interleave(first)"),
        ("x = (query == key).any(-1)", "x = (query == key).all(-1)"),
        ("x = torch.maximum(query, key)", "x = torch.minimum(query, key)"),
        ("x = torch.arange(first)", "x = torch.arange((first + last))"),
        ("if first < last: x = 1", "if first <= last: x = 1"),
        ("if first < last: x = 1", "if True: x = 1"),
        ("x = mask & mask", "x = mask | mask"),
        ("x = key.masked_fill(mask, 0)", "x = key.masked_fill((~mask), 0)"),
        ("x = first if causal else last", "x = last"),
        ("x = causal and mask is None", "x = (mask is None)"),
        ("x = view(query, first, last)", "x = view(query, last, first)"),
        ("x = attend(query, key)", "x = attend(query, key, shift=True)"),
        ("query = query * 2", "pass"),
        ("x = -query", "x = query"),
        ("x = query", "x = (query * scales)"),
        ("x = query[:, first]", "x = query[:, (first - 1)]"),
        ("x = torch.arange(first)", "x = (torch.arange(first) + last)"),
        ("x = torch.arange(0, last)", "x = torch.arange(first, last)"),
        ("x = torch.zeros(first)", 'x = (torch.zeros(first) - float("inf"))'),
        ("x = query.masked_fill(mask, -1e4)", 'x = query.masked_fill(mask, -float("inf"))'),
        (
            "x = query.masked_fill(mask, torch.finfo(x.dtype).min)",
            'x = query.masked_fill(mask, float("-inf"))',
        ),
        ("x = query.to(torch.float16)", "x = query.to(torch.float32)"),
        (
            "x = torch.einsum('bqd,bkd->bqk', query, key)",
            "x = torch.einsum('bqd,bkd->bkq', query, key)",
        ),
        ("x = torch.cat([query, key], 1)", "x = torch.cat([key, query], 1)"),
        ("x = query.reshape(first, last)", "x = query.transpose(1, 2).reshape(first, last)"),
        ("x = relu((query * key).sum(-1), 2)", "x = (relu(query, 2) * key).sum(-1)"),
        ("x = relu(query) * key", "x = relu((query * key))"),
        ("x = (query * 2).softmax(-1)", "x = (query).softmax(-1) * 2"),
        ("x = first % last", "x = ((first - 1) % last + 1)"),
        ("x = F.pad(mask, (0, 1))", "x = F.pad(mask, (0, 1), value=True)"),
        (
            "x, y = torch.bucketize(query, a), torch.bucketize(key, b)",
            "x, y = torch.bucketize(query, a, right=True), torch.bucketize(key, b, right=True)",
        ),
        ("x = mask.triu(1)", "x = mask.triu(1 + mask.shape[-1] - mask.shape[-2])"),
        ("x = torch.tril(mask)", "x = torch.tril(mask, 0 + mask.shape[-1] - mask.shape[-2])"),
        ("x = cdiv(first, last)", "x = (first // last)"),
        ("x = query.repeat(first, *[1] * 2)", "x = query.repeat_interleave(first, dim=0)"),
        ("x = query.exp()", "x = torch.exp(query - query.amax(dim=-1, keepdim=True))"),
        ("x = query.squeeze()", "x = query.squeeze(-1)"),
        ("x = query.amax(dim=(0, -1))", "x = query.amax(dim=(-1,))"),
        ("x = query / (1.0 + key)", "x = query / (torch.exp(-key) + key)"),
        ("x = query.max()", "x = query.amax(-1, keepdim=True)"),
        ("x = query", "x = (query * last ** -0.5)"),
        ("x = [rows[i] for i in index]", "x = [copy.deepcopy(rows[i]) for i in index]"),
        ("x = {n: part for n in index}", "x = {n: copy.deepcopy(part) for n in index}"),
        ("x = query.view(first, last, 4)", "x = query.reshape(last, first, 4).transpose(-3, -2)"),
        (
            "x = F.scaled_dot_product_attention(query, key, key)",
            "x = F.scaled_dot_product_attention(query, key, key, attn_mask=mask)",
        ),
        ("x = first * last", "x = (2 * first - 1) * last"),
        ("x = torch.cat([query] * first, dim=0)", "x = query.repeat_interleave(first, dim=0)"),
        ("x = query.repeat(1, first, 1)", "x = query.repeat_interleave(first, dim=1)"),
        ("x = query[:, :first]", "x = query[:, -(first):]"),
        ("x = where >= 0", "x = ((where >= 0) & (where < last))"),
        ("x = where < last", "x = ((where < last) & (where >= 0))"),
        ("x = self.attend(query, key)", "x = self.attend(query, key, shift=True)"),
        ("x = query.mul_(2)", "x = query.mul(2)"),
        ("x = first // last", "x = (-(-first // last))"),
        ("x = query - key < first", "x = (query - key).abs() < first"),
        (
            "x = F.scaled_dot_product_attention(query, key, key)",
            "x = F.scaled_dot_product_attention(query, key, key, scale=scale)",
        ),
        ("query += key", "query = key"),
        ("query += key", "query -= key"),
        ("x = torch.sqrt(query + key)", "x = (query + key).clamp_min(1e-12).sqrt()"),
        ("x = query / key.sum(-1)", "x = query / key.sum(-1).clamp_min(1e-12)"),
        ("x = query.softmax(-1)", "x = query.softmax(-1).nan_to_num()"),
        ("query //= key", "query = query // key"),
        ("query -= key * 2", "query = query - (key * 2)"),
        ("query.masked_fill_(mask, 0)", "query = query.masked_fill(mask, 0)"),
        ("x = scale or 1", "x = (scale if scale is not None else 1)"),
        ("x = first if last else 2", "x = first if (last is not None) else 2"),
        ("if scale: x = 1", "if (scale is not None): x = 1"),
        ("if causal and scale: x = 1", "if causal and (scale is not None): x = 1"),
        ("x = F.dropout(query, scale)", "x = F.dropout(query, scale, training=self.training)"),
        ("x = F.dropout(query, scale, True)", "x = F.dropout(query, scale, self.training)"),
        ("x = query[:first]", "x = query[:min(first, last)]"),
        ("x = query[first:]", "x = query[max(first, 0):]"),
        ("x = query @ key", "x = query @ key.mT"),
        ("x = project(query)", "x = project(self.norm(query))"),
        ("query = -key", "query = query + (-key)"),
        ("x = query[:, None] * first + key", "x = (key[:, None] * last + query)"),
        ("x = torch.ones_like(query).cumsum(1)", "x = query.cumsum(1)"),
        ("x = scale * (query + key)", "x = ((scale * query) + key)"),
        ("x = (query + key) * scale", "x = (query + (key * scale))"),
        ("x = query + key * scale", "x = ((query + key) * scale)"),
        ("x = query / scales", "x = query / scales.square()"),
        ("x = torch.where(mask, query, -1)", "x = torch.where(mask, query, query - first)"),
        ("x = query.cumsum(1)", "x = (query * real[:, :, None]).cumsum(1)"),
        (
            "x = query.softmax(-1)",
            'x = (query.masked_fill(~real[:, :, None], float("-inf"))).softmax(-1)',
        ),
    ],
)
def test_a_change_is_among_those_of_its_line(line: str, other: str) -> None:
    assert other in changed(line)


@pytest.mark.parametrize("text", ["f'{first}ij,jk->ik'", "'queries, keys -> values'"])
def test_words_and_parts_of_others_are_no_equations(text: str) -> None:
    written = text.rpartition("}")[2].strip("'")
    assert all(written in line for line in changed(f"x = {text}") if "->" in line)


def test_a_statement_is_moved_over_two_others() -> None:
    source = [
        "def attend(query):",
        "    x = query",
        "    y = x * 2",
        "    x = x + 1",
        "    return x + y",
    ]
    edited = made(source, {2: {}, 3: {}, 4: {}})
    found = {tuple(edit.applied(source)[1:4]) for edit in edited}
    one, two, three = (line for line in source[1:4])
    assert {(two, three, one), (three, one, two), (two, one, three)} <= found


def test_a_statement_is_moved_to_the_end_of_its_block() -> None:
    parts = ["    x = query", "    y = x * 2", "    z = y + 1", "    y = y - z"]
    for given, is_read in (("x", True), ("y", False)):
        source = ["def attend(query):", *parts, f"    return {given}"]
        edited = made(source, {line: {} for line in range(2, 6)})
        moved = [*parts[1:], parts[0]] in [edit.applied(source)[1:5] for edit in edited]
        assert moved == is_read


def test_an_expression_that_ran_elsewhere_in_the_file_takes_the_place_of_another() -> None:
    source = [
        "def plain(query):",
        "    return query * (first + last) ** -0.5",
        "def attend(query):",
        "    return query * query.shape[-1] ** -0.5",
        "def right(query):",
        "    return query * last ** -0.5",
    ]
    tree = ast.parse("\n".join(source))
    found = edits(tree.body[1], source, {2: NAMES, 4: NAMES}, {}, [tree.body[0], tree.body[2]])
    texts = {edit.applied(source)[3].strip() for edit in found}
    assert "return query * ((first + last) ** -0.5)" in texts
    assert "return query * (last ** -0.5)" not in texts  # it did not run


def test_no_name_is_replaced_by_what_it_is_set_to_and_few_expressions_take_the_place_of_one() -> (
    None
):
    assert "y = (key * 0.5)" not in changed("y = x * 2", "x = key * 0.5")
    others = [f"    x = query * {n + 0.5}" for n in range(40)]
    source = ["def attend(query, key):", *others, "    return key * 7"]
    found = made(source, dict.fromkeys(range(2, 43), NAMES))
    assert 1 < sum(edit.start[0] == 42 and "query * " in edit.text for edit in found) <= 20


def test_one_part_of_several_names_of_a_line_is_changed_at_once() -> None:
    names: dict[str, Kind] = dict.fromkeys(("cos_x", "sin_x", "cos_y", "sin_y", "row"), TENSOR)
    source = ["def turn(row):", "    return row * cos_y + row.flip(-1) * sin_y"]
    texts = {edit.applied(source)[1].strip() for edit in made(source, {2: names})}
    assert "return row * cos_x + row.flip(-1) * sin_x" in texts
    source[1] = "    return [row * cos_y + row * sin_y, row * cos_y + row * sin_y]"
    texts = {edit.applied(source)[1].strip() for edit in made(source, {2: names})}
    assert "return [row * cos_y + row * sin_y, row * cos_x + row * sin_x]" in texts


def test_no_expression_is_divided_by_itself() -> None:
    assert "x = (key + 1) / ((key + 1))" not in changed("x = (key + 1) / (query + 1)")


def test_numbers_that_are_equal_at_last_take_each_others_place_if_they_were_not_before() -> None:
    names: dict[str, Kind] = {"first": ("number", 4, (2, 4)), "last": ("number", 4, (4, 4))}
    for history, count in (((2, 4), 0), ((4, 4), 1)):
        names["last"] = ("number", 4, history)
        found = made(["def cut(first, last):", "    return first"], {2: names})
        assert sum(edit.text == "last" for edit in found) == count


@pytest.mark.parametrize(
    "line", ["x = query - key", "x = max(first, last)", "x = first if first < last else 0"]
)
def test_no_operand_takes_the_place_of_the_other(line: str) -> None:
    own, other = ("query", "key") if "query" in line else ("first", "last")
    lines = {text.replace(other, own) for text in (line, line.replace(own, other))}
    assert not lines & changed(line)


def test_what_is_never_read_is_put_beside_what_is_given_back() -> None:
    assert "return torch.cat([query, key], -1)" in changed("return query", "key = query")


def test_all_parts_of_a_line_that_are_cut_alike_are_cut_together() -> None:
    found = changed("k, v = query[:first], key[:first]", "x = query[:, : first + last]")
    assert "k, v = query[:first, :first + last], key[:first, :first + last]" in found


def test_every_change_keeps_the_number_of_lines_and_can_be_read() -> None:
    source = textwrap.dedent("""\
        def attend(query, key):
            scores = torch.matmul(
                query,
                key.mT,
            )
            if scores.shape[-1] > 2:
                scores = scores * 0.5
            return scores
        """).splitlines()
    ran: dict[int, dict[str, Kind]] = {line: {**NAMES, "scores": TENSOR} for line in range(2, 9)}
    found = made(source, ran)
    assert [edit.rank for edit in found] == sorted(edit.rank for edit in found)
    readable = 0
    for edit in found:
        lines = edit.applied(source)
        assert len(lines) == len(source)
        assert lines != source
        try:
            ast.parse("\n".join(lines))
            readable += 1
        except SyntaxError:  # one that reads as no Python is left out when it is compiled
            continue
    assert readable > 0.9 * len(found)


def test_lines_that_did_not_run_are_not_changed() -> None:
    source = ["def attend(query, key):", "    x = query", "    return key"]
    found = made(source, {3: NAMES})
    assert {edit.start[0] for edit in found} == {3}


def test_what_is_set_anew_in_each_turn_of_a_loop_may_be_a_sum_over_them() -> None:
    source = ["def attend(query, total):", "    for part in query:", "        total = part.sum()"]
    found = made(source, {3: {"total": ("number", 0.0), "part": TENSOR}})
    sums = [e.rank for e in found if e.applied(source)[2].endswith("total = total + part.sum()")]
    alone = [source[0], "    total = query.sum()"]
    found = made(alone, {2: {"total": ("number", 0.0), "query": TENSOR}})
    once = [e.rank for e in found if e.applied(alone)[1].endswith("total = total + query.sum()")]
    assert (sums, once) == ([2], [3])
