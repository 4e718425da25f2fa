"""The gradients of an attention, derived from its problem as kernels of the language: for any backend, and in the form that
this one takes as gradients of attention.

The derivative of a softmax needs no value of the loop over keys but the logarithm of the sums: with the sums of gradient *
output, a row's weights and their gradients follow from the scores alone. One kernel computes these sums, one the gradient of
queries, and one those of keys and values. Results are the same in every run. For some sizes one kernel computes all, and adds
the gradient of queries to memory in any order, unless torch is asked for deterministic algorithms. Where the program stores no
logarithms, a kernel that stores them runs in its place, or computes them and the output again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ...._compiler.autodiff.transform import StagedBackward
from ...._compiler.ir.grammar import HostTensor, Program
from ...._shapes import NeedsValue
from ....hardware import Target
from ..lower.attention.loops import has_attention
from ..lower.attention.recognise import Attention, attention_of
from ..plan.attention.build import HALF_DTYPES
from ..plan.attention.numbers import is_known
from ..plan.attention.operands import Matrix, Place
from ..plan.attention.records import ACCUMULATOR, MAXIMUM, TOTAL, AttentionProblem
from ..plan.epilogue import Constant
from ..plan.refusal import Refusal
from .indexed import Indexed, indexed_matrix, is_of_heads
from .ranges import bounds_of, with_heads, without_hidden
from .scores import Input, Sink, factor_of, held_sink_of, inputs_of, made_by, score_of, sink_of
from .text import Derived, Known, Saved

TOGETHER = 64, 128
"""Dimensions of heads for which one kernel of all gradients is faster than two: it computes five products of each block, and not
seven (gradients named ``all`` in benchmarks/results/cute/nvidia-h200-attention.jsonl)."""


def derivative(
    program: Program,
    wanted: Iterable[int],
    name: str,
    target: Target | None = None,
    ahead: bool = False,
    dynamic: Program | None = None,
) -> StagedBackward | None:
    """Return the kernels that compute the gradients of an attention, or None for other programs.

    Attention is left to the general derivation if weights are dropped, or rows begin at loaded places. So it is if the band
    leaves a query without keys, or if formulas select elements or read tables. Tensors have dimensions of heads, rows and
    columns alone.

    ``target`` is that of the kernels, if this backend may compile them. With ``ahead`` a kernel may run in place of the
    program's, so that it stores what gradients need. ``dynamic`` is the program with sizes of each call, if the source of the
    kernels should serve those: it does unless biases or scores without a value have gradients.
    """
    found = _attention(program)
    known = None if found is None else _known(program, found)
    if known is None:
        return None
    ids = known.ids
    results = tuple(at for at in sorted({*ids.values()}) if at in {*wanted})
    if not results or set(wanted) - set(ids.values()):
        return None
    compiled = target is not None and target.has("wgmma")
    q, k, v = (ids[each] for each in "qkv")
    ranged = known.ranged or known.length is not None
    apart = ranged and not known.zeros  # queries without keys would have other outputs than the program's
    text = Derived(
        known=known,
        name=name,
        results=results,
        together=compiled and {q, k, v} <= {*results} and _runs_together(known),
        ahead=ahead and compiled and known.saved is None and not apart and not known.indexed["grad"].is_turned,
    )
    if not text.has_all_slopes or (ranged and text.wanted):
        return None
    any_size = dynamic is not None and not text.wanted and text.wanted_sink is None
    return (replace(text, aligned=_aligned(dynamic)) if any_size else text).staged()


def _runs_together(known: Known) -> bool:
    """Return whether one kernel is faster than two. Blocks of narrow heads are so long that registers hold no more values of
    them than weights."""
    problem, score = known.problem, known.score
    if problem.loaded or known.ranged:  # integers of heads are left to the general backend
        return False
    if problem.q.columns != problem.v.columns or problem.q.columns not in TOGETHER:
        return False
    return problem.q.columns > min(TOGETHER) or (score.slopes[0] == "1.0" and not problem.has_large_scores)


def _attention(program: Program) -> Attention | None:
    if not has_attention(program):
        return None
    try:
        found = attention_of(program, packed=False)
    except (Refusal, NeedsValue):
        return None
    return None if found.loops.rows else found


def _aligned(program: Program | None) -> tuple[bool, bool] | None:
    """Return whether the first and the last key of the band depend on sizes of a call; None for other programs."""
    found = None if program is None else _attention(program)
    if found is None:
        return None
    band = found.problem.band
    return not is_known(band.first), not is_known(band.last)


def _known(program: Program, found: Attention) -> Known | None:
    """Return what the kernels are derived from, or None for other forms than are derived."""
    problem, tensors = with_heads(found.problem), [program.tensors[at] for at in found.tensors]
    given = [each if not isinstance(each, int) else program.tensors[each] for each in found.sources]
    read = [each for each in given if isinstance(each, HostTensor)]
    if not _is_plain(problem) or not _are_apart(tensors[:3], tensors[3:], read):
        return None
    indexed, bounds = _matrices(problem, tensors), bounds_of(problem, read)
    if indexed is None or bounds is None:
        return None
    formulas = {"factor": problem.query, "input": problem.score, "sink": problem.finish}
    ends = [*itertools.accumulate((len(each.sources) for each in formulas.values()), initial=0)]
    factors, inputs, of_sums = (
        inputs_of(formula, given[begin:end], problem, name)
        for (name, formula), begin, end in zip(formulas.items(), ends[:-1], ends[1:], strict=True)
    )
    shared = _shared(problem)
    if factors is None or inputs is None or of_sums is None or shared is None:
        return None
    problem, zeros = without_hidden(problem, given[ends[2] : ends[3]], bounds.ranges)
    factor, divisor = factor_of(problem.query, factors), _sums(problem)
    score = None if factor is None else score_of(problem, inputs, factor, factors)
    sums = _unguarded(problem, divisor)
    sink = held_sink_of(problem, of_sums)
    if sums is not None and sums != TOTAL:
        sink = _added(problem, sums, of_sums)
    saved = _saved(problem, tensors[3:], sums)
    known = sums == TOTAL or sink is not None
    exact = saved is None or not problem.query.instructions  # else weights are those of rounded queries
    # sums of exponentials of large scores are kept relative to the maxima
    relative = not problem.has_large_scores or (saved is None and sink is None)
    # outputs that the program stores are no numbers where a band hides the keys of a range
    exact = exact and (saved is None or not bounds.ids or (problem.band.first, problem.band.last) == (None, None))
    if score is None or not known or not exact or not relative or (saved is None and len(problem.outputs) > 1):
        return None
    named = [each for each in (*inputs, *((sink.input,) if sink else ())) if each.indexed is not None]
    if not _are_of_heads([each.indexed for each in named if each.indexed is not None], problem):
        return None
    ids = {"q": found.tensors[0], "k": found.tensors[1], "v": found.tensors[2], **bounds.ids}
    ids |= {each.name: each.indexed.tensor.id for each in named if each.indexed is not None}
    outputs: dict[str, int] = {each.kind: at for each, at in zip(problem.outputs, found.tensors[3:], strict=True)}
    return Known(
        problem=problem,
        score=score,
        sink=sink,
        guarded=sums != divisor or bool(bounds.ids),
        ranged=bool(bounds.ranges),
        zeros=zeros,
        length=bounds.length,
        shared=shared,
        indexed=indexed,
        saved=saved,
        ids=ids,
        outputs=outputs,
    )


def _matrices(problem: AttentionProblem, tensors: Sequence[HostTensor]) -> dict[str, Indexed] | None:
    """Return how q, k, v and the gradient of the output are indexed by coordinates of heads, or None if one is otherwise."""
    stored = tensors[3 + problem.outputs.index(problem.matrix)]
    matrices = problem.q, problem.k, problem.v, problem.matrix.matrix
    named = zip(("q", "k", "v", "grad"), (*tensors[:3], stored), matrices, strict=True)
    found = {name: indexed_matrix(tensor, matrix, problem) for name, tensor, matrix in named}
    whole = {name: each for name, each in found.items() if each is not None}
    return whole if _is_complete(whole) and _are_of_heads(whole.values(), problem) else None


def _are_of_heads(indexed: Iterable[Indexed], problem: AttentionProblem) -> bool:
    """Return whether no tensor is indexed by integers that are loaded for a head."""
    return all(is_of_heads(each, len(problem.heads)) for each in indexed)


def _are_apart(inputs: Sequence[HostTensor], outputs: Sequence[HostTensor], others: Sequence[HostTensor]) -> bool:
    """Return whether inputs are different tensors, or one that has all, and outputs share memory with none. Views of one tensor
    are different."""
    storages = {each.storage for each in outputs}
    apart = len(storages) == len(outputs) and storages.isdisjoint(each.storage for each in (*inputs, *others))
    first = {each.id for each in inputs}
    numbers = [*first, *(each.id for each in others if each.dtype.is_floating_point)]
    return apart and len(first) in (1, len(inputs)) and len({*numbers}) == len(numbers)


def _is_complete(indexed: Mapping[str, Indexed]) -> bool:
    """Return whether all tensors are known: each whole, or q, k and v the three elements of a dimension of one tensor."""
    if len(indexed) < 4 or indexed["grad"].chosen:
        return False
    packed = [indexed[name] for name in "qkv"]
    if len({each.tensor.id for each in packed}) == 3:
        return not any(each.chosen for each in packed)
    ((dim, *_), *others) = [each.chosen or [-1] for each in packed]
    places = {each.dims[dim] for each in packed}
    return dim >= 0 and all(each == [dim] for each in others) and len(places) == packed[0].sizes[dim] == 3


def _is_plain(problem: AttentionProblem) -> bool:
    plain = problem.softmax and problem.dropped is None and not problem.runtime
    moved = any(each.row is not None for each in (problem.q, problem.k, problem.v, problem.matrix.matrix))
    bounded = problem.k.pages is not None or problem.query_span is not None or moved
    whole = not problem.rests and not problem.lift
    rounded = problem.q.dtype in HALF_DTYPES
    return plain and not bounded and whole and rounded and _sees(problem) and problem.score.starts == 1


def _sees(problem: AttentionProblem) -> bool:
    """Return whether every query sees a key."""
    band = problem.band
    first = band.last is None or band.last >= 0
    return first and (band.first is None or problem.queries - 1 + band.first < problem.keys)


def _sums(problem: AttentionProblem) -> int | None:
    """Return the value that the accumulator is divided by, or None for other outputs."""
    made = made_by(problem.finish, problem.matrix.value)
    if made is None or made.op != "div" or made.arguments[0] != ACCUMULATOR or isinstance(made.arguments[1], Constant):
        return None
    return made.arguments[1]


def _unguarded(problem: AttentionProblem, sums: int | None) -> int | None:
    """Return the sum of a value that is another number where the sum is 0, or the value itself."""
    made = None if sums is None else made_by(problem.finish, sums)
    if made is None or made.op != "where":
        return sums
    condition, *chosen = made.arguments
    tested = made_by(problem.finish, condition)
    zero = None if tested is None or tested.op not in ("gt", "ne", "eq") else tested.arguments[1]
    if tested is None or not isinstance(zero, Constant) or float(zero.text) != 0:
        return sums
    whole, other = chosen[::-1] if tested.op == "eq" else chosen
    kept = whole == tested.arguments[0] and isinstance(whole, int) and isinstance(other, Constant)
    return whole if kept and isinstance(whole, int) else sums


def _added(problem: AttentionProblem, sums: int | None, inputs: tuple[Input, ...]) -> Sink | None:
    """Return the score without a value whose exponential is added to the sums."""
    made = None if sums is None else made_by(problem.finish, sums)
    if made is None or made.op != "add" or TOTAL not in made.arguments:
        return None
    others = [each for each in made.arguments if each != TOTAL]
    return sink_of(problem, others[0], inputs) if len(others) == 1 and isinstance(others[0], int) else None


def _saved(problem: AttentionProblem, tensors: Sequence[HostTensor], sums: int | None) -> Saved | None:
    """Return the logarithms of sums, if they are the one other output, in fp32."""
    pairs = [(each, tensor) for each, tensor in zip(problem.outputs, tensors, strict=True) if each.kind == "query"]
    if len(pairs) != 1 or pairs[0][0].dtype != "float32" or sums is None:
        return None
    ((output, tensor),) = pairs
    unit = _logarithm(problem, output.value, sums)
    indexed = indexed_matrix(tensor, output.matrix, problem, vector=True)
    return None if unit is None or indexed is None else Saved(indexed=indexed, unit=unit)


def _logarithm(problem: AttentionProblem, value: int, sums: int) -> float | None:
    """Return n if a value is n times the natural logarithm of the sums: maximum * unit + log(sums), in base 2 or e."""
    made = made_by(problem.finish, value)
    if made is None or made.op != "add":
        return None
    for one, other in (made.arguments, made.arguments[::-1]):
        log = made_by(problem.finish, other)
        if log is None or log.op not in ("log", "log2") or log.arguments != (sums,):
            continue
        base = 1.0 if log.op == "log2" else math.log(2)
        factor = 1.0 if one == MAXIMUM else _factor(problem, one)
        if factor is not None and math.isclose(factor, problem.unit * base, rel_tol=1e-6):
            return base * math.log2(math.e)
    return None


def _factor(problem: AttentionProblem, value: int | Constant) -> float | None:
    """Return the number that the maximum is multiplied by, or None for other values."""
    made = made_by(problem.finish, value)
    if made is None or made.op != "mul" or MAXIMUM not in made.arguments:
        return None
    (number,) = (each for each in made.arguments if each != MAXIMUM)
    return float(number.text) if isinstance(number, Constant) else None


def _shared(problem: AttentionProblem) -> tuple[int, ...] | None:
    """Return the heads that share a matrix of keys and values, by coordinate: 1 but for one of them."""
    found = []
    for axis, size in enumerate(problem.heads):
        numbers = {_divisor(matrix, axis, size) for matrix in (problem.k, problem.v)}
        number = numbers.pop()
        if numbers or number is None or size % number:
            return None
        found.append(number)
    of_query = [mode.at for mode in problem.q.modes]
    if any(size > 1 and Place("axis", (axis,)) not in of_query for axis, size in enumerate(problem.heads)):
        return None
    return tuple(found) if sum(number > 1 for number in found) < 2 else None


def _divisor(matrix: Matrix, axis: int, size: int) -> int | None:
    """Return the number of heads of a coordinate that share a matrix."""
    own = Place("axis", (axis,))
    for mode in matrix.modes:
        if mode.at == own:
            return 1
        if mode.at.op == "floordiv" and mode.at.arguments[0] == own:
            divisor = mode.at.arguments[1]
            number = divisor.arguments[0] if isinstance(divisor, Place) and divisor.op == "number" else None
            return number if isinstance(number, int) else None
    return size
