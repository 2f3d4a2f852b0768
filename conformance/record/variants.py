"""Which departures become the variants of a case: those that it must tell apart, then others that it can."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

from conformance.cases import Coincidence
from conformance.errors import RecordError
from conformance.record import departures_dropout, departures_masks, departures_rules, departures_scores, plain
from conformance.record.ask import Ask
from conformance.record.departures import TABLE, Call, found
from conformance.record.draft import Draft
from conformance.verdict import distance, magnitude

# How far a wrong answer must be from the right one, absolutely and in units of the largest number: 10 tolerances where
# plain PyTorch's error is that of numbers of about 4.
FAR = {"float64": (1e-11, 1e-10), "float32": (1e-4, 1e-4), "float16": (0.08, 0.05), "bfloat16": (0.45, 0.34)}
MOST = 14
# What a peer is known to do: entered beyond that number, so that its answers have a name.
ALWAYS = ("gradient=lse_stopped", "empty=mean_of_value")


def enter_all() -> None:
    """Enter every departure, once."""
    if not TABLE:
        for module in (departures_masks, departures_rules, departures_scores, departures_dropout):
            module.enter()


def doubles(draft: Draft) -> dict[str, Any]:
    """Return the inputs of a draft in float64."""
    return {name: x.double() if x.is_floating_point() else x for name, x in draft.inputs.items()}


def with_variants(ask: Ask, draft: Draft) -> Draft:
    """Enter the departures that the case must tell apart, then others that it can, up to a number."""
    call = Call(doubles(draft), draft.parameters, memory=draft.memory)
    truth = _answer(draft, call, "")
    far = (ask.loud * FAR[draft.dtypes[-1]][0], FAR[draft.dtypes[-1]][1])
    kept: dict[str, dict[str, Any]] = {}
    for name, required in _names(ask):
        wrong = _wrong(draft, call, name)
        if name not in ask.same and wrong is not None:
            wrong = {n: x for n, x in wrong.items() if _far(x, truth[n], far)}
        twins = [other for other, known in kept.items() if wrong and not _apart(wrong, known)]
        alone = bool(wrong) and all(f"{other} {name}" in ask.same for other in twins)
        if required and not alone and name not in ask.same:
            reason = f"it is `{twins[0]}`" if twins else "the truth" if wrong is not None else "it changes nothing"
            raise RecordError(f"{ask.id}: cannot tell `{name}`: {reason}")
        if wrong and (required or (alone and (len(kept) < MOST or name in ALWAYS))):
            kept[name] = wrong
    wrong_outputs = {name: (TABLE[name][0], _maker(draft, name, tuple(tensors))) for name, tensors in kept.items()}
    if "out=zeros" not in ask.same and not _far(0.0 * truth["out"].nan_to_num(), truth["out"], far):
        raise RecordError(f"{ask.id}: cannot tell zeros")
    return replace(draft, wrong=wrong_outputs, coincidences=_coincidences(ask.same, {*kept, "out=zeros"}))


def told_apart(
    answer: Callable[[str, Any], Mapping[str, Any] | None],
    draft: Draft,
    required: tuple[str, ...],
    names: Iterable[str],
) -> dict[str, Any]:
    """Return the wrong outputs of an op of its own: `required`, then of `names` what can be told from the others.

    `answer` gives, by the name of a departure ("" is right) and the inputs, the outputs, or None where it changes
    nothing.
    """
    inputs, far = doubles(draft), FAR[draft.dtypes[-1]]
    truth, kept = answer("", inputs) or {}, dict[str, Any]()
    for name in dict.fromkeys((*required, *names)):
        output = "lse" if name.startswith("lse=") else "out"
        found = (answer(name, inputs) or truth)[output]
        twins = [n for n, (o, x) in kept.items() if o == output and not _far(x, found, FAR["float32"])]
        if _far(found, truth[output], far) and not twins:
            kept[name] = output, found
        elif name in required:
            raise RecordError(f"{draft.id}: cannot tell `{name}`, {twins or 'the truth'}")
    return {name: _of_answer(answer, name, output) for name, (output, _) in kept.items()}


def _of_answer(answer: Any, name: str, output: str) -> Callable[[Any], dict[str, Any]]:
    return lambda inputs: {output: answer(name, inputs)[output]}


def _coincidences(same: Mapping[str, str], names: set[str]) -> tuple[Coincidence, ...]:
    """What coincides with the truth does so with each other."""
    truths = [name for name in same if " " not in name and name in names]
    pairs = [("expected", name) for name in truths] + [tuple(name.split()) for name in same if " " in name]
    pairs += [pair for pair in combinations(truths, 2) if "out=zeros" not in pair]
    because = dict(same) | {name: reason for key, reason in same.items() for name in [key.split()[-1]]}
    return tuple(Coincidence(pair, because.get(" ".join(pair), because[pair[-1]])) for pair in pairs)


def _wrong(draft: Draft, call: Call, name: str) -> dict[str, Any] | None:
    other = found(call, name)
    return None if other is None else _answer(draft, other, name)


def _names(ask: Ask) -> Iterator[tuple[str, bool]]:
    enter_all()
    required = [
        *ask.kills.split(),
        *" ".join(ask.same).split(),
        "out=mean_of_v",
        *(["mask=inverted"] if ask.mask else []),
    ]
    required = list(dict.fromkeys(name for name in required if name != "out=zeros"))
    yield from ((name, True) for name in required)
    wished = [name for name in ask.prefer.split() if name not in required]
    rest = [name for name in TABLE if name not in required and name not in wished and not name.startswith("dtype=")]
    yield from ((name, False) for name in (*wished, *rest))


def _maker(draft: Draft, name: str, outputs: tuple[str, ...]) -> Any:
    def make(inputs: Any) -> dict[str, Any]:
        call = found(Call(inputs, draft.parameters, memory=draft.memory), name)
        answer = {} if call is None else _answer(draft, call, name)
        return {output: answer[output] for output in outputs}

    return make


def _answer(draft: Draft, call: Call, name: str) -> dict[str, Any]:
    """What a departure is seen by: the gradients, lse or weights that it is about, else `out`."""
    kind = name.partition("=")[0]
    outputs = call.outputs() if kind != "gradient" and name else {}
    if kind in ("lse", "weights"):
        return {kind: outputs[kind]} if kind in (draft.outputs or ()) else {}
    if name and kind != "gradient":
        return {"out": outputs["out"]}
    leaves = {n: x.clone().requires_grad_(n in draft.wrt) for n, x in call.inputs.items()}
    outputs = replace(call, inputs=leaves).outputs()
    seeds = {n: tensor.double() for n, tensor in (draft.seeds or {}).items()}
    slopes = plain.gradients(outputs, seeds, leaves, draft.wrt) if draft.wrt else {}
    return slopes if name else {**outputs, **slopes}


def _far(wrong: Any, right: Any, far: tuple[float, float]) -> bool:
    one, other = wrong.detach().numpy(), right.detach().numpy()
    return distance(one, other)[0] > far[0] + far[1] * magnitude(other)


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    shared = one.keys() & other.keys()
    return all(_far(one[n], other[n], FAR["float32"]) for n in shared) if shared else True
