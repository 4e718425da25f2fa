"""The lowering from a program and the decisions of a config to the plan of its kernel."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence

from .... import exc
from ...._compiler.decisions import Decisions
from ...._compiler.host.analysis import overwritten
from ...._compiler.ir.grammar import Program
from ...._compiler.passes.always.simplify import drop_dead
from ...._shapes import Expr, Number, hint_of
from ....hardware import Target
from ....settings import Settings
from ..legality import choice_of
from ..plan.build import plan_gemm
from ..plan.copied import NIBBLE_GROUP, Copied
from ..plan.kernel import CutePlan
from ..plan.records import TMA_ALIGNMENT_BYTES, Batch
from ..plan.refusal import Refusal
from ..plan.runtime import multiple_of, shown
from ..plan.scales import LONGEST, Ends
from .batch import Batched, Level, without_batch
from .chain import EXAMPLE_MULTIPLE
from .groups import Grouped, GroupedK, described_groups, without_groups, without_groups_of_k
from .held import with_loop
from .names import as_written
from .numbers import dividing, equal, example, known
from .parts import without_parts
from .peers.messages import with_messages, without_messages
from .product import Product, product_of
from .rewrites.dimensions import with_joined_dimensions
from .rewrites.divisions import Divided, with_divisions
from .rewrites.ends import with_ends, without_ends
from .rewrites.micro import with_micro_scales, without_micro_scales
from .rewrites.neighbors import with_neighbors
from .rewrites.outer import with_outer_products
from .rewrites.panels import with_panels
from .rewrites.partials import with_whole_k
from .rewrites.picks import Pick, with_picks
from .rewrites.signs import with_added_dots
from .terms import TermProgram, blocks_of_loops, of_two_majors, programs_of_terms, sum_of
from .weights.nibbles import with_nibbles
from .weights.pairs import with_pairs
from .windows import Start, Windowed, with_windows

KEPT = 64
_PRODUCTS: dict[int, tuple[Program, Product]] = {}


def known_product(program: Program) -> Product:
    """Return ``product_of``, cached per program by identity: a hash of a program takes milliseconds. Raises
    ``Refusal``."""
    known = _PRODUCTS.get(id(program))
    if known is None or known[0] is not program:
        if len(_PRODUCTS) >= KEPT:
            _PRODUCTS.clear()
        known = _PRODUCTS[id(program)] = (program, _product(program))
    return known[1]


def _product(program: Program) -> Product:
    apart = without_messages(program)
    divided = with_parts(apart.program)
    whole = with_whole_k(with_added_dots(divided.program))
    joined = with_joined_dimensions(whole.program)
    paired = with_pairs(joined.program)
    unpacked = with_nibbles(paired.program)
    ended = without_ends(unpacked.program)
    grouped = without_groups_of_k(ended.program)
    micro = without_micro_scales(ended.program if grouped.offsets is None else drop_dead(grouped.program))
    windowed = with_windows(_at_multiples(micro.program))
    product = _of_groups_of_k(_with_all_columns(windowed, paired.packed, grouped.offsets is None), grouped)
    product = with_micro_scales(product, micro)
    product = with_ends(_renamed(product, paired.tensors), ended)
    product = dataclasses.replace(product, batch_blocks=(*product.batch_blocks, *whole.blocks, *joined.blocks))
    if unpacked.block is not None:
        product = _renamed(dataclasses.replace(product, depth=NIBBLE_GROUP), unpacked.tensors)
    return with_messages(_divided(product, divided), apart, program)


def of_all_columns(program: Program) -> Program | None:
    """Return the program whose products with even and with odd columns are one; None without such products."""
    try:
        return known_product(program).all_columns
    except Refusal:
        return None


def _at_multiples(program: Program) -> Program:
    """Return the program with tensors that begin at multiples of 16 bytes: each launch copies those that do not."""
    tensors = tuple(dataclasses.replace(tensor, aligned=True) for tensor in program.tensors)
    return dataclasses.replace(program, tensors=tensors)


def with_parts(program: Program) -> Divided:
    """Return the program with matrices in place of outputs whose rows and columns are in parts."""
    divided = with_divisions(program)
    return divided if divided.divisions else with_outer_products(program)


def _divided(product: Product, divided: Divided) -> Product:
    """Return the product with the parts of the rows and columns of its outputs."""
    divisions = divided.divisions
    if not divisions:
        return product
    outputs = list(product.problem.outputs)
    for at, tensor in enumerate(product.outputs):
        if tensor in divisions:
            rows, columns = (divisions[tensor].parts.get(block) for block in product.blocks[:2])
            outputs[at] = dataclasses.replace(outputs[at], rows=rows, columns=columns)
    epilogue = dataclasses.replace(product.problem.epilogue, outputs=tuple(outputs))
    product = dataclasses.replace(product, problem=dataclasses.replace(product.problem, epilogue=epilogue))
    return _renamed(product, divided.tensors)


def _with_all_columns(windowed: Windowed, pairs: Mapping[int, bool], whole_k: bool) -> Product:
    """Return the product of a program with windows. Products with even and with odd columns are one, unless that is refused."""
    whole = with_neighbors(windowed)
    if whole is not windowed:
        with contextlib.suppress(Refusal):
            product = _begun(_of_windows(whole.program, pairs, whole_k), whole.starts)
            return dataclasses.replace(product, all_columns=whole.program)
    return _begun(_of_windows(windowed.program, pairs, whole_k), windowed.starts)


def _of_windows(program: Program, pairs: Mapping[int, bool], whole_k: bool) -> Product:
    """Return the product of a program whose accesses are of whole tensors, or windows. ``whole_k`` is False if data decide K."""
    joined = without_parts(program)
    product = _of_groups_or_batch(joined.program, pairs, whole_k)
    if joined.block is None:
        return product
    return dataclasses.replace(product, batch_blocks=(*product.batch_blocks, joined.block))


def _of_groups_or_batch(program: Program, pairs: Mapping[int, bool], whole_k: bool) -> Product:
    grouped = without_groups(program)
    picked = with_picks(grouped.program)
    panelled = picked.program if grouped.offsets is not None else with_panels(picked.program)
    batched = without_batch(panelled)
    looped = with_loop(batched.program)
    turns = grouped.offsets is None and whole_k and len(batched.levels) <= 1
    product = _of_terms(looped.program, batched.strides, picked.picks, pairs, turns)
    if looped.held:
        product = dataclasses.replace(product, depth=product.problem.line)
    product = _of_groups(product, batched, grouped) if grouped.offsets is not None else _side_by_side(product, batched)
    own = tuple(block for block in product.batch_blocks if block < len(program.blocks))
    product = dataclasses.replace(product, batch_blocks=own)
    if panelled is not picked.program and program.blocks[product.blocks[1]].tunable:
        product = dataclasses.replace(product, undecided=(product.blocks[1],))
    return _renamed(product, {each: pick.tensor.id for each, pick in picked.picks.items()})


def _of_terms(
    program: Program,
    strides: Mapping[int, tuple[Number, ...]],
    picks: Mapping[int, Pick],
    pairs: Mapping[int, bool],
    turns: bool,
) -> Product:
    """Return the sum of the terms of a program: those of one left operand each, or of one right operand where the result is
    transposed, and fewer are absent. Raises ``Refusal``."""
    found, reason = list[Product](), None
    sides = [programs_of_terms(program, side) for side in (0, 1)]
    if len(sides[0]) == len(sides[1]) == 1:
        return product_of(program, strides, picks, pairs=pairs, turns=turns)
    for terms in sides:
        try:
            found.append(_sum(program, terms, strides, picks))
        except Refusal as refusal:
            reason = reason or refusal
        if found and not found[-1].problem.absent:
            return found[-1]
    if not found:
        assert reason is not None
        raise reason
    return min(found, key=lambda product: len(product.problem.absent))


def _sum(
    program: Program,
    terms: Sequence[TermProgram],
    strides: Mapping[int, tuple[Number, ...]],
    picks: Mapping[int, Pick],
) -> Product:
    """Return the sum of the terms of a program. Raises ``Refusal``."""
    products = [product_of(each.program, strides, picks) for each in terms]
    if len(products) == 1:
        return products[0]
    if along_k := of_two_majors(products):
        products = [product_of(each.program, strides, picks, along_k) for each in terms]
    return sum_of(products, [each.absent for each in terms], blocks_of_loops(program))


def _renamed(product: Product, tensors: Mapping[int, int]) -> Product:
    """Return the product with other tensors in place of some, by their ids."""

    def renamed(tensor: int) -> int:
        return tensors.get(tensor, tensor)

    return dataclasses.replace(
        product,
        a=renamed(product.a),
        b=renamed(product.b),
        outputs=tuple(map(renamed, product.outputs)),
        operands=tuple(each if isinstance(each, Expr) else renamed(each) for each in product.operands),
        scales=tuple(map(renamed, product.scales)),
        sources=tuple(map(renamed, product.sources)),
        terms=tuple(map(renamed, product.terms)),
    )


def _begun(product: Product, starts: Mapping[int, Start]) -> Product:
    """Return the product with the tensors that windows are of, and their first elements."""
    if not starts:
        return product

    given = product.arguments[: len(product.arguments) - len(product.runtime)]
    firsts = tuple(starts[each].elements if isinstance(each, int) and each in starts else 0 for each in given)
    product = dataclasses.replace(product, problem=dataclasses.replace(product.problem, starts=firsts))
    return _renamed(product, {each: start.tensor for each, start in starts.items()})


def _of_groups(product: Product, batched: Batched, grouped: Grouped) -> Product:
    """Return the product of groups of rows, in place of a batch."""
    problem, offsets = product.problem, grouped.offsets
    assert offsets is not None
    if product.blocks[0] != grouped.block:
        raise Refusal(
            f"{offsets.name} is of groups of what is contiguous in {problem.names[2]}; of rows it is implemented"
        )
    if len(batched.levels) != 1:
        raise Refusal("groups of rows are implemented without a batch around them")
    (level,) = batched.levels
    if any(tensor in level.strides for tensor in (product.a, *product.outputs)):
        raise Refusal("groups of rows are implemented where they select matrices of the right operand alone")
    if any(batched.program.tensors[output].storage == offsets.storage for output in product.outputs):
        raise Refusal(f"{offsets.name} shares memory with an output")
    groups, longest, runtime = described_groups(offsets, level.size), grouped.longest, product.runtime
    groups = dataclasses.replace(groups, rows=grouped.rows, span=grouped.span)
    if longest is not None:
        groups = dataclasses.replace(groups, longest=example(longest))
        runtime = (*runtime, (LONGEST, longest)) if isinstance(longest, Expr) else runtime
    problem = dataclasses.replace(problem, groups=groups, runtime=tuple(name for name, _ in runtime))
    product = dataclasses.replace(product, problem=problem, offsets=offsets.id, runtime=runtime)
    return _side_by_side(product, batched)


def _of_groups_of_k(product: Product, grouped: GroupedK) -> Product:
    """Return the product of which each matmul of the batch has the K of its group. Raises ``Refusal``."""
    offsets = grouped.offsets
    if offsets is None:
        return product
    size = grouped.program.blocks[grouped.group].extent
    if product.batch_blocks != (grouped.group,) or not isinstance(size, (int, Expr)):
        raise Refusal(
            f"{offsets.name} has groups of K, which are implemented with one matmul of each, and no other batch"
        )
    if any(grouped.program.tensors[output].storage == offsets.storage for output in product.outputs):
        raise Refusal(f"{offsets.name} shares memory with an output")
    ends = Ends(side="batch", groups=described_groups(offsets, size))
    problem = dataclasses.replace(product.problem, ends=ends)
    return dataclasses.replace(product, problem=problem, offsets=offsets.id)


def _side_by_side(product: Product, batched: Batched) -> Product:
    """Return the product of a batch, whose dimensions of one matmul each are left out."""
    is_empty = product.is_empty or any(equal(level.size, 0) for level in batched.levels)
    product = dataclasses.replace(product, batch_blocks=batched.blocks, is_empty=is_empty)
    levels = _joined([level for level in batched.levels if not equal(level.size, 1)])
    if not levels or is_empty:
        return product
    product = _with_batched_scales(_with_batched_sources(product, levels), levels)
    numbers, batch = dict[str, Number](), None
    for level in reversed(levels):
        numbers, batch = _numbers(product, level), _batch(product, level, batch)
        varying = [name for name, number in numbers.items() if isinstance(number, Expr)]
        if len(levels) > 1 and varying:
            raise Refusal(
                "a batch of several dimensions has sizes and strides that are known when the kernel is compiled"
            )
    problem = product.problem
    runtime = (*product.runtime, *((name, each) for name, each in numbers.items() if isinstance(each, Expr)))
    names = tuple(name for name, _ in runtime)
    return dataclasses.replace(
        product, problem=dataclasses.replace(problem, batch=batch, runtime=names), runtime=runtime
    )


def _with_batched_sources(product: Product, levels: Sequence[Level]) -> Product:
    """Return the product with the strides of a batch of the sources of copied operands after the first."""
    problem, copied, rest = product.problem, list[Copied](), list(product.sources)
    batched = {tensor for level in levels for tensor in level.strides}
    if not batched & {*rest}:
        return product
    if problem.groups is not None or problem.summed:
        raise Refusal(
            "an operand of groups of rows that is computed from several tensors of a group is not implemented"
        )
    for each in problem.copied:
        sources = [each.sources[0]]
        for source in each.sources[1:]:
            tensor = rest.pop(0)
            steps = (known(level.strides.get(tensor, 0), f"a stride of {source.name}") for level in levels)
            sources.append(dataclasses.replace(source, batch=tuple(steps)) if tensor in batched else source)
        del rest[: len(each.tensors) - len(each.sources)]
        copied.append(dataclasses.replace(each, sources=tuple(sources)))
    return dataclasses.replace(product, problem=dataclasses.replace(problem, copied=tuple(copied)))


def _with_batched_scales(product: Product, levels: Sequence[Level]) -> Product:
    """Return the product with the stride of a batch of each scale of blocks of K."""
    scales = product.problem.scales
    if scales is None:
        return product
    factors = []
    for scale, tensor in zip(scales.factors, product.scales, strict=True):
        steps = [known(level.strides.get(tensor, 0), f"a stride of {scale.name}") for level in levels]
        if any(steps[1:]):
            raise Refusal("scales of blocks of K are implemented for one matmul, or a batch of one dimension")
        factors.append(dataclasses.replace(scale, batch=steps[0]))
    scales = dataclasses.replace(scales, factors=tuple(factors))
    return dataclasses.replace(product, problem=dataclasses.replace(product.problem, scales=scales))


def _joined(levels: Sequence[Level]) -> list[Level]:
    """Join dimensions of a batch that are one for each tensor."""
    found: list[Level] = []
    for level in levels:
        inner = found[-1] if found else None
        tensors = {*level.strides, *(inner.strides if inner is not None else ())}
        if inner is not None and all(_goes_on(inner, level, each) for each in tensors):
            found[-1] = Level(size=inner.size * level.size, strides=inner.strides)
        else:
            found.append(level)
    return found


def _goes_on(inner: Level, outer: Level, tensor: int) -> bool:
    """Return whether a tensor's next matrix along `outer` follows its last one along `inner`."""
    step, after = inner.strides.get(tensor, 0), outer.strides.get(tensor, 0)
    return equal(after, 0 if equal(step, 0) else step * inner.size)


def _numbers(product: Product, level: Level) -> dict[str, Number]:
    """Return the size and the strides of a dimension of the batch, by their names at launch."""
    problem = product.problem
    written = tuple(map(problem.label_of, problem.outputs))
    labels = ("a", "b", *written, *(operand.label for operand in problem.epilogue.operands))
    sources = (product.a, product.b, *product.outputs, *product.operands)
    numbers: dict[str, Number] = {"batches": level.size}
    for label, source in zip(labels, sources, strict=True):
        numbers[f"batch_stride_{label}"] = 0 if isinstance(source, Expr) else level.strides.get(source, 0)
    stored = [problem.label_of(each) for each in problem.outputs if not each.adds]
    if problem.groups is None and any(equal(numbers[f"batch_stride_{label}"], 0) for label in stored):
        raise Refusal("all matmuls of the batch are stored at the same address")
    return numbers


def _batch(product: Product, level: Level, outer: Batch | None) -> Batch:
    size, a, b, *others = (
        example(number, EXAMPLE_MULTIPLE if at else 1) for at, number in enumerate(_numbers(product, level).values())
    )
    outputs = len(product.problem.outputs)
    (d, *more), operands = others[:outputs], others[outputs:]
    terms = tuple(known(level.strides.get(each, 0), "a stride of a batch") for each in product.terms)
    return Batch(size=size, a=a, b=b, d=d, operands=tuple(operands), more=tuple(more), terms=terms, outer=outer)


def multiples(product: Product) -> dict[str, int]:
    """Return required divisors of host numbers, by name, so that launch-time strides are multiples of 16 bytes.

    They cover strides that are multiples now, or might be for other arguments.
    """
    found: dict[str, int] = {}
    for name, number in product.runtime:
        multiple = multiple_of(product.problem, name)
        names = dividing(multiple, number)
        if names is None:
            names = frozenset(leaf.args[0] for leaf in number.leaves() if leaf.op == "host" and leaf.kind is int)
        found |= {each: max(multiple, found.get(each, 1)) for each in names if multiple > 1}
    return found


def check_strides(product: Product) -> None:
    """Check strides known only at launch. Raises ``Refusal`` for one that is no multiple of 16 bytes for the
    bound arguments."""
    for name, number in product.runtime:
        multiple = multiple_of(product.problem, name)
        if dividing(multiple, number) is None:
            elements, width = hint_of(number), TMA_ALIGNMENT_BYTES // multiple
            raise Refusal(
                f"{shown(product.problem, name)} has a stride of {elements} elements, {elements * width} bytes; TMA needs a"
                f" multiple of {TMA_ALIGNMENT_BYTES} bytes"
            )


def build_plan(program: Program, decisions: Decisions, target: Target, settings: Settings) -> CutePlan:
    """Build the plan of a program. Raises ``exc.InvalidConfig`` for decisions that the planner refuses."""
    product = known_product(program)
    try:
        gemm = plan_gemm(product.problem, choice_of(decisions, product, target), target)
    except Refusal as refusal:
        raise exc.InvalidConfig(f"{program.host.name} on {target}: {as_written(program, refusal)}.") from refusal
    return CutePlan(
        program=program,
        gemm=gemm,
        arguments=tuple(at if isinstance(at, Expr) else program.tensors[at] for at in product.arguments),
        runtime=product.runtime,
        is_empty=product.is_empty,
        sizes=tuple(decisions.sizes[block.id] for block in program.blocks),
        overwritten=tuple(dict.fromkeys(tensor.source for tensor in overwritten(program, program))),
        origin_lines=settings.output_origin_lines,
        tunables=tuple((name, decisions.values[name]) for name, _ in program.tunables),
    )
