"""Row kernels on numpy arrays of threads: the printed text runs as it is, with a stand-in for the DSL.

A cluster has one Python thread for each load warp, and one for all other threads of all its CTAs: each of its values is
an array over these. Barriers block, chunks hold NaN before they are filled, and a write outside of a tensor, or a second
write to a byte, is an error.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from backends.cute.ptx import QUOTIENT, rounded_to

from helion.backends.cute.codegen.rowwise.module import parameters, render
from helion.backends.cute.codegen.rowwise.totals import lines_of, parts_of, shared_parameters, total_columns, width_of
from helion.backends.cute.plan.rowwise.records import SIZE_M, SIZE_N, RowPlan, is_pitch
from helion.backends.cute.roles.rowwise.program import row_program

SECONDS = 200
SHARED_BASE = 1024


class Array(np.ndarray):
    """Values of the DSL: one for each thread, or one for all."""

    def bitcast(self, kind: Any) -> Array:
        return np.ascontiguousarray(self).view(kind.dtype).reshape(self.shape).view(Array)

    def to(self, kind: Any) -> Array:
        return kind(self)


def kind(dtype: type) -> Any:
    def make(value: Any) -> Array:
        found = np.asarray(value)
        if found.dtype.kind == "f" and np.dtype(dtype).kind == "i":
            found = np.trunc(np.nan_to_num(found.astype(np.float64)))
        if dtype is np.int32 and found.dtype != np.bool_:
            found = (found.astype(np.int64) & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
        return found.astype(dtype).view(Array)

    make.dtype = dtype  # type: ignore[attr-defined]
    return make


Int32, Int64, Float32, Boolean = kind(np.int32), kind(np.int64), kind(np.float32), kind(np.bool_)


def floats(value: Any) -> Array:
    return np.asarray(value, np.float32).view(Array)


def select(condition: Any, x: Any, y: Any) -> Array:
    found = np.where(condition, x, y)
    wide = {np.dtype(np.float64): np.float32, np.dtype(np.int64): None}.get(found.dtype)
    if found.dtype == np.int64 and not any(getattr(v, "dtype", None) == np.int64 for v in (x, y)):
        wide = np.int32
    return (found.astype(wide) if wide else found).view(Array)


def rounding(dtype: torch.dtype) -> Any:
    """A conversion to a type of 16 bits, of values that are kept in fp32."""
    return lambda value: floats(torch.from_numpy(np.asarray(value, np.float32)).to(dtype).float().numpy())


def of_ptx(text: str) -> Any:
    """An instruction: a quotient of two operands, or a conversion."""
    return wide(np.divide) if text.startswith(QUOTIENT) else rounding(rounded_to(text))


def wide(function: Any) -> Any:
    """A function of fp32 numbers, rounded once."""
    return lambda *x, **options: floats(function(*(np.asarray(v, np.float64) for v in x)))


def span(start: Any, stop: Any = None, step: int = 1, unroll: int = 1) -> Any:
    """A loop; where each thread has a start of its own, those that are through repeat the last iteration, and store
    nothing to global memory."""
    if stop is None or np.ndim(start) == 0:
        return range(int(start)) if stop is None else range(int(start), int(stop), step)
    return _apart(start, int(stop), step)


LOOPING = threading.local()
"""The threads that are in a loop of threads with a start each, as ``on``."""


def _apart(start: Array, stop: int, step: int) -> Any:
    for first in range(int(start.min()), stop, step):
        at = start + (first - int(start.min()))
        LOOPING.on = np.asarray(at < stop)
        yield np.minimum(at, stop - 1).view(Array)
    LOOPING.on = True


class Barrier:
    """An mbarrier that blocks."""

    def __init__(self, changed: threading.Condition, count: int) -> None:
        self.changed, self.count = changed, count
        self.pending, self.bytes, self.phase = count, 0, 0

    def arrive(self, arrivals: int = 1, expected: int = 0) -> None:
        with self.changed:
            assert 0 < arrivals <= self.pending, "more arrivals than the barrier counts"
            self.pending -= arrivals
            self.bytes += expected
            self._turn()

    def complete(self, size: int) -> None:
        with self.changed:
            self.bytes -= size
            self._turn()

    def wait(self, parity: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.phase != parity, SECONDS), "deadlock"

    def _turn(self) -> None:
        if self.pending == 0 and self.bytes == 0:
            self.pending, self.phase = self.count, self.phase ^ 1
            self.changed.notify_all()


class Memory:
    """Global memory: tensors at distant addresses. Outputs note which bytes were written."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, np.ndarray, np.ndarray | None]] = []

    def add(self, data: np.ndarray, written: bool) -> int:
        base = (len(self.parts) + 1) << 32
        self.parts.append((base, data, np.zeros(len(data), np.uint8) if written else None))
        return base

    def find(self, addresses: np.ndarray, slack: int = 0) -> tuple[int, np.ndarray, np.ndarray | None]:
        for base, data, written in self.parts:
            if base <= addresses.min() and addresses.max() < base + len(data) + slack:
                return base, data, written
        raise AssertionError(f"outside of memory: {addresses.min():x} to {addresses.max():x}")


class Cluster:
    """The CTAs of a cluster, with the DSL that their roles see."""

    def __init__(self, plan: RowPlan, memory: Memory, number: int, clusters: int) -> None:
        layout = plan.layout
        self.plan, self.memory, self.number, self.clusters = plan, memory, number, clusters
        self.ctas = layout.choice.cluster
        self.threads = layout.choice.rows * layout.threads
        self.first_thread = layout.first_thread
        self.cta = np.repeat(np.arange(self.ctas), self.threads)
        self.shared = np.full((self.ctas, layout.shared_bytes + SHARED_BASE + 256), 255, np.uint8)
        self.changed = threading.Condition()
        self.barriers: list[dict[int, Barrier]] = [{} for _ in range(self.ctas)]
        self.loads = self.ctas if self.first_thread else 0
        self.meeting = threading.Barrier(self.loads + 1)
        self.role = threading.local()
        self.errors: list[BaseException] = []

    def run(self, text: str, arguments: Sequence[Any]) -> None:
        names = self.names(text)
        workers = [threading.Thread(target=self._work, args=(names, at, arguments)) for at in range(self.loads + 1)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(3 * SECONDS)
        if self.errors:
            raise next((e for e in self.errors if not isinstance(e, threading.BrokenBarrierError)), self.errors[0])

    def _work(self, names: dict[str, Any], role: int, arguments: Sequence[Any]) -> None:
        """Run the load warp of CTA `role`, or all other threads."""
        self.role.cta = role if role < self.loads else None
        np.seterr(all="ignore")
        try:
            names["kernel"](*arguments)
        except BaseException as error:
            self.errors.append(error)
            self.meeting.abort()

    def names(self, text: str) -> dict[str, Any]:
        """Load the module, and replace what accesses memory."""
        identity = lambda function: function  # noqa: E731
        arch = types.SimpleNamespace(
            thread_idx=lambda: (self._threads(), 0, 0),
            warp_idx=lambda: 0 if self.role.cta is not None else self.first_thread // 32,
            lane_idx=lambda: (
                0 if self.role.cta is not None else Int32(np.tile(np.arange(self.threads) % 32, self.ctas))
            ),
            block_idx=lambda: (0, self.number, 0),
            grid_dim=lambda: (self.ctas, self.clusters, 1),
            block_idx_in_cluster=lambda: Int32(self.cta if self.role.cta is None else self.role.cta),
            make_warp_uniform=lambda x: x,
            elect_one=contextlib.nullcontext,
            mbarrier_init=self.init,
            mbarrier_init_fence=lambda: None,
            setmaxregister_decrease=lambda registers: None,
            setmaxregister_increase=lambda registers: None,
            mbarrier_wait=lambda at, phase: self.wait(at.address, phase),
            mbarrier_arrive_and_expect_tx=self.expect_here,
            cluster_arrive_relaxed=lambda: None,
            cluster_wait=self.meeting.wait,
            sync_threads=self.meeting.wait,
            barrier=lambda **_: None,
            fence_view_async_shared=lambda: None,
            griddepcontrol_launch_dependents=lambda: None,
            sync_warp=lambda: None,
            fmax=lambda a, b, nan=False: floats((np.maximum if nan else np.fmax)(a, b)),
            fmin=lambda a, b, nan=False: floats((np.minimum if nan else np.fmin)(a, b)),
            rcp_approx=wide(lambda x: 1 / x),
            shuffle_sync=lambda x, lane: (
                np.take_along_axis(self._each(x).reshape(-1, 32), np.asarray(self._each(lane)).reshape(-1, 32), axis=1)
                .reshape(-1)
                .view(Array)
            ),
            shuffle_sync_bfly=lambda x, offset: (
                self._each(x).reshape(-1, 32)[:, np.arange(32) ^ offset].reshape(-1).view(Array)
            ),
        )
        arch.inline_ptx = lambda text, write_only_types, read_only_args: of_ptx(text)(*read_only_args)
        unary = {
            name: wide(getattr(np, name))
            for name in ("exp", "exp2", "log", "log1p", "log2", "sqrt", "tanh", "floor", "abs")
        }
        calls = types.SimpleNamespace(
            **unary, roundeven=wide(np.rint), rsqrt=wide(lambda x: x**-0.5), fma=wide(lambda a, b, c: a * b + c)
        )
        cute = types.SimpleNamespace(arch=arch, math=calls, kernel=identity, jit=identity, Pointer=None)
        cutlass = types.SimpleNamespace(
            **dict(BFloat16=rounding(torch.bfloat16), Float16=rounding(torch.float16)),
            **dict(select_=select, Int32=Int32, Int64=Int64, Float32=Float32, Boolean=Boolean),
            **dict(min=lambda a, b: np.minimum(a, b).view(Array), max=lambda a, b: np.maximum(a, b).view(Array)),
            **dict(range=span, range_constexpr=range),
            memory=types.SimpleNamespace(SmemAllocator=Allocator),
        )
        cute.make_rmem_tensor = lambda size, _: [None] * size
        found = dict(types=types, cutlass=cutlass, cute=cute, CUstream=None, Float32=Float32, Int32=Int32, Int64=Int64)
        kept = [line for line in text.split("\n") if not line.startswith(("import ", "from "))]
        exec("from __future__ import annotations\n" + "\n".join(kept), found)
        replaced = (
            *("load_shared", "load_plane", "load_global", "store_shared", "store_words", "store_element", "bulk_load"),
            *("bulk_load_where", "rounded_difference"),
            *("send", "put", "expect", "arrive", "count_in", "await_cluster", "log2_approximate"),
            *("unpack_float16", "unpack_float8_e4m3fn", "pack_bfloat16", "pack_float16", "pack_float8_e4m3fn"),
            "permuted",
        )
        found.update({name: getattr(self, name) for name in replaced if name in found})
        for name, of in (("row_maximum", np.maximum), ("row_minimum", np.minimum)):
            for dtype in ("bfloat16", "float16"):
                found[f"{name}_{dtype}"] = functools.partial(self._extreme, of, found, dtype)
        return found

    def _extreme(self, of: Any, names: dict[str, Any], dtype: str, x: Any, y: Any) -> Array:
        """Compare the two numbers of a word."""
        pairs = zip(names[f"unpack_{dtype}"]([x]), names[f"unpack_{dtype}"]([y]), strict=True)
        (word,) = names[f"pack_{dtype}"]([floats(of(a, b)) for a, b in pairs])
        return word

    def _threads(self) -> Any:
        return (
            0 if self.role.cta is not None else Int32(self.first_thread + np.tile(np.arange(self.threads), self.ctas))
        )

    def _each(self, value: Any) -> np.ndarray:
        return np.broadcast_to(np.asarray(value), (self.ctas * self.threads,))

    # Barriers -------------------------------------------------------------------------------------------------------

    def _mine(self) -> Sequence[int]:
        return range(self.ctas) if self.role.cta is None else [self.role.cta]

    def init(self, at: Pointer, count: int) -> None:
        for cta in self._mine():
            self.barriers[cta][at.address] = Barrier(self.changed, count)

    def wait(self, address: Any, phase: Any) -> None:
        for cta in self._mine():
            self.barriers[cta][int(address)].wait(int(phase))

    def expect_here(self, at: Pointer, size: Any) -> None:
        self.barriers[self.role.cta][at.address].arrive(expected=int(size))

    def expect(self, barrier: Any, size: Any, inside: Any) -> None:
        for cta in range(self.ctas):
            count = int(self._each(inside)[self.cta == cta].sum())
            assert count == 1 or (count == 0 and self.loads == 0), "one thread arrives, or none after the last row"
            if count:
                self.barriers[cta][int(barrier)].arrive(expected=int(size))

    def arrive(self, barrier: Any, inside: Any) -> None:
        for cta in range(self.ctas):
            self.barriers[cta][int(barrier)].arrive(int(self._each(inside)[self.cta == cta].sum()))

    count_in = arrive

    def await_cluster(self, barrier: Any, phase: Any) -> None:
        self.wait(barrier, phase)

    # Shared memory --------------------------------------------------------------------------------------------------

    def load_shared(self, address: Any, offset: int, size: int) -> list[Array]:
        at = self._each(address) + offset
        assert (at % min(size, 16) == 0).all(), "a load from shared memory is not aligned"
        assert at.max() + size <= SHARED_BASE + self.plan.layout.shared_bytes, "a load after the end of shared memory"
        return words_of(self.shared[self.cta[:, None], at[:, None] + np.arange(size)])

    def rounded_difference(self, x: Any, y: Any) -> Array:
        return x - y

    def load_plane(self, address: Any, offset: int, size: int) -> Array:
        at = self._each(address) + offset
        assert at.max() + size <= SHARED_BASE + self.plan.layout.shared_bytes, "a load after the end of shared memory"
        found = np.zeros((self.ctas * self.threads, 4), np.uint8)
        found[:, :size] = self.shared[self.cta[:, None], at[:, None] + np.arange(size)]
        return words_of(found)[0]

    def store_shared(self, address: Any, word: Any, size: int) -> None:
        """Store elements; the loop over vectors runs all of its iterations in each thread."""
        data = bytes_of([word], len(self.cta))[:, :size]
        self.shared[self.cta[:, None], self._each(address)[:, None] + np.arange(size)] = data

    def put(self, place: Any, words: Sequence[Any], inside: Any) -> None:
        on = np.nonzero(self._each(inside))[0]
        data = bytes_of(words, len(self.cta))[on]
        self.shared[self.cta[on, None], self._each(place)[on, None] + np.arange(data.shape[1])] = data

    def send(self, place: Any, words: Sequence[Any], barrier: Any, peer: Any, inside: Any) -> None:
        on = np.nonzero(self._each(inside))[0]
        data = bytes_of(words, len(self.cta))[on]
        to = self._each(peer)[on]
        self.shared[to[:, None], self._each(place)[on, None] + np.arange(data.shape[1])] = data
        for cta in to:
            self.barriers[cta][int(np.asarray(barrier).flat[0])].complete(data.shape[1])

    def bulk_load(self, destination: Any, source: Any, size: Any, barrier: Any) -> None:
        size, source, destination = int(size), int(source), int(destination)
        assert size > 0 and size % 16 == 0 and source % 16 == 0 and destination % 16 == 0, "an illegal bulk copy"
        base, data, _ = self.memory.find(np.array([source, source + size - 1]), 15)
        found = data[source - base : source - base + size]
        cta = 0 if self.role.cta is None else self.role.cta
        self.shared[cta, destination : destination + size] = 255
        self.shared[cta, destination : destination + len(found)] = found
        self.barriers[cta][int(barrier)].complete(size)

    def bulk_load_where(self, destination: Any, source: Any, size: Any, barrier: Any, inside: Any) -> None:
        if self._each(inside).any():
            self.bulk_load(destination, source, size, barrier)

    # Global memory --------------------------------------------------------------------------------------------------

    def load_global(self, address: Any, size: int, inside: Any) -> Array:
        on = np.nonzero(self._each(inside))[0]
        found = np.zeros((len(self.cta), max(size, 4)), np.uint8)
        if len(on):
            at = self._each(address)[on, None] + np.arange(size)
            base, data, _ = self.memory.find(at)
            found[on, :size] = data[at - base]
        if size == 8:
            return found.view(np.int64)[:, 0].view(Array)
        if size == 1:
            return found[:, :1].view(np.int8)[:, 0].astype(np.int32).view(Array)
        return words_of(found)[0]

    def store_words(self, address: Any, offset: int, words: Sequence[Any], inside: Any) -> None:
        self._store(self._each(address) + offset, bytes_of(words, len(self.cta)), True if inside is None else inside)

    def store_element(self, address: Any, offset: int, word: Any, shift: int, size: int, inside: Any) -> None:
        data = np.ascontiguousarray(self._each(word)).view(np.uint8).reshape(len(self.cta), -1)
        self._store(self._each(address) + offset, data[:, shift // 8 : shift // 8 + size], inside)

    def _store(self, address: np.ndarray, data: np.ndarray, inside: Any) -> None:
        on = np.nonzero(self._each(inside) & getattr(LOOPING, "on", True))[0]
        if not len(on):
            return
        _, firsts, again = np.unique(address[on], return_index=True, return_inverse=True)
        assert (data[on] == data[on][firsts][again]).all(), "two threads store different bytes at one place"
        on = on[firsts]
        assert (address[on] % min(16, data.shape[1]) == 0).all(), "a store is not aligned"
        at = address[on, None] + np.arange(data.shape[1])
        base, to, written = self.memory.find(at)
        assert written is not None, "a store to an input"
        assert not written[at - base].any() and len(np.unique(at)) == at.size, "bytes are written twice"
        written[at - base] = 1
        to[at - base] = data[on]

    def log2_approximate(self, x: Any) -> Array:
        """Return a logarithm that is off by as much as the instruction's may be."""
        exact = np.log2(np.asarray(x, np.float64))
        error = 2.0**-22.6 * np.maximum(1.0, np.abs(exact))
        return floats(np.where(np.isfinite(exact), exact + error, exact))

    def permuted(self, low: Any, high: Any, selector: Any) -> Array:
        found, given = bytes_of([low, high], len(self.cta)), self._each(selector)[:, None]
        return words_of(np.take_along_axis(found, (given >> (4 * np.arange(4))) & 7, axis=1))[0]

    # Conversions ----------------------------------------------------------------------------------------------------

    def unpack_float16(self, words: Sequence[Any]) -> list[Array]:
        halves = [np.ascontiguousarray(self._each(word)).view(np.float16).reshape(-1, 2) for word in words]
        return [floats(half[:, i]) for half in halves for i in range(2)]

    def unpack_float8_e4m3fn(self, words: Sequence[Any]) -> list[Array]:
        pairs = [np.ascontiguousarray(self._each(word)).view(np.uint8).reshape(-1, 4) for word in words]
        wide = [torch.from_numpy(pair).view(torch.float8_e4m3fn).float().numpy() for pair in pairs]
        return [floats(each[:, i]) for each in wide for i in range(4)]

    def pack_bfloat16(self, values: Sequence[Any]) -> list[Array]:
        return self._packed(values, torch.bfloat16)

    def pack_float16(self, values: Sequence[Any]) -> list[Array]:
        return self._packed(values, torch.float16)

    def pack_float8_e4m3fn(self, values: Sequence[Any]) -> list[Array]:
        return self._packed([np.clip(value, -448, 448) for value in values], torch.float8_e4m3fn)

    def _packed(self, values: Sequence[Any], dtype: torch.dtype) -> list[Array]:
        rows = np.stack([self._each(value) for value in values], 1).astype(np.float32)
        return words_of(torch.from_numpy(rows).to(dtype).view(torch.uint8).numpy().reshape(len(self.cta), -1))


class TotalsCta(Cluster):
    """A CTA of the kernel that adds up the sums over rows: all of its threads at once."""

    def __init__(self, plan: RowPlan, memory: Memory, place: int, number: int) -> None:
        super().__init__(plan, memory, number, 1)
        self.place, self.ctas, self.loads = place, 1, 0
        self.threads = parts_of(plan.problem) * width_of(plan.problem)
        self.cta = np.zeros(self.threads, int)
        self.role.cta = None

    def run_once(self, text: str, arguments: Sequence[Any]) -> None:
        names = self.names(text)
        arch = names["cute"].arch
        arch.thread_idx = lambda: (Int32(np.arange(self.threads)), 0, 0)
        arch.block_idx = lambda: (self.place, self.number, 0)
        arch.sync_threads = lambda: None
        arch.griddepcontrol_wait = lambda: setattr(self, "awaited", True)
        load, self.awaited = names["load_global"], False

        def load_later(*given: Any) -> Any:
            assert self.awaited, "sums are read before the kernel of the rows has ended"
            return load(*given)

        names["load_global"] = load_later
        names["totals"](*arguments)


class Pointer:
    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size

    def __add__(self, count: Any) -> Pointer:
        return Pointer(self.address + self.size * int(count), self.size)

    def toint(self) -> Array:
        return Int64(self.address)


class Allocator:
    def __init__(self) -> None:
        self.end = SHARED_BASE

    def allocate_array(self, kind: Any, count: int, byte_alignment: int) -> Pointer:
        start = -(-self.end // byte_alignment) * byte_alignment
        size = np.dtype(kind.dtype).itemsize
        self.end = start + size * count
        return Pointer(start, size)


def words_of(data: np.ndarray) -> list[Array]:
    whole = np.ascontiguousarray(data).view(np.int32)
    return [whole[:, i].view(Array) for i in range(whole.shape[1])]


def bytes_of(words: Sequence[Any], threads: int) -> np.ndarray:
    each = [np.ascontiguousarray(np.broadcast_to(np.asarray(word, np.int32), threads)) for word in words]
    return np.concatenate([word.view(np.uint8).reshape(threads, 4) for word in each], 1)


def run_rows(
    plan: RowPlan,
    outputs: Sequence[torch.Tensor],
    operands: Sequence[torch.Tensor | float],
    m: int,
    clusters: int,
    launched: Sequence[int] = (),
) -> None:
    """Run a launch over `m` rows, with other numbers of the launch; outputs are written in place, each byte of a row once."""
    memory, arguments = Memory(), []
    names = [name for name in plan.problem.runtime if name != SIZE_M]
    n = dict(zip(names, launched, strict=True)).get(SIZE_N, plan.problem.n)
    for tensor in outputs:
        flat = torch.as_strided(tensor, (_extent(tensor),), (1,)).view(torch.uint8).numpy()
        arguments.append(Int64(memory.add(flat, True)))
    for given in operands:
        if isinstance(given, torch.Tensor):
            flat = torch.as_strided(given, (_extent(given),), (1,)).view(torch.uint8).numpy()
            arguments.append(Int64(memory.add(flat, False)))
        else:
            arguments.append(Float32(given))
    arguments += [m] if plan.problem.counted_at_launch else []
    arguments += [(Int64 if is_pitch(name) else Int32)(number) for name, number in zip(names, launched, strict=True)]
    text = render(row_program(plan))
    count = min(clusters, -(-m // (plan.layout.choice.rows * max(1, plan.problem.span))))
    for number in range(count):
        Cluster(plan, memory, number, count).run(text, arguments)
    if plan.problem.totals:
        known = dict(zip([name for name, _ in parameters(plan.problem)], arguments, strict=True))
        given = [*(known[name] for name in shared_parameters(plan.problem)), lines_of(plan.problem, m)]
        width, columns = width_of(plan.problem), total_columns(plan.problem) if plan.problem.line_rows else n
        for place, number in itertools.product(range(-(-columns // width)), range(len(plan.problem.totals))):
            TotalsCta(plan, memory, place, number).run_once(text, given)
    for (_, _, written), output, tensor in zip(memory.parts, plan.problem.outputs, outputs, strict=False):
        assert written is not None
        rows = {"sum": -(-m // max(1, plan.problem.span)), "total": 1}.get(output.kind, m)
        groups = {"group": plan.problem.epilogue.grouped[output.value], "pair": 2}.get(output.kind, 1)
        if output.kind == "total" and plan.problem.line_rows:
            rows, groups = plan.problem.line_rows, plan.problem.epilogue.grouped[output.value]
        size = rows * (1 if output.kind == "column" else n // groups) * tensor.element_size()
        assert int(written.sum()) == size, f"{output.name}: {int(written.sum())} of {size} bytes are written"


def _extent(tensor: torch.Tensor) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


assert math.isclose(float(floats(1.5)), 1.5)
