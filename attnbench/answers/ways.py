"""The ways that ``attnbench diff`` compares: two subjects, or two uses of one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from attnbench.answers.difference import Way, compare_ways
from attnbench.cases.case import Case
from attnbench.errors import InputsError, UsageError, nearest
from attnbench.registry.address import Address
from attnbench.subject.input_files import load_inputs
from attnbench.subject.layer import LayerSubject
from attnbench.subject.lookup import resolve
from attnbench.subject.styles.tiny_models import CACHES, cache_spec
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_MASKS = ("none", "boolean", "causal", "padding", "floating", "empty_row")
_LENGTH = 17
_CHUNK = 5

Tensors = Sequence[Tensor]
Pair = tuple[str, Way, Way, list[Tensor]]


def difference(
    targets: Sequence[str | Address],
    *,
    question: str | None = None,
    values: Sequence[str] = (),
    dtype: str = "float32",
    inputs: str | None = None,
    weights: str | None = None,
    logits: bool = False,
) -> list[dict[str, Any]]:
    """Answer whether two ways differ by rounding; called by the command in a child process.

    Args:
        targets: addresses: two subjects, or one for a question.
        question: a key of :data:`QUESTIONS`, for one subject.
        values: the two values to compare, for questions that have some.
        dtype: name of the dtype in which both run.
        inputs: a safetensors file with query, key and value, instead of drawn ones.
        weights: a safetensors file with a state dict for the module.
        logits: whether the last axis of the output holds logits.

    Returns:
        A row for each call that was compared: fields of :class:`Difference`, and with ``logits``
        the share of ``flipped`` argmaxes and the mean ``kl``.

    Raises:
        UsageError: the ways do not fit each other, or the question does not fit the subject.
    """
    subjects = [subject for target in targets for subject in resolve(target)]
    if len(subjects) != (2 if question is None else 1):
        wanted = "two subjects" if question is None else f"one subject for --{question}"
        names = ", ".join(subject.name for subject in subjects) or "none"
        raise UsageError(f"diff compares {wanted}, but got {len(subjects)}: {names}.")
    wide = getattr(torch, dtype)
    if question is None:
        pairs = _of_two(subjects[0], subjects[1], wide, inputs, weights)
    else:
        if inputs is not None and isinstance(subjects[0], LayerSubject):
            raise UsageError(
                "--inputs holds query, key and value, and a layer takes hidden states."
            )
        pairs = QUESTIONS[question](subjects[0], values, wide, inputs, weights)
    rows = []
    for words, first, second, given in pairs:
        row: dict[str, Any] = {"first": first.name, "second": second.name, "call": words}
        found = compare_ways(first, second, given)
        row |= found.to_dict() | (_as_logits(first, second, given) if logits else {})
        rows.append(row)
    if not rows:
        raise UsageError(
            f"{' and '.join(s.name for s in subjects)} have no call in common that can be compared."
        )
    return rows


def _as_logits(first: Way, second: Way, inputs: Tensors) -> dict[str, float]:
    with torch.no_grad():
        one, two = (
            way.call(
                way.module, [t.to(way.dtype) if t.is_floating_point() else t for t in inputs]
            ).double()
            for way in (first, second)
        )
    log_p, log_q = one.log_softmax(-1), two.log_softmax(-1)
    return {
        "flipped": float((one.argmax(-1) != two.argmax(-1)).double().mean()),
        "kl": float((log_p.exp() * (log_p - log_q)).sum(-1).mean()),
    }


def _made(subject: Subject, case: Case, weights: str | None) -> nn.Module:
    """The subject's module in evaluation mode, with weights from a file if one is given."""
    module, _ = subject.build(case)
    if weights is None:
        return module
    try:
        state = load_file(weights)
        module.load_state_dict(state)
    except Exception as error:
        raise InputsError(f"--weights {weights} do not fit {subject.name}: {error}") from None
    return module.to(getattr(torch, case.dtype))


def _calls(
    subject: Subject, dtype: torch.dtype, file: str | None
) -> Iterator[tuple[str, Case, Any, list[Tensor], Callable[[Inputs, Tensors], Inputs]]]:
    """Yield calls: words, case, inputs, their floating tensors, and how to put those back."""
    name = str(dtype).removeprefix("torch.")
    if isinstance(subject, LayerSubject):
        for mask in subject.masks:
            case = subject.legal(Case((3,), _LENGTH, _LENGTH, 64, 64, 64, name, mask=mask, seed=1))
            hidden = subject.inputs(case)
            yield f"L={case.q_len}, {mask} mask", case, hidden, [hidden.hidden], _with_hidden
        return
    if file is not None:
        own = load_inputs(file).map(lambda t: t.to(dtype))
        sizes = (own.query.shape[-1], own.key.shape[-1], own.value.shape[-1])
        case = Case((2,), 3, 5, *sizes, name)
        yield file, case, own, [own.query, own.key, own.value], _with_tensors
        return
    for mask in _MASKS:
        case = subject.legal(Case((2, 3), 9, _LENGTH, 16, 16, 16, name, mask=mask, seed=1))
        if subject.unsupported(case) is None and case.dtype == name:
            given = subject.inputs(case)
            tensors = [given.query, given.key, given.value]
            yield (
                f"L={case.q_len}, S={case.kv_len}, {mask} mask",
                case,
                given,
                tensors,
                _with_tensors,
            )


def _with_hidden(inputs: Any, tensors: Tensors) -> Any:
    return inputs.replace(hidden=tensors[0])


def _with_tensors(inputs: Inputs, tensors: Tensors) -> Inputs:
    query, key, value = tensors
    mask = inputs.attn_mask
    if mask is not None and mask.is_floating_point():
        mask = mask.to(query.dtype)
    return inputs.replace(query=query, key=key, value=value, attn_mask=mask)


def _of_two(
    first: Subject, second: Subject, dtype: torch.dtype, file: str | None, weights: str | None
) -> Iterator[Pair]:
    if isinstance(first, LayerSubject) != isinstance(second, LayerSubject):
        raise UsageError(
            f"{first.name} and {second.name} take other inputs: one is a layer, one is not."
        )
    for words, case, given, tensors, put in _calls(first, dtype, file):
        if not isinstance(first, LayerSubject) and second.unsupported(case) is not None:
            continue
        one = _made(first, case, weights)
        two = _made(second, second.legal(case), None)
        _share_weights(first, second, one, two)
        ways = [
            Way(subject.name, module, _plain(subject, given, put), dtype)
            for subject, module in ((first, one), (second, two))
        ]
        yield words, ways[0], ways[1], tensors


def _share_weights(first: Subject, second: Subject, one: nn.Module, two: nn.Module) -> None:
    try:
        two.load_state_dict(one.state_dict())
    except RuntimeError as error:
        said = " ".join(str(error).split())
        raise UsageError(
            f"{second.name} does not take the weights of {first.name}, so that their outputs "
            f"cannot be compared: {said}"
        ) from None


def _plain(
    subject: Subject, inputs: Any, put: Callable[[Any, Tensors], Any]
) -> Callable[[nn.Module, Tensors], Tensor]:
    return lambda module, tensors: subject.output(module, put(inputs, tensors))


def _dtypes(
    subject: Subject, values: Sequence[str], _: Any, file: str | None, weights: str | None
) -> Iterator[Pair]:
    for value in values:
        if value not in subject.dtypes:
            raise UsageError(f"{subject.name} supports {', '.join(subject.dtypes)}, not {value}.")
    pair = [getattr(torch, value) for value in values]
    widest = min(pair, key=lambda dtype: torch.finfo(dtype).eps)
    for words, case, given, tensors, put in _calls(subject, widest, file):
        module = _made(subject, case, weights)
        call = _plain(subject, given, put)
        ways = [
            Way(value, copy.deepcopy(module).to(dtype), call, dtype)
            for value, dtype in zip(values, pair, strict=True)
        ]
        yield words, ways[0], ways[1], tensors


def _batch(
    subject: Subject, _: Any, dtype: torch.dtype, file: str | None, weights: str | None
) -> Iterator[Pair]:
    for words, case, given, tensors, put in _calls(subject, dtype, file):
        if tensors[0].dim() < 3:
            continue
        module = _made(subject, case, weights)
        ways = [
            Way("in a batch", module, _real_tokens(subject, given, put, alone=False), dtype),
            Way("each alone", module, _real_tokens(subject, given, put, alone=True), dtype),
        ]
        yield words, ways[0], ways[1], tensors


def _real_tokens(
    subject: Subject, inputs: Any, put: Callable[[Any, Tensors], Any], *, alone: bool
) -> Callable[[nn.Module, Tensors], Tensor]:
    """Calls whose items are in a batch or alone; padding of a layer is cut off where alone."""
    from attnbench.invariants.toolkit.derivations import select_items

    def call(module: nn.Module, tensors: Tensors) -> Tensor:
        given = put(inputs, tensors)
        padding = getattr(given, "padding_mask", None)
        if not alone:
            whole = subject.output(module, given)
            return whole if padding is None else whole[padding]
        if not isinstance(subject, LayerSubject):
            items = (select_items(given, (slice(i, i + 1),)) for i in range(len(tensors[0])))
            return torch.cat([subject.output(module, item) for item in items])
        outputs = []
        for item, hidden in enumerate(given.hidden):
            kept = hidden if padding is None else hidden[padding[item]]
            if len(kept):
                outputs.append(subject.call(module, kept[None])[0][0])
        return torch.stack(outputs) if padding is None else torch.cat(outputs)

    return call


_PATHS = {"prefill": None, "cached": _LENGTH, "decode": 1, "chunks": _CHUNK}
"""Ways to give a sequence to a layer: tokens in a call; without a cache for ``None``."""


def _paths(
    subject: Subject, values: Sequence[str], dtype: torch.dtype, _: Any, weights: str | None
) -> Iterator[Pair]:
    _check_values("paths", values, _PATHS)
    layer = _cached_layer(subject, "paths")
    case = layer.legal(
        Case((2,), _LENGTH, _LENGTH, 64, 64, 64, str(dtype).removeprefix("torch."), seed=1)
    )
    module, hidden = _made(layer, case, weights), layer.inputs(case).hidden
    ways = [Way(value, module, _in_calls_of(layer, _PATHS[value]), dtype) for value in values]
    yield f"L={case.q_len}", ways[0], ways[1], [hidden]


def _cached_layer(subject: Subject, question: str) -> LayerSubject:
    if not isinstance(subject, LayerSubject) or subject.spec.cache is None:
        raise UsageError(f"--{question} is for layers with a cache, and {subject.name} has none.")
    return subject


def _in_calls_of(layer: LayerSubject, tokens: int | None) -> Callable[[nn.Module, Tensors], Tensor]:
    def call(module: nn.Module, tensors: Tensors) -> Tensor:
        (hidden,) = tensors
        if tokens is None:
            return layer.call(module, hidden)[0]
        cache, outputs = layer.new_cache(module, len(hidden)), []
        for part in torch.split(hidden, tokens, 1):
            output, cache = layer.call(module, part, None, cache)
            outputs.append(output)
        return torch.cat(outputs, 1)

    return call


def _caches(
    subject: Subject, values: Sequence[str], dtype: torch.dtype, _: Any, weights: str | None
) -> Iterator[Pair]:
    _check_values("cache", values, CACHES)
    layer = _cached_layer(subject, "cache")
    case = layer.legal(
        Case((2,), _LENGTH, _LENGTH, 64, 64, 64, str(dtype).removeprefix("torch."), seed=1)
    )
    module, hidden = _made(layer, case, weights), layer.inputs(case).hidden
    _inner(module, layer.name, "cache")
    others = [
        replace(layer, spec=replace(layer.spec, cache=cache_spec(value, {}))) for value in values
    ]
    ways = [
        Way(value, module, _in_calls_of(other, 1), dtype)
        for value, other in zip(values, others, strict=True)
    ]
    yield f"L={case.q_len}, a token a call", ways[0], ways[1], [hidden]


def _attentions(
    subject: Subject, values: Sequence[str], dtype: torch.dtype, _: Any, weights: str | None
) -> Iterator[Pair]:
    for words, case, given, tensors, put in _calls(subject, dtype, None):
        first = _made(subject, case, weights)
        modules = [first, copy.deepcopy(first)]
        for module, value in zip(modules, values, strict=True):
            try:
                _inner(module, subject.name, "attention").set_attn_implementation(value)
            except (ValueError, ImportError) as error:
                raise UsageError(f"--attention {value}: {str(error).splitlines()[0]}") from None
        ways = [
            Way(value, module, _plain(subject, given, put), dtype)
            for value, module in zip(values, modules, strict=True)
        ]
        yield words, ways[0], ways[1], tensors


def _inner(module: nn.Module, name: str, question: str) -> Any:
    """The model of transformers within a module."""
    for part in module.modules():
        if hasattr(part, "set_attn_implementation"):
            return part
    raise UsageError(f"--{question} is for models of transformers, and {name} holds none.")


def _check_values(question: str, values: Sequence[str], known: Any) -> None:
    for value in values:
        if value not in known:
            raise UsageError(f"--{question} knows no {value!r}. {nearest(value, known)}")


QUESTIONS: dict[str, Callable[..., Iterator[Pair]]] = {
    "attention": _attentions,
    "paths": _paths,
    "cache": _caches,
    "dtype": _dtypes,
    "batch": _batch,
}
"""What can be asked of one subject, by the option of the command."""
