"""Reads of sources of one number for each query and key: by TMA, or 16 bytes at a time.

TMA loads tiles of a bias to shared memory, from where matrix loads bring them to the registers of their scores. Other sources
are loaded from global memory. A thread has two scores of each eight keys. The four lanes of a row load eight elements of 16 bits each, and exchange pairs of
them. Elements of 32 bits, and those of rows that are not aligned so well, are loaded in pairs.

Loops of gradients store such numbers as well, as the gradient of a bias. Threads write the two of a pair of columns at once
where they are one aligned word, or two. So they do with gradients in fp32, which shared memory has no room for.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...plan.attention.backward import BackwardPlan
from ...plan.attention.gradients import LoopOutput
from ...plan.attention.numbers import is_known, text_of
from ...plan.attention.operands import PAIR, VECTOR, RandomNumbers, Source, Table
from ...plan.attention.records import AttentionPlan, Formula, ScorePlan
from ...plan.dtypes import itemsize
from ..setups import dsl
from .formula import head_axes

COLUMNS = 4
"""Columns of a block, of eight keys each, whose elements the lanes of a row load in one access each."""
DTYPES = ("bfloat16", "float16", "float32")


def width_of(plan: ScorePlan, source: Source | Table | RandomNumbers) -> int:
    """Return the elements of an access of a source: those of two scores, or ``VECTOR``, or 1 if rows are not aligned to these."""
    problem = plan.problem
    quads = isinstance(plan, AttentionPlan) and plan.takes_quads
    moved = problem.spans_keys or problem.key_range is not None or quads
    if not isinstance(source, Source) or isinstance(source, RandomNumbers) or moved:
        return 1
    if source.kind != "exact" or source.dtype not in DTYPES:
        return 1
    steps = (problem.keys, source.pitches[0], source.offset, *(mode.stride for mode in source.modes))
    if source.pitches[1] != 1 or not all(map(is_known, steps)):
        return 1
    exchanged = source.dtype != "float32" and plan.keys % (VECTOR * COLUMNS) == 0
    widths = (VECTOR, PAIR) if exchanged else (PAIR,)
    return next((each for each in widths if all(step % each == 0 for step in steps)), 1)


def vector_functions(plan: ScorePlan, formula: Formula, ahead: Sequence[Source] = ()) -> list[list[str]]:
    """Return the functions that load a row's elements of some columns, of sources that take them; those ``ahead`` are loaded
    before they are used."""
    bias = plan.bias if isinstance(plan, AttentionPlan) else None
    widths = [
        (source, width_of(plan, source)) for source in formula.sources if source is not bias and source not in ahead
    ]
    found = [_function(source, width) for source, width in widths if width > 1 and isinstance(source, Source)]
    return [*found, *(function for source in ahead for function in ahead_functions(plan, source))]


def loads(plan: ScorePlan, source: Source, axes: Sequence[str]) -> list[str]:
    """Return the lines before the elements of a column. Those past the end, which are not used, are the last ones."""
    problem, width = plan.problem, width_of(plan, source)
    query = f"cutlass.min(first_query + 8 * row, {problem.queries - 1})"
    own = "" if width == PAIR else f" + lane % 4 * {VECTOR - PAIR}"
    key = f"cutlass.min(first_key{own} + 8 * column, {problem.keys - width})"
    heads = "".join(f", {mode.at.text(tuple(axes))}" for mode in source.modes)
    row = f"vectors_of_{source.label}(vector_{source.label}, lane, {query}, {key}{heads})"
    line = f"{source.label}_rows = [{row} for row in range(2)]"
    return [line] if width == PAIR else [f"if column % {COLUMNS} == 0:", f"    {line}"]


def element(plan: ScorePlan, source: Source) -> str:
    """Return the element of a score, in fp32."""
    at = "i" if width_of(plan, source) == PAIR else f"2 * (column % {COLUMNS}) + i"
    return f"{source.label}_rows[row][{at}].to(cutlass.Float32)"


def _function(source: Source, width: int) -> list[str]:
    """Return the function of a row's elements of a lane: pairs of columns, each of four from another lane."""
    lines = [
        f"def vectors_of_{source.label}(vector, lane, *place):",
        f"    part = cute.make_rmem_tensor({width}, {dsl(source.dtype)})",
        "    at = cute.crd2idx(place, vector.layout)",
        f"    loaded = cute.make_tensor(vector.iterator + cute.assume(at, divby={width}), cute.make_layout({width}))",
        "    cute.autovec_copy(loaded, part)",
    ]
    return [*lines, *(_EXCHANGED if width == VECTOR else []), "    return part"]


_EXCHANGED = [
    "    words = cute.recast_tensor(part, cutlass.Int32)",
    "    for width in (1, 2):",
    "        odd = (lane & width) != 0",
    "        for at in range(0, 4, 2) if width == 1 else range(2):",
    "            low, high = words[at], words[at + width]",
    "            taken = cute.arch.shuffle_sync_bfly(cutlass.select_(odd, low, high), offset=width)",
    "            words[at] = cutlass.select_(odd, taken, low)",
    "            words[at + width] = cutlass.select_(odd, high, taken)",
]
"""The exchange of pairs of columns among the lanes of a row."""


def ahead_functions(plan: ScorePlan, source: Source) -> list[list[str]]:
    """Return the functions of a source that is loaded while a block's MMAs run: the loads of all of a block's columns, and the
    exchange of some of them when they are used."""
    width, label = width_of(plan, source), source.label
    columns = COLUMNS if width == VECTOR else 1
    own = f" + lane % 4 * {VECTOR - PAIR}" if width == VECTOR else ""
    place = f"cutlass.min(first_query + 8 * row, {plan.problem.queries - 1}), cutlass.min(first_key{own} + {8 * columns} * group, {plan.problem.keys - width})"
    return [
        [
            f"def load_{label}(held, vector, first_query, first_key, lane, *heads):",
            f"    for group in range({plan.keys // (8 * columns)}):",
            "        for row in range(2):",
            f"            at = cute.crd2idx(({place}, *heads), vector.layout)",
            f"            loaded = cute.make_tensor(vector.iterator + cute.assume(at, divby={width}), cute.make_layout({width}))",
            "            cute.autovec_copy(loaded, held[None, row, group])",
        ],
        [
            f"def exchanged_{label}(held, lane, row, group):",
            "    part = held[None, row, group]",
            *(_EXCHANGED if width == VECTOR else []),
            "    return part",
        ],
    ]


def ahead_registers(plan: ScorePlan, source: Source) -> str:
    """Return the registers of a block of a source that is loaded ahead."""
    width = width_of(plan, source)
    groups = plan.keys // (8 * COLUMNS if width == VECTOR else 8)
    return f"{source.label}_ahead = cute.make_rmem_tensor(({width}, 2, {groups}), {dsl(source.dtype)})"


def load_ahead(source: Source, axes: Sequence[str]) -> str:
    """Return the call that loads a block of a source."""
    heads = "".join(f", {mode.at.text(tuple(axes))}" for mode in source.modes)
    label = source.label
    return f"load_{label}({label}_ahead, vector_{label}, first_query, first_key, lane{heads})"


def exchange(plan: ScorePlan, source: Source) -> list[str]:
    """Return the lines before the elements of a column, of a source that was loaded ahead."""
    label, pair = source.label, width_of(plan, source) == PAIR
    group = "column" if pair else f"column // {COLUMNS}"
    line = f"{label}_rows = [exchanged_{label}({label}_ahead, lane, row, {group}) for row in range(2)]"
    return [line] if pair else [f"if column % {COLUMNS} == 0:", f"    {line}"]


# Bias in shared memory ---------------------------------------------------------------------------------------------------


def partition(plan: AttentionPlan) -> list[str]:
    """Return the partition of the bias for its TMA loads, in the role that loads it."""
    if plan.bias is None:
        return []
    modes = ", ".join(["None"] * (2 + len(plan.bias.modes)))
    return [
        f"tiles_bias = cute.local_tile(tensor_bias, ({plan.group_rows}, {plan.keys}), ({modes}))",
        "to_bias, from_bias = cpasync.tma_partition(",
        "    tma_bias, 0, cute.make_layout(1), cute.group_modes(shared_bias, 0, 2), cute.group_modes(tiles_bias, 0, 2)",
        ")",
    ]


def load(plan: AttentionPlan, cursor: str) -> list[str]:
    """Return the loads of the bias of a tile's queries and the block's keys, one for each group of queries."""
    assert plan.bias is not None
    places = [mode.at.text(head_axes(plan.problem)) for mode in plan.bias.modes]
    source = ", ".join(["None", f"tile_m * {plan.groups} + part", "block", *places])
    return [
        f"for part in cutlass.range_constexpr({plan.groups}):",
        f"    cute.copy(tma_bias, from_bias[{source}], to_bias[None, {cursor}.index * {plan.groups} + part],"
        f" tma_bar_ptr=bias.producer_get_barrier({cursor}))",
    ]


def registers(plan: AttentionPlan) -> list[str]:
    """Return the registers of a block's bias, in the order of the scores, and the copy to them."""
    if plan.bias is None:
        return []
    dtype = dsl(plan.bias.dtype)
    return [
        f"bias_copy = cute.make_tiled_copy_C(cute.make_copy_atom(warp_level.LdMatrix8x8x16bOp(False, 4), {dtype}), mma_of_scores)",
        "bias_part = bias_copy.get_slice(group_thread).partition_S(shared_bias)",
        f"bias_values = cute.make_rmem_tensor(scores.shape, {dtype})",
        "bias_registers = bias_copy.retile(bias_values)",
    ]


def element_of_bias(bias: Source) -> str:
    """Return the bias of a score, in fp32: a pair of bfloat16 takes a shift and a mask."""
    if bias.dtype != "bfloat16":
        return "bias_values[4 * column + 2 * row + i].to(cutlass.Float32)"
    widened = '"and.b32 {$w0}, {$r0}, 0xffff0000;" if i else "shl.b32 {$w0}, {$r0}, 16;"'
    word = "cute.recast_tensor(bias_values, cutlass.Int32)[2 * column + row]"
    return f"cute.arch.inline_ptx({widened}, write_only_types=[cutlass.Float32], read_only_args=[{word}])"


def read_bias(plan: AttentionPlan, cursor: str) -> list[str]:
    """Return the copy of the group's bias from a stage."""
    stage = f"{cursor}.index * {plan.groups} + group"
    return [f"cute.copy(bias_copy, bias_part[None, None, None, {stage}], bias_registers)"]


# Stores by threads ----------------------------------------------------------------------------------------------------


def written(plan: BackwardPlan, late: bool) -> list[LoopOutput]:
    """Return the numbers that a block stores before, or after, its second product."""
    return [each for each in plan.problem.loop_outputs if plan.problem.late[each.value] == late]


def in_vectors(plan: BackwardPlan, output: LoopOutput) -> bool:
    """Return whether lanes of a row exchange numbers, so that each stores those of eight columns in one access."""
    return not output.adds and width_of(plan, output.target) == VECTOR


def first_column(plan: BackwardPlan, output: LoopOutput) -> str:
    """Return the first column that a thread stores."""
    return f"(first_key + lane % 4 * {VECTOR - PAIR})" if in_vectors(plan, output) else "first_key"


def vector_words(output: LoopOutput) -> str:
    """Return the registers of a thread's numbers of some columns, in pairs, of both rows."""
    return f"{output.target.name}_words = [cute.make_rmem_tensor({COLUMNS}, cutlass.Int32) for row in range(2)]"


def write_vector(output: LoopOutput) -> list[str]:
    """Return the lines that keep a pair of columns, and write those of some columns at once."""
    name = output.target.name
    given = f"{name}_at[row], {name}_room[row], 8 * (column - {COLUMNS - 1}), exchanged_words({name}_words[row], lane)"
    return [
        f"{name}_words[row][column % {COLUMNS}] = pack(*{name}_pair)",
        f"if column % {COLUMNS} == {COLUMNS - 1}:",
        f"    write_{name}({given})",
    ]


def addresses(plan: BackwardPlan, source: Source, column: str, columns: str, axes: Sequence[str]) -> list[str]:
    """Return the addresses of a thread's first element of both rows, ``column`` of ``columns``, and the elements from there to
    the end of the row: none of a row past the end."""
    name, vector, row = source.name, f"vector_{source.label}", "first_query + 8 * row"
    place = ", ".join([row, column, *(mode.at.text(tuple(axes)) for mode in source.modes)])
    room = f"cutlass.select_({row} < {text_of(plan.problem.queries)}, {columns} - {column}, 0)"
    at = f"({vector}.iterator + cute.crd2idx(({place}), {vector}.layout)).toint()"
    return [f"{name}_at = [{at} for row in range(2)]", f"{name}_room = [{room} for row in range(2)]"]


def write(source: Source, pair: str) -> str:
    """Return the call that writes the numbers of a pair of columns."""
    name = source.name
    more = "" if is_known(source.pitches[1]) else f", vector_{source.label}.stride[1]"
    return f"write_{name}({name}_at[row], {name}_room[row], 8 * column, {pair}{more})"


def write_functions(plan: BackwardPlan) -> list[list[str]]:
    """Return the functions that write two numbers of a row, or eight."""
    outputs = plan.problem.loop_outputs
    wide = [each for each in outputs if in_vectors(plan, each)]
    loop = [["def exchanged_words(words, lane):", *_EXCHANGED[1:], "    return words"]] if wide else []
    loop += [
        _write_vector_function(each.target)
        if each in wide
        else _write_function(each.target, plan.problem.keys, each.adds)
        for each in outputs
    ]
    of_sums = [each.wide for each in plan.problem.gradients]
    return [*loop, *(_write_function(*each) for each in of_sums if each is not None)]


def _write_vector_function(source: Source) -> list[str]:
    """Return the function that writes eight numbers of 16 bits, which are in the row or not."""
    return [
        f"def write_{source.name}(address, room, first, words):",
        f"    at = {itemsize(source.dtype)} * first",
        "    cute.arch.inline_ptx(",
        '        f"{{ .reg .pred p; setp.gt.s32 p, {{$r1}}, {first}; "',
        '        f"@p st.global.v4.b32 [{{$r0}}+{at}], {{{{$r2}}, {{$r3}}, {{$r4}}, {{$r5}}}}; }}",',
        f"        read_only_args=[address, room, {', '.join(f'words[{at}]' for at in range(COLUMNS))}],",
        "    )",
    ]


def _is_even(source: Source, columns: int) -> bool:
    """Return whether rows have whole pairs of columns, which are aligned in memory."""
    steps = (columns, source.pitches[0], source.offset, *(mode.stride for mode in source.modes))
    return source.pitches[1] == 1 and all(is_known(step) and step % PAIR == 0 for step in steps)


def _write_function(source: Source, columns: int, adds: bool = False) -> list[str]:
    """Return the function that writes two numbers of a row, in one access where both are in the row or neither is. It takes
    the elements from one column to the next if only launches know them."""
    step, wide, size = source.pitches[1], source.dtype == "float32", itemsize(source.dtype)
    known = is_known(step)
    places = ["{{$r0}}+{at}", f"{{{{$r0}}}}+{{at + {step * size}}}"] if known else ["{{$r0}}", "{{$r1}}"]
    room, *words = (f"{{{{$r{number}}}}}" for number in range(len(places) - known, 4 + (not known)))
    values = words if wide else ["low", "high"]
    store = "red.relaxed.gpu.global.add.f32" if adds else f"st.global.{'f32' if wide else 'b16'}"
    inside = [f"setp.gt.s32 {'pq'[at]}, {room}, {{first + {at}}};" for at in range(2)]
    if _is_even(source, columns):
        kind, value = ("v2.f32", f"{{{{{', '.join(words)}}}}}") if wide else ("b32", words[0])
        how = f"red.relaxed.gpu.global.add.{kind}" if adds else f"st.global.{kind}"
        body = [f"{inside[0]} @p {how} [{places[0]}], {value};"]
    else:
        body = [f"{inside[at]} @{'pq'[at]} {store} [{places[at]}], {values[at]};" for at in range(2)]
        body = [*([] if wide else [f"mov.b32 {{{{low, high}}}}, {words[0]};"]), *body]
    registers = ".reg .pred p, q; " + ("" if wide else ".reg .b16 low, high; ")
    at = (
        f"at = {step * size} * first"
        if known
        else f"at = [address + cutlass.Int64(first + i) * step * {size} for i in range(2)]"
    )
    given = ["address" if known else "*at", "room", *(["low", "high"] if wide else ["pack(low, high)"])]
    return [
        f"def write_{source.name}(address, room, first, low, high{'' if known else ', step'}):",
        f"    {at}",
        "    cute.arch.inline_ptx(",
        f'        f"{{{{ {registers}"',
        *(f'        f"{line} "' for line in body),
        '        f"}}",',
        f"        read_only_args=[{', '.join(given)}],",
        "    )",
    ]
