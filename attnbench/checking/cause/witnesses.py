"""Witnesses: the mistakes that explain a subject's wrong outputs on some small cases.

A mistake explains a subject if, on some of them, its wrong outputs equal those of textbook
attention with that mistake. Whatever is found is looked for a second time, with other sizes and
other numbers: what holds by chance, or in one call alone, is not said.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.checking.cause import mask_mistakes, option_mistakes, score_mistakes
from attnbench.checking.cause.own_answers import own_mistake
from attnbench.checking.cause.textbook_call import Call, Named
from attnbench.checking.known_causes import cause_of_mistake, mistake_of
from attnbench.oracle.references import widened
from attnbench.oracle.textbook import is_textbook, stages_of, textbook_output
from attnbench.subject.styles.sdpa_and_flash import other_layout
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

Answer = tuple[nn.Module, Inputs, Tensor]
"""A module, the inputs of a call, and its output."""

_LARGEST = 2**17
"""Most query-key pairs in a counterexample that is used as well."""

_MARGIN = 1e-3
"""Largest error of a correct float32 output, as a share of its largest value."""

_HALF_MARGIN = 4e-2
_HALVES = ("bfloat16", "float16")

_NARROW = {
    "computed_in_half": ("float32", 3e-5, 1e-2),
    "computed_in_float32": ("float64", 1e-10, 1e-5),
}
"""Mistakes of a dtype, and the range of their errors in it; those of a right result are smaller."""

_SHARE = 0.4
"""Share of the wrong outputs that a mistake must reproduce to explain them."""

_NO_DESIGN = ("merged_in_another_base", "value_wrong", "items_mixed", "transposed", "softmax_axis")
"""Causes that no mechanism has by design, even if it is meant to differ from the textbook."""

_CASES = (
    Case((2, 3), 4, 6, 8, 8, 5),
    Case((3,), 3, 3, 5, 5, 5, seed=1),
    Case((2,), 3, 7, 4, 4, 4, mask="causal", seed=2),
    Case((2,), 5, 5, 4, 4, 4, mask="causal", seed=3),
    Case((2,), 3, 7, 4, 4, 4, mask="causal_padding", seed=4),
    Case((2, 3), 4, 6, 8, 8, 5, mask="boolean", seed=5),
    Case((3,), 3, 3, 5, 5, 5, mask="boolean", seed=6),
    Case((3,), 3, 3, 5, 5, 5, mask="boolean_shared", seed=7),
    Case((3,), 4, 4, 5, 5, 5, mask="key_row", seed=8),
    Case((2, 2), 4, 4, 5, 5, 5, mask="key_padding", seed=9),
    Case((2, 2), 4, 6, 8, 8, 8, mask="bias", seed=10),
    Case((2, 3), 4, 6, 8, 8, 5, mask="floating", seed=11),
    Case((2, 2), 4, 6, 8, 8, 5, mask="padding", seed=12),
    Case((3,), 4, 6, 8, 8, 5, mask="lengths_2d", seed=13),
    Case((3,), 4, 4, 5, 5, 5, mask="padding", seed=20),
    Case((2, 2), 4, 6, 8, 8, 5, mask="empty_row", seed=14),
    Case((2,), 6, 6, 8, 8, 8, mask="window", seed=15),
    Case((1,), 2, 130, seed=16),
    Case((1,), 2, 257, seed=17),
    Case((2,), 3, 5, 8, 8, 8, regime="huge", seed=18),
    Case((2,), 3, 5, 70, 70, 8, seed=19),
    Case((2,), 3, 5, 8, 8, 8, mask="boolean", regime="huge", seed=21),
)


def explanations(subject: Subject, counterexamples: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of the mistakes that explain a subject's wrong outputs, the likeliest first.

    A mistake explains them if it reproduces many of the wrong outputs, and makes few of the right
    ones wrong, in two draws of the cases.

    Args:
        subject: a subject with known scores: those of a scoring function, or q·k times a scale.
        counterexamples: ids of cases at which an invariant failed; small ones are used as well.
    """
    names = _found(subject, counterexamples)
    for draw in (1, 2) if names else ():
        again = copy.copy(subject)
        object.__setattr__(again, "legal", lambda case, n=draw: subject.legal(redrawn(case, n)))
        kinds = {mistake_of(name) for name in _found(again, counterexamples)}
        if kinds or tally(again, counterexamples)[0]:
            ranks = {name: rank for name, rank in names.items() if mistake_of(name) in kinds}
            best = next(iter(ranks.values()), None)  # the others only resemble it in some calls
            return tuple(name for name, rank in ranks.items() if rank == best)
    return ()


def redrawn(case: Case, draw: int = 1) -> Case:
    """A case of other sizes and numbers; sizes of 1 and equal sizes stay so."""
    names = ("q_len", "kv_len", "query_size", "key_size", "value_size")
    sizes = {name: getattr(case, name) for name in names}
    more = {name: size + 2 * draw if size > 1 else size for name, size in sizes.items()}
    lead = tuple(size + 2 * draw if size > 1 else size for size in case.lead)
    return case.replace(lead=lead, seed=case.seed + 100 * draw, **more)


def _found(subject: Subject, counterexamples: Sequence[str]) -> dict[str, _Rank]:
    """The mistakes that explain the wrong outputs on one draw of the cases, the likeliest first."""
    other = other_layout(subject.spec)
    names = likeliest(*tally(subject, counterexamples)) if other is None else {}
    narrow = {case.dtype for case in map(Case.from_id, filter(None, counterexamples))} & {*_HALVES}
    for dtype in narrow if other is None and not names else ():
        names = names or likeliest(*tally(subject, dtype=dtype))
    if subject.kind == "mechanism" and not is_textbook(subject):
        names = {n: rank for n, rank in names.items() if cause_of_mistake(n) in _NO_DESIGN}
    return names or dict.fromkeys(found_otherwise(subject), (0.0, 0))


def found_otherwise(subject: Subject) -> tuple[str, ...]:
    """The mistake that is found otherwise than by its output, or none."""
    if (layout := other_layout(subject.spec)) is not None:
        return (f"layout_of_{layout}",)
    name = own_mistake(subject) or _narrow(subject)
    return () if name is None else (name,)


_Rank = tuple[float, int]
"""Right outputs that a mistake spoils for each wrong one that it makes, and minus how many those
are; less is likelier.
"""


def likeliest(wrong_count: int, counts: Mapping[str, tuple[int, int]]) -> dict[str, _Rank]:
    """The mistakes in a tally that explain enough of the wrong outputs, the likeliest first."""
    ranking = [
        ((spoils / hits, -hits), name)
        for name, (hits, spoils) in counts.items()
        if hits >= _SHARE * wrong_count and spoils <= hits
    ]
    return {name: rank for rank, name in sorted(ranking)}


def tally(
    subject: Subject, counterexamples: Sequence[str] = (), dtype: str = "float32"
) -> tuple[int, dict[str, tuple[int, int]]]:
    """Count the wrong outputs, and per mistake the ones it reproduces and right ones it spoils."""
    wrong_count = 0
    hits, spoils = Counter[str](), Counter[str]()
    with torch.no_grad():
        for call, output, margin in _answers(subject, counterexamples, dtype):
            expected = call.compared(call.stages.output)
            is_wrong = not agree(output, expected, margin)
            wrong_count += is_wrong
            mistakes = [
                (n, other) for n, other in mistaken(call) if not agree(other, expected, 4 * margin)
            ]
            if is_wrong:
                hits.update({name for name, other in mistakes if reproduces(other, output, margin)})
            else:
                spoils.update({name for name, _ in mistakes})
    return wrong_count, {name: (count, spoils[name]) for name, count in hits.items()}


def mistaken(call: Call) -> Named:
    """Yield the name and output ``(*lead, L, Ev)`` of each mistake that a call could show.

    Slots that no query may see are tried both unchanged and as zeros, as some code replaces them
    first.
    """
    visible = call.stages.allowed.any(-2).unsqueeze(-1)
    for variant in (call,) if bool(visible.all()) else (call, call.silence(visible)):
        for topic in (*option_mistakes.TOPICS, *mask_mistakes.TOPICS, *score_mistakes.TOPICS):
            for name, output in topic(variant):
                yield name, call.compared(output)


def cause_of_output(inputs: Inputs, output: Tensor) -> str | None:
    """The cause of the first mistake that reproduces a wrong output of scaled dot products.

    ``None`` where no known mistake does.
    """
    call, output = Call(inputs, stages_of(inputs), scaled=True), output.detach().cpu().double()
    if not call.stages.finite_value.numel() or call.stages.weights.numel() > _LARGEST:
        return None
    margin = _margin(call, torch.finfo(inputs.query.dtype).eps)
    for name, other in mistaken(call):
        if reproduces(other, output, margin) and not agree(other, call.stages.output, 4 * margin):
            return cause_of_mistake(name)
    return None


def _answers(
    subject: Subject, counterexamples: Sequence[str], dtype: str
) -> Iterator[tuple[Call, Tensor, float]]:
    """Yield calls, the subject's outputs, and their allowed errors."""
    if subject.kind == "layer":
        return
    declared = subject.kind == "mechanism" and subject.maker.reference is not None
    if declared and not is_textbook(subject):
        return
    cases = [Case.from_id(text) for text in counterexamples if text]
    cases = [c for c in cases if c.q_len * c.kv_len <= _LARGEST and c.regime == "normal"]
    own = (case.replace(dtype=dtype) for case in _CASES)
    for case in dict.fromkeys(map(subject.legal, (*own, *cases))):
        if case.dtype not in subject.dtypes or subject.unsupported(case) is not None:
            continue
        with contextlib.suppress(Exception, SystemExit):  # refusals and errors say nothing here
            module, inputs = subject.build(case)
            for call_inputs in (inputs, *_with_options(subject, case, inputs)):
                answer = subject.output(module, call_inputs)
                yield compared(subject, module, call_inputs, answer)


def compared(
    subject: Subject, module: nn.Module, inputs: Inputs, answer: Tensor
) -> tuple[Call, Tensor, float]:
    """A call, its output in float64, and the allowed error."""
    scaled, stages = subject.kind == "mechanism", stages_of(inputs)
    if not scaled:
        scores_of, inputs64 = widened(module, inputs)
        stages = stages.replace(scores=scores_of(inputs64.query, inputs64.key))
    call = Call(inputs, stages, scaled, subject.conventions.empty_rows == "zeros")
    margin = _margin(call, subject.eps(inputs.query.dtype))
    return call, call.compared(answer.cpu().double()), margin


def _margin(call: Call, eps: float) -> float:
    """The largest error of a correct output of a dtype."""
    share = _HALF_MARGIN if eps > _MARGIN / 2 else _MARGIN
    return share * float(call.stages.finite_value.abs().amax())


def _with_options(subject: Subject, case: Case, inputs: Inputs) -> Iterator[Inputs]:
    """The same call with a soft cap, and with grouped heads."""
    mask = inputs.attn_mask
    if "softcap" in subject.accepts and case.mask in ("none", "padding"):
        yield inputs.replace(softcap=0.5)
    shared = mask is None or mask.dim() < 3 or mask.shape[-3] == 1
    if "enable_gqa" in subject.accepts and len(case.lead) > 1 and case.kv_len <= 16 and shared:
        heads = inputs.query.repeat_interleave(2, dim=-3)
        yield inputs.replace(query=heads, enable_gqa=True)


def _narrow(subject: Subject) -> str | None:
    """The mistake of results that are only as accurate as those of a narrower dtype."""
    if subject.conventions.internal_dtype or not is_textbook(subject):
        return None
    for name, (dtype, least, most) in _NARROW.items():
        case = subject.legal(_CASES[0]).replace(dtype=dtype)
        with contextlib.suppress(Exception, SystemExit), torch.no_grad():
            module, inputs = subject.build(case)
            output = subject.output(module, inputs).cpu().double()
            error = (output - textbook_output(inputs)).abs().max()
            if dtype in subject.dtypes and least < float(error) < most:
                return name
    return None


def reproduces(mistake: Tensor, output: Tensor, margin: float, *, empty: bool = False) -> bool:
    """Whether a mistake reproduces an output; rows without keys may be NaN in it.

    Where all rows are such, ``empty`` is the answer.
    """
    if mistake.shape != output.shape:
        return False
    lost = (mistake == 0).all(-1, keepdim=True) & output.isnan().all(-1, keepdim=True)
    return empty if bool(lost.all()) else agree(output.masked_fill(lost, 0.0), mistake, margin)


def agree(first: Tensor, second: Tensor, margin: float) -> bool:
    """Whether two outputs agree, NaN with NaN."""
    if first.shape != second.shape:
        return False
    close = (first - second).abs() <= margin
    return bool((close | (first.isnan() & second.isnan()) | (first == second)).all())
