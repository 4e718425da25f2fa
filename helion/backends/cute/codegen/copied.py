"""Code of the warps that copy operands: loads with clamped indices or of raw tiles, arithmetic in fp32, writes of 16
bytes."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from ..plan.copied import CHUNK_BYTES, Copied
from ..plan.counts import (
    along_lines,
    chunk_elements,
    chunks_of_thread,
    copied_lines,
    copying_threads,
    elements_of_thread,
    is_raw,
    is_vector,
    past_registers,
    through_registers,
    turns,
    varies,
)
from ..plan.dtypes import DTYPES, itemsize
from ..plan.epilogue import COLUMN_NUMBER, ROW_NUMBER, Constant
from ..plan.records import WARP_THREADS, GemmPlan
from ..roles import grammar as g
from . import granules, raw
from .epilogue import EXPRESSIONS, literal
from .outputs.strided import numbers_name
from .slices import sliced

_WORDS = {1: "Uint8", 2: "Uint16", 4: "Uint32", 8: "Uint64"}
"""Types that elements are moved as if they are not computed."""
WIDEN_BYTES = (
    "",
    "",
    "def widen_bytes(numbers, least, wide):",
    "    words = cute.recast_tensor(numbers, cutlass.Uint32)",
    "    for at in range(cute.size(wide)):",
    "        word = words[at // 4] ^ cutlass.Uint32(0x80808080 if least else 0)",
    "        shifted = cute.arch.inline_ptx(",
    '            f"prmt.b32 {{$w0}}, {{$r0}}, {{$r1}}, {0x7440 + at % 4};",',
    "            write_only_types=[cutlass.Float32],",
    "            read_only_args=[word, cutlass.Uint32(0x4B000000)],",
    "        )",
    "        wide[at] = shifted - (8388608.0 - least)",
)
"""The conversion of 8-bit integers to fp32: bytes become the mantissa of 2**23, which is subtracted. It takes two
instructions at the full rate, where an I2F has a quarter of it."""


class Layout:
    """The chunks of a copied operand in a stage, by thread. ``elements`` are those of a chunk, ``chunks`` those of a line,
    or of a column if they are ``along_lines``, and ``items`` those of a thread."""

    def __init__(self, plan: GemmPlan, copied: Copied) -> None:
        self.plan, self.copied = plan, copied
        self.is_a = copied.operand == "a"
        self.lines = copied_lines(plan, copied)
        self.elements = chunk_elements(plan)
        self.along_lines = along_lines(plan, copied)
        self.chunks = (self.lines if self.along_lines else plan.tile[2]) // self.elements
        self.items = chunks_of_thread(plan, copied)
        self.threads = copying_threads(plan)
        self.label = copied.operand

    @property
    def line(self) -> str:
        """The line of item ``i`` in the tile, the first one if its chunk is along lines."""
        if self.along_lines:
            return f"(copy_thread + i * {self.threads}) % {self.chunks} * {self.elements}"
        if self.copied.lines_are_contiguous:
            return f"(copy_thread + i * {self.threads}) % {self.lines}"
        return f"copy_thread // {self.chunks} + i * {self.threads // self.chunks}"

    @property
    def k(self) -> str:
        """The index along K of item ``i`` in the tile, the first one if its chunk is along K."""
        if self.along_lines:
            return f"(copy_thread + i * {self.threads}) // {self.chunks}"
        if self.copied.lines_are_contiguous:
            return f"(copy_thread + i * {self.threads}) // {self.lines} * {self.elements}"
        return f"copy_thread % {self.chunks} * {self.elements}"

    def within(self, index: str, *, line: bool) -> str:
        """Return the line or the index along K of element ``j``, given that of its chunk."""
        return f"{index} + j" if line == self.along_lines else index

    @property
    def first_line(self) -> str:
        """The first line of the tile."""
        return f"{'tile_m' if self.is_a else 'tile_n'} * {self.lines}"

    @property
    def moves(self) -> bool:
        """True if elements are moved as they are."""
        return not self.copied.instructions and self.copied.sources[0].dtype == self.plan.problem.operand_dtype

    def place(self, at: int) -> str:
        """Return the index of element ``j`` of item ``i`` in the registers of source number ``at``."""
        by_item, by_element = varies(self.plan, self.copied, self.copied.sources[at])
        if by_item and by_element:
            return f"i * {self.elements} + j"
        return "i" if by_item else "j" if by_element else "0"

    def dtype(self, at: int) -> str:
        """Return the type of the registers of a source."""
        dtype = self.copied.sources[at].dtype
        return f"cutlass.{_WORDS[itemsize(dtype)] if self.moves else DTYPES[dtype].dsl}"

    @property
    def stored(self) -> str:
        """The type of the elements that are written."""
        dtype = self.plan.problem.operand_dtype
        return f"cutlass.{_WORDS[itemsize(dtype)] if self.moves else DTYPES[dtype].dsl}"


def source_names(copied: Copied) -> list[str]:
    """Return the kernel's tensors of the sources of an operand."""
    return [f"source_{copied.operand}_{at}" for at in range(len(copied.sources))]


def lines_name(copied: Copied) -> str:
    """Return the kernel's tensor of the numbers of picked lines."""
    return f"lines_of_{copied.operand}"


def pointer_names(plan: GemmPlan) -> list[str]:
    """Return the host function's pointers of further sources, in the order of ``more_sources``."""
    lines = [numbers_name(output) for output in plan.whole.outputs if output.lines is not None]
    made = (*plan.whole.copied, *plan.whole.summed)
    return [*(name for copied in made for name in pointers_of(copied)[1:]), *lines]


def pointers_of(copied: Copied) -> list[str]:
    """Return the host function's pointers of the tensors of an operand."""
    return [copied.operand, *(f"{copied.operand}_from_{at}" for at in range(1, len(copied.tensors)))]


def tensors(plan: GemmPlan) -> list[str]:
    """Return the host's definitions of the tensors of all sources: (lines, K), and the batch if it has one."""
    found = []
    for copied in plan.problem.copied:
        layout = Layout(plan, copied)
        extent = plan.problem.m if layout.is_a else plan.problem.n
        for at, (name, pointer) in enumerate(zip(source_names(copied), pointers_of(copied), strict=False)):
            source = copied.sources[at]
            shape, stride = f"({extent}, {plan.problem.k}", f"({source.pitch}, {source.k_pitch}"
            if at == 0 and (pitch := plan.problem.batch_pitch(copied.operand)):
                shape, stride = f"{shape}, {plan.problem.batches}", f"{stride}, {pitch}"
            given = f"cute.recast_ptr({pointer}, dtype={layout.dtype(at)})" if layout.moves else pointer
            found.append(f"{name} = cute.make_tensor({given}, cute.make_layout({shape}), stride={stride})))")
    return found


def lines(step: g.CopyStep, plan: GemmPlan, role: g.Role, stages: int) -> list[str]:
    """Return the code of a step of the copying warps; ``stages`` are those of A and B."""
    return _lines(step, plan, role, stages)


@functools.singledispatch
def _lines(step: g.CopyStep, plan: GemmPlan, role: g.Role, stages: int) -> list[str]:
    raise NotImplementedError(f"no rule prints {type(step).__name__}")


def set_up(plan: GemmPlan, role: g.Role) -> list[str]:
    """Define the registers of the copying warps."""
    found = [f"copy_thread = thread - {role.first_warp * WARP_THREADS}"]
    if (groups := turns(plan)) > 1:
        found = [
            f"copy_turn = (warp - {role.first_warp}) % {groups}",
            f"copy_thread = (warp - {role.first_warp}) // {groups} * {WARP_THREADS} + lane",
        ]
    if plan.products > 1 and any(copied.operand != "a" for copied in plan.problem.copied):
        found.append("copy_part = cute.make_tensor(shared_b.iterator, layout_part.outer)")
    for copied in past_registers(plan):
        found += granules.set_up(copied, "shared_a" if copied.operand == "a" else "shared_b")
    for copied in through_registers(plan):
        layout = Layout(plan, copied)
        for at, name in enumerate(source_names(copied)):
            size = elements_of_thread(plan, copied, copied.sources[at])
            found.append(f"{name}_loaded = cute.make_rmem_tensor({size}, {layout.dtype(at)})")
        if not layout.moves:
            found.append(f"{layout.label}_computed = cute.make_rmem_tensor({layout.elements}, cutlass.Float32)")
        found.append(f"{layout.label}_written = cute.make_rmem_tensor({layout.elements}, {layout.stored})")
    return found


@_lines.register
def _(step: g.LoadElements, plan: GemmPlan, role: g.Role, stages: int) -> list[str]:
    copied = plan.problem.copy_of(step.operand)
    assert copied is not None
    layout = Layout(plan, copied)
    tile = f"(k_tile + {step.ahead})" if step.ahead else "k_begin" if plan.parts > 1 else "0"
    tile = "k_tile" if step.now else tile
    found: list[str] = []
    for at, name in enumerate(source_names(copied)):
        if at or not is_raw(plan, copied):
            found += _load(layout, at, name, tile)
    return found


def _load(layout: Layout, at: int, name: str, tile: str) -> list[str]:
    plan, source = layout.plan, layout.copied.sources[at]
    extent, k = (plan.problem.m if layout.is_a else plan.problem.n), plan.problem.k
    batch = ", batch" if at == 0 and plan.problem.batch_pitch(layout.label) else ""
    line, index = f"{layout.first_line} + {layout.line}", f"{tile} * {plan.tile[2]} + {layout.k}"
    if is_vector(plan, layout.copied, source):
        last_line, last = extent - 1, k - 1
        if layout.along_lines:
            last_line = extent - layout.elements
        else:
            last = k - layout.elements
        place = f"(cutlass.min({line}, {last_line}), cutlass.min({index}, {last}){batch})"
        vector = f"{name}.iterator + cute.crd2idx({place}, {name}.layout)"
        return [f"for i in cutlass.range_constexpr({layout.items}):", *_read(layout, at, name, vector)]
    line = f"cutlass.min({layout.within(line, line=True)}, {extent - 1})" if source.pitch else "0"
    index = f"cutlass.min({layout.within(index, line=False)}, {k - 1})" if source.k_pitch else "0"
    place = layout.place(at)
    loops = [("i", layout.items if place[0] == "i" else 1), ("j", layout.elements if place[-1] == "j" else 1)]
    found, indent = [], ""
    for variable, count in loops:
        found.append(f"{indent}for {variable} in cutlass.range_constexpr({count}):")
        indent += "    "
    return [*found, f"{indent}{name}_loaded[{place}] = {name}[{line}, {index}{batch}]"]


def _read(layout: Layout, at: int, name: str, vector: str) -> list[str]:
    """Return the body of a loop over items that reads a chunk at the pointer ``vector`` into the registers of a source."""
    bytes_ = min(CHUNK_BYTES, layout.elements * itemsize(layout.copied.sources[at].dtype))
    whole = f"cute.make_layout({layout.elements})"
    return [
        f"    vector = ({vector}).align({bytes_})",
        f"    to_vector = cute.make_tensor({name}_loaded.iterator + i * {layout.elements}, {whole})",
        f"    cute.autovec_copy(cute.make_tensor(vector, {whole}), to_vector)",
    ]


@_lines.register
def _(step: g.LoadRaw, plan: GemmPlan, role: g.Role, stages: int) -> list[str]:
    return raw.load(plan, step)


@_lines.register
def _(step: g.ReadRaw, plan: GemmPlan, role: g.Role, stages: int) -> list[str]:
    if plan.converts:
        return raw.read(plan, step)
    copied = plan.problem.copy_of(step.operand)
    assert copied is not None
    layout = Layout(plan, copied)
    vector = f"cute.recast_ptr(shared_raw_{step.operand}.iterator, dtype={layout.dtype(0)}) + raw_at"
    return [
        f"for i in cutlass.range_constexpr({layout.items}):",
        f"    raw_at = {raw.place(plan, copied, layout.line, layout.k, step.cursor)}",
        *_read(layout, 0, source_names(copied)[0], vector),
    ]


@_lines.register
def _(step: g.CopyAcquire, plan: GemmPlan, role: g.Role, stages: int) -> list[str]:
    return [f"ab.sync_object_empty.wait({step.cursor}.index, {step.cursor}.phase)"]


@_lines.register
def _(step: g.CopyCommit, plan: GemmPlan, role: g.Role, stages: int) -> list[str]:
    return [
        "with cute.arch.elect_one():",
        f"    cute.arch.mbarrier_arrive(ab.producer_get_barrier({step.cursor}))",
    ]


@_lines.register
def _(step: g.CopyTail, plan: GemmPlan, role: g.Role, stages: int) -> list[str]:
    return [
        f"for stage in cutlass.range_constexpr({stages}):",
        f"    ab.sync_object_empty.wait({step.cursor}.index, {step.cursor}.phase)",
        f"    {step.cursor}.advance()",
    ]


@_lines.register
def _(step: g.StartCopies, plan: GemmPlan, role: g.Role, stages: int) -> list[str]:
    copied = plan.problem.copy_of(step.operand)
    assert copied is not None
    shared, place = _stage_place(plan, step.operand, step.cursor)
    (source,) = source_names(copied)
    return granules.start(plan, copied, source, f"{shared}.layout", place, Layout(plan, copied).first_line)


@_lines.register
def _(step: g.ArriveAfterCopies, plan: GemmPlan, role: g.Role, stages: int) -> list[str]:
    return granules.arrive(step)


@_lines.register
def _(step: g.OrderCopies, plan: GemmPlan, role: g.Role, stages: int) -> list[str]:
    return ['cute.arch.fence_proxy("async.shared", space="cta")']


def _stage_place(plan: GemmPlan, operand: str, cursor: str) -> tuple[str, str]:
    """Return the tensor of an operand's stages, and the coordinate there of ``copy_line`` and ``copy_k``."""
    shared, stage = f"shared_{operand}", f"{cursor}.index"
    if operand != "a":
        labels = ("b", *(each.label for each in plan.problem.epilogue.of_kind("product")))
        shared = "shared_b" if plan.products == 1 else "copy_part"
        stage = stage if plan.products == 1 else f"{stage} * {plan.products} + {labels.index(operand)}"
    if plan.unit == "tcgen05":
        atom = DTYPES[plan.problem.operand_dtype].mma_k
        return shared, f"(copy_line, copy_k % {atom}), 0, copy_k // {atom}, {stage}"
    return shared, f"copy_line, copy_k, {stage}"


@_lines.register
def _(step: g.WriteElements, plan: GemmPlan, role: g.Role, stages: int) -> list[str]:
    copied = plan.problem.copy_of(step.operand)
    assert copied is not None
    layout = Layout(plan, copied)
    shared, place = _stage_place(plan, step.operand, step.cursor)
    swizzle = f"layout_{'a' if layout.is_a else 'b'}.inner"  # recasting would drop it
    return [
        f"for i in cutlass.range_constexpr({layout.items}):",
        f"    copy_line = {layout.line}",
        f"    copy_k = {layout.k}",
        *(f"    {line}" for line in _computed(layout, copied)),
        f"    to_chunk = ({shared}.iterator + cute.crd2idx(({place}), {shared}.layout)).align({CHUNK_BYTES})",
        f"    to_chunk = cute.recast_ptr(to_chunk, {swizzle}, dtype={layout.stored})",
        f"    cute.autovec_copy({step.operand}_written, cute.make_tensor(to_chunk, cute.make_layout({layout.elements})))",
    ]


def _computed(layout: Layout, copied: Copied) -> list[str]:
    """Return the elements of item ``i``, zero past the end of K."""
    names, plan, label = source_names(copied), layout.plan, layout.label
    index = layout.within(f"k_tile * {plan.tile[2]} + copy_k", line=False)
    inside = f"{index} < {plan.problem.k}" if plan.problem.k % plan.tile[2] else ""
    each = f"for j in cutlass.range_constexpr({layout.elements}):"
    if layout.moves:
        value = f"{names[0]}_loaded[{layout.place(0)}]"
        value = f"{layout.stored}(cutlass.select_({inside}, {value}, {layout.stored}(0)))" if inside else value
        return [each, f"    {label}_written[j] = {value}"]
    found: list[str] = []
    for at, name in enumerate(names):
        found += _widened(layout, at, name)
    found.append(each)
    found += [f"    v{at} = {_number(layout, at, name)}" for at, name in enumerate(names)]
    for number, made in enumerate(copied.instructions, start=len(names)):
        arguments = [literal(x) if isinstance(x, Constant) else f"v{x}" for x in made.arguments]
        found.append(f"    v{number} = {_expression(layout, made.op, arguments)}")
    value = f"v{copied.last}"
    value = f"cutlass.Float32(cutlass.select_({inside}, {value}, cutlass.Float32(0.0)))" if inside else value
    return [
        *found,
        f"    {label}_computed[j] = {value}",
        f"{label}_written.store({label}_computed.load().to({layout.stored}))",
    ]


def _expression(layout: Layout, op: str, arguments: Sequence[str]) -> str:
    if op == ROW_NUMBER:
        return f"cutlass.Float32({layout.within(f'{layout.first_line} + copy_line', line=True)})"
    if op == COLUMN_NUMBER:
        return f"cutlass.Float32({layout.within(f'k_tile * {layout.plan.tile[2]} + copy_k', line=False)})"
    return EXPRESSIONS[op](*arguments)


def _is_wide(layout: Layout, at: int) -> bool:
    """Return whether a chunk of a source is converted as a whole: the DSL converts vectors of 8-bit floats, and 8-bit
    integers of a vector take fewer cycles together."""
    source = layout.copied.sources[at]
    return source.dtype.startswith("float8") or _is_bytes(layout, at)


def _is_bytes(layout: Layout, at: int) -> bool:
    """Return whether a source is of 8-bit integers that a thread has in words."""
    source = layout.copied.sources[at]
    packed = is_vector(layout.plan, layout.copied, source) or (at == 0 and is_raw(layout.plan, layout.copied))
    return packed and source.dtype in raw.LEAST_BYTES and not layout.moves


def _widened(layout: Layout, at: int, name: str) -> list[str]:
    """Return the conversion of a chunk of 8-bit numbers."""
    if not _is_wide(layout, at):
        return []
    place = layout.place(at).replace("+ j", "").replace("j", "0").strip()
    view = f"cute.make_tensor({name}_loaded.iterator + {place}, cute.make_layout({layout.elements}))"
    wide = f"{name}_wide = cute.make_rmem_tensor({layout.elements}, cutlass.Float32)"
    if _is_bytes(layout, at):
        return [wide, f"widen_bytes({view}, {raw.LEAST_BYTES[layout.copied.sources[at].dtype]}, {name}_wide)"]
    return [wide, f"{name}_wide.store({view}.load().to(cutlass.Float32))"]


def definitions(plan: GemmPlan) -> tuple[str, ...]:
    """Return the functions that conversions call."""
    layouts = [Layout(plan, copied) for copied in through_registers(plan)]
    found = any(_is_bytes(layout, at) for layout in layouts for at in range(len(layout.copied.sources)))
    if plan.sliced:
        return sliced.definitions(plan)
    if plan.converts and not raw.is_packed(plan):
        found = raw.least_of(raw.source_of_a(plan)) is not None
    return (*(WIDEN_BYTES if found else ()), *raw.definitions(plan))


def _number(layout: Layout, at: int, name: str) -> str:
    """Return an element of a source in fp32."""
    if _is_wide(layout, at):
        return f"{name}_wide[j]"
    return f"{name}_loaded[{layout.place(at)}].to(cutlass.Float32)"
