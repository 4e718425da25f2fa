"""Where barriers stand: on every way between accesses of different threads to one element, and nowhere else."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import skeleton
from memory_kernels import CASES

import helion
import helion.language as hl
from helion import exc
from helion._compiler.ir.grammar import Op, Region
from helion._compiler.ir.printer import print_program
from helion._compiler.ir.verifier import verify
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature


def _plan(kernel: Callable[..., Any], args: tuple[Any, ...], static: bool = True, **config: Any) -> Any:
    bound = helion.kernel(kernel, static_shapes=static).bind(args, target="sm_90")
    return bound._analysis.code(bound._analysis.space.normalize(config)).plan


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def halves(v: torch.Tensor) -> torch.Tensor:
    """Two views of the same rows have other columns."""
    out = torch.empty_like(v)
    low, high = out[:, :40], out[:, 40:]
    for tile in hl.tile(v.size(0)):
        low[tile, :] = v[tile, 30:]
        high[tile, :] = v[tile, :30]
    return out


def meeting_columns(v: torch.Tensor) -> torch.Tensor:
    """The last columns of one view are the first ones of the other."""
    out = torch.empty_like(v)
    low, high = out[:, :40], out[:, 39:]
    for tile in hl.tile(v.size(0)):
        low[tile, :] = v[tile, 30:]
        high[tile, :] = v[tile, :31]
    return out


def other_columns(v: torch.Tensor) -> torch.Tensor:
    """Even and odd columns, by three views of other shapes."""
    out = torch.empty_like(v)
    even, odd, last = out[:, : 2 * 20 : 2], out[:, 1 : 2 * 20 : 2], out[:, 2 * 20 :]
    for tile in hl.tile(v.size(0)):
        even[tile, :] = v[tile, 20:40]
        last[tile, :] = v[tile, :30]
        odd[tile, :] = v[tile, :20]
    return out


def columns_of_rows(v: torch.Tensor) -> torch.Tensor:
    """A view that goes on in the next row."""
    out = torch.empty_like(v)
    flat, high = out.view(-1)[:60], out[:, 40:]
    for tile in hl.tile(v.size(0)):
        high[tile, :] = v[tile, :30]
        flat[tile] = v[tile, 0]
    return out


@pytest.mark.parametrize(
    ("kernel", "barriers"), [(halves, 0), (meeting_columns, 1), (other_columns, 0), (columns_of_rows, 1)]
)
def test_views_of_other_columns_need_no_barrier(kernel: Callable[..., Any], barriers: int) -> None:
    found = _plan(kernel, (x(37, 70),)).program
    assert sum(op.kind == "barrier" for op in found.walk()) == barriers


# --- where they stand ---------------------------------------------------------------------------------------------------

PLACES = {
    "shifted": "for(load buf; barrier; store buf; barrier)",
    "branch taken": "load x; store buf; if(barrier; load buf / barrier; load buf); store out",
    "behind a branch, taken": "load x; store buf; if(barrier; load buf / ); barrier; load buf; store out",
    "reversed in place": "for(load buf; barrier; store buf; barrier)",
    "stored twice": "load x; store buf; load x; barrier; store buf",
    "nested": "for(for(store buf); barrier; load buf; barrier); store out",
    "behind no iteration": "load x; store buf; barrier; for(load buf; barrier; store buf; barrier); load buf; store out",
    "while": "while( do load buf; barrier; store buf; barrier)",
    "while memory says": "while(load go do load buf; store buf; load go; barrier; store go; barrier)",
    "atomics": "atomic buf; atomic buf; barrier; load buf; store out; barrier; atomic buf",
    "view": "store buf; barrier; load moved; store out",
    "shared arguments": "load moved; barrier; store buf; barrier; load moved; store out",
    "few lanes": "load x; load w; store out; barrier; store x",
    "running total": "for(load total; load x; store total; barrier)",
    "product of products": "load a; load b; store h; barrier; load h; load b; store out",
    "recurrence": "for(load x; load w; store x; barrier); store out",
}


@pytest.mark.parametrize("name", PLACES)
def test_places(name: str) -> None:
    case = CASES[name]
    sizes = {} if case.tile is None else {"block_sizes": [case.tile]}
    plan = _plan(case.kernel, case.make("cpu"), num_warps=case.num_warps, **sizes)
    assert skeleton(plan.program) == PLACES[name]
    verify(plan.program, "test")


def in_place(x):
    for t in hl.tile(x.size(0)):
        x[t] += 1
    return x


def in_place_rows(x):
    for t in hl.tile(x.size(0)):
        v = x[t, :]
        x[t, :] = torch.exp(v - v.amax(-1, keepdim=True)) * v.sum(-1, keepdim=True)
    return x


def in_place_chunks(x, y):
    for a in hl.tile(x.size(0)):
        for b in hl.tile(x.size(1)):
            x[a, b] = x[a, b] * 2 + y[a, b]
    return x


def in_place_tiles(x):
    for a, b in hl.tile(x.size()):
        x[a, b] = x[a, b] + 1
    return x


def product_and_addition(x, y, out):
    for a, b in hl.tile(out.size()):
        acc = hl.zeros([a, b])
        for c in hl.tile(x.size(1)):
            acc = hl.dot(x[a, c], y[c, b], acc=acc)
        out[a, b] = acc + out[a, b]
    return out


def moved_columns(x):
    for a, b in hl.tile([x.size(0), 64]):
        x[a, b] = hl.load(x, [a, b.index + 8]) + 1
    return x


def in_place_columns(x):
    for a in hl.tile(x.size(0)):
        for j in range(x.size(1)):
            x[a, j] = x[a, j] + 1
    return x


def conditional_update(x, flag):
    for t in hl.tile(x.size(0)):
        v = x[t]
        if flag > 0:
            x[t] = torch.relu(v) + 1
    return x


def exchange(x, y):
    for t in hl.tile(x.size(0)):
        v, w = x[t], y[t]
        x[t] = w
        y[t] = v
    return x, y


def repeated(x):
    for t in hl.tile(x.size(0)):
        x[t] *= 2
        x[t] += 1
    return x


def two_rows(x):
    for t in hl.tile(x.size(1)):
        x[0, t] = x[1, t] + 1
    return x


def two_halves(x):
    n = x.size(0) // 2
    for t in hl.tile(n):
        x[t] = hl.load(x, [t.index + n]) + 1
    return x


def counters(x, out):
    for t in hl.tile(x.size(0)):
        hl.atomic_add(out, [t.index], x[t])
        hl.atomic_add(out, [x.size(0) - 1 - t.index], 1.0)
    return out


def other_tensor(x, out):
    for t in hl.tile(x.size(0)):
        for i in range(4):
            out[i, t] = x[t] * i
    return out


HARMLESS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "in place": (in_place, (x(4096),), {"block_sizes": [1024]}),
    "in place, fewer elements than threads": (in_place, (x(4096),), {"block_sizes": [16]}),
    "in place, integers": (in_place, (x(4096, dtype=torch.int32),), {"block_sizes": [1024]}),
    "in place, bf16": (in_place, (x(4096, dtype=torch.bfloat16),), {"block_sizes": [1024]}),
    "rows in place": (in_place_rows, (x(64, 256),), {"block_sizes": [4], "reduction_loops": [None]}),
    "chunks in place": (in_place_chunks, (x(64, 300), x(64, 300)), {"block_sizes": [8, 64]}),
    "flattened": (in_place_tiles, (x(64, 300),), {"block_sizes": [8, 64], "flatten_loops": [True]}),
    "flattened, in rows with gaps": (
        in_place_tiles,
        (x(64, 400)[:, :300],),
        {"block_sizes": [8, 64], "flatten_loops": [True]},
    ),
    "subtiles": (
        product_and_addition,
        (x(128, 64, dtype=torch.float16), x(64, 128, dtype=torch.float16), x(128, 128, dtype=torch.float16)),
        {"block_sizes": [64, 64, 32], "epilogue_subtile": 2},
    ),
    "columns in place": (in_place_columns, (x(4096, 7),), {"block_sizes": [1024]}),
    "under a condition": (conditional_update, (x(4096), 1), {"block_sizes": [1024]}),
    "exchange of one layout": (exchange, (x(4096), x(4096)), {"block_sizes": [1024]}),
    "twice in one layout": (repeated, (x(4096),), {"block_sizes": [1024]}),
    "other rows": (two_rows, (x(2, 4096),), {"block_sizes": [1024]}),
    "another half": (two_halves, (x(8192),), {"block_sizes": [1024]}),
    "other columns of a tile": (moved_columns, (x(64, 72),), {"block_sizes": [8, 8]}),
    "atomics alone": (counters, (x(4096), x(4096)), {"block_sizes": [1024]}),
    "other rows of iterations": (other_tensor, (x(4096), x(4, 4096)), {"block_sizes": [1024]}),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_none_where_a_thread_meets_itself(name: str) -> None:
    kernel, args, config = HARMLESS[name]
    assert "barrier" not in skeleton(_plan(kernel, args, num_warps=4, **config).program)


def exchange_bytes(x, y, z):
    """A narrower tensor beside: loads are wider than stores can be, and so by other threads."""
    for t in hl.tile(x.size(0)):
        v, w = x[t], y[t]
        x[t] = w + z[t].to(torch.float32)
        y[t] = v
    return x, y


def in_place_and_more(x, out):
    for t in hl.tile(x.size(0)):
        v = x[t]
        x[t] = v + 1
        out[t] = v
    return out


def update_by_index(x, index):
    for t in hl.tile(index.size(0)):
        at = index[t]
        x[at] = x[at] + 1
    return x


def rows_after_chunks(x):
    """The same elements by a loop and at once."""
    for a in hl.tile(x.size(0)):
        for b in hl.tile(x.size(1)):
            x[a, b] = x[a, b] + 1
        x[a, :] = torch.softmax(x[a, :], -1)
    return x


def two_loops(x, out):
    block = hl.register_block_size(x.size(1))
    for a in hl.tile(x.size(0)):
        for b in hl.tile(x.size(1), block_size=block):
            out[a, b] = x[a, b] + 1
        for b in hl.tile(x.size(1), block_size=block):
            out[a, b] = out[a, b] * 2
    return out


def source_of_the_users(x):
    for t in hl.tile(x.size(0)):
        x[t] = x[t] + 1
        hl.inline_triton("tl.store({0} + 1, tl.load({0}))", args=(x,), output_like=None)
        x[t] = x[t] + 1
    return x


UNCLEAR: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = {
    "narrower elements beside": (
        exchange_bytes,
        (x(4096), x(4096), x(4096, dtype=torch.int8)),
        {"block_sizes": [1024]},
        "load x; load y; load z; barrier; store x; store y",
    ),
    "few elements, used elsewhere": (
        in_place_and_more,
        (x(4096), x(4096)),
        {"block_sizes": [16]},
        "load x; barrier; store x; store out",
    ),
    "indices from data": (
        update_by_index,
        (x(4096), x(512, dtype=torch.int64)),
        {"block_sizes": [512]},
        "load index; load x; barrier; store x",
    ),
    "rows that overlap": (
        in_place_tiles,
        (torch.zeros(4096).as_strided((32, 64), (32, 1)),),
        {"block_sizes": [32, 64]},
        "load x; barrier; store x",
    ),
    "other columns, flattened": (
        moved_columns,
        (x(64, 72),),
        {"block_sizes": [8, 8], "flatten_loops": [True]},
        "load x; barrier; store x",
    ),
    "another tile of the same elements": (
        rows_after_chunks,
        (x(64, 256),),
        {"block_sizes": [4, 64]},
        "for(load x; store x); barrier; load x; store x",
    ),
    "rows in passes": (
        in_place_rows,
        (x(64, 4096),),
        {"block_sizes": [4], "reduction_loops": [512]},
        "for(load x); barrier; for(load x; store x)",
    ),
    "another loop over the same tiles": (
        two_loops,
        (x(64, 256), x(64, 256)),
        {"block_sizes": [64, 4]},
        "for(load x; store out); barrier; for(load out; store out)",
    ),
    "source of the user's": (
        source_of_the_users,
        (x(4096),),
        {"block_sizes": [4096]},
        "load x; store x; barrier; inline(); barrier; load x; store x",
    ),
}


@pytest.mark.parametrize("name", UNCLEAR)
def test_one_where_threads_may_differ(name: str) -> None:
    kernel, args, config, expected = UNCLEAR[name]
    assert skeleton(_plan(kernel, args, num_warps=4, **config).program) == expected


def test_layouts_are_not_trusted_where_loads_move() -> None:
    kernel, args, _ = HARMLESS["exchange of one layout"]

    config = {"block_sizes": [1024], "num_warps": 4}
    assert "barrier" not in skeleton(_plan(kernel, args, **config).program)
    boxes = {**config, "indexing": ["pointer", "pointer", "block_ptr", "pointer"]}
    assert skeleton(_plan(kernel, args, **boxes).program) == "load x; load y; barrier; store x; store y"


def test_dynamic_shapes() -> None:
    """Rows of an unknown length are contiguous where torch says so."""
    plan = _plan(in_place_chunks, (x(64, 300), x(64, 300)), static=False, block_sizes=[8, 64], num_warps=4)
    assert "barrier" not in skeleton(plan.program)


def test_loops_with_a_barrier_keep_their_loads_in_their_iteration() -> None:
    case = CASES["recurrence"]
    plan = _plan(case.kernel, case.make("cpu"), block_sizes=[64], num_warps=4, num_stages=4)
    (loop,) = plan.loops.values()
    assert [r.num_stages for r in loop.ranges] == [1]
    case = CASES["product of products"]
    assert "num_stages" not in str(_plan(case.kernel, case.make("cpu"), block_sizes=[64], num_warps=4).loops)


def two_stores(x, out):
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] * 2
        hl.store(out, [a.index, b.index], x[a, b])
    return out


def one_store(x, out):
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] * 2
    return out


def stores_in_a_loop(x, out):
    for a, b in hl.tile(x.size()):
        for i in range(3):
            out[a, b] = x[a, b] * i
    return out


@pytest.mark.parametrize(("kernel", "boxed"), [(one_store, True), (two_stores, False), (stores_in_a_loop, False)])
def test_the_copy_engine_writes_no_element_twice(kernel: Callable[..., Any], boxed: bool) -> None:
    config = {"block_sizes": [64, 64], "num_warps": 4, "indexing": "tensor_descriptor"}
    plan = _plan(kernel, (x(128, 128), x(128, 128)), **config)
    stores = {op.number for op in plan.program.walk() if op.kind == "store"}
    assert bool(stores & set(plan.boxes)) == boxed


# --- the grammar --------------------------------------------------------------------------------------------------------


def test_printed_and_verified() -> None:
    case = CASES["stored twice"]
    program = _plan(case.kernel, case.make("cpu"), block_sizes=[4096], num_warps=16).program
    assert re.search(r"^    barrier$", print_program(program), re.MULTILINE)
    wrong = program.map_regions(lambda r: Region(r.params, (*r.ops, Op(10**6, "barrier", (1,), (), None)), r.results))
    with pytest.raises(exc.VerifierError, match="a barrier has operands"):
        verify(wrong, "test")


def test_dumped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HELION_DUMP", "order_memory")
    case = CASES["stored twice"]
    _plan(case.kernel, case.make("cpu"), block_sizes=[4096], num_warps=16)
    assert "--- after order_memory ---" in capsys.readouterr().err


# --- on a GPU -----------------------------------------------------------------------------------------------------------


def compiled(kernel: Callable[..., Any], args: tuple[Any, ...], **config: Any) -> Any:
    bound = helion.kernel(kernel).bind(args, target="sm_90")
    full = bound.config_spec.normalize(config)
    plan = bound._analysis.code(full).plan
    function = inspect.unwrap(bound.compile_config(full)).__globals__[plan.kernel_names[0]]
    return compile_offline(function, **offline_signature(plan, bound.target)).asm


def turned_tiles(x, y, sums):
    for a, b in hl.tile(x.size()):
        v, w = x[a, b], y[b, a]
        x[a, b] = w.t() + 1
        hl.store(sums, [a, b.id], v.sum(-1))
        y[b, a] = v.t()
    return x


TRUSTED: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "exchange": HARMLESS["exchange of one layout"],
    "exchange of bf16": (
        exchange,
        (x(4096, dtype=torch.bfloat16), x(4096, dtype=torch.bfloat16)),
        {"block_sizes": [2048]},
    ),
    "exchange with a stride": (exchange, (x(4096, 3)[:, 0], x(4096)), {"block_sizes": [1024]}),
    "twice": HARMLESS["twice in one layout"],
    "turned": (turned_tiles, (x(128, 128), x(128, 128), x(128, 4)), {"block_sizes": [32, 32]}),
    "turned, other order": (turned_tiles, (x(128, 128).t(), x(128, 128), x(128, 4)), {"block_sizes": [32, 32]}),
}


@pytest.mark.parametrize("name", TRUSTED)
@pytest.mark.parametrize("num_warps", [4, 8])
def test_layouts_that_are_trusted_agree(name: str, num_warps: int) -> None:
    """Accesses by the same pointers have the same layout in Triton's IR."""
    kernel, args, config = TRUSTED[name]
    assert "barrier" not in skeleton(_plan(kernel, args, num_warps=num_warps, **config).program)
    text = compiled(kernel, args, num_warps=num_warps, **config)["ttgir"]
    layouts: dict[str, set[str]] = {}
    for pointer, layout in re.findall(r"tt\.(?:load|store) (%\w+)[^\n]*: tensor<[^\n#]*(#\w+)>", text):
        layouts.setdefault(pointer, set()).add(layout)
    shared = {p: found for p, found in layouts.items() if len(re.findall(rf"tt\.(?:load|store) {p}\b", text)) > 1}
    assert shared, text
    assert all(len(found) == 1 for found in shared.values()), text


def events(kernel: Callable[..., Any], args: tuple[Any, ...], **config: Any) -> list[str]:
    """Loads, stores, asynchronous copies, barriers and labels of the PTX for an H100, in order."""
    ptx = compiled(kernel, args, **config)["ptx"]
    kinds = {"ld.global": "load", "st.global": "store", "cp.async.c": "copy", "bar.sync": "barrier", "$L": "label"}
    found = re.findall(r"^\s*(?:@\S+ )?(ld\.global|st\.global|cp\.async\.c|bar\.sync|\$L)", ptx, re.MULTILINE)
    assert "ld.global.nc" not in ptx
    return [kinds[text] for text in found]


def runs(found: list[str]) -> list[str]:
    return [kind for at, kind in enumerate(found) if at == 0 or found[at - 1] != kind]


PTX = {
    "shifted": ["load", "barrier", "store", "barrier"],
    "reversed in place": ["load", "barrier", "store", "barrier"],
    "stored twice": ["load", "store", "barrier", "store"],
    "view": ["store", "barrier", "load", "store"],
    "few lanes": ["load", "store", "barrier", "store"],
}


@pytest.mark.parametrize("name", PTX)
def test_barriers_in_ptx(name: str) -> None:
    case = CASES[name]
    found = events(case.kernel, case.make("cpu"), block_sizes=[case.tile], num_warps=case.num_warps)
    # a layout conversion has barriers of its own: what counts is that none is missing
    kinds, wanted = iter(kind for kind in found if kind != "label"), PTX[name]
    assert all(kind in kinds for kind in wanted), runs(found)


@pytest.mark.parametrize(
    "name",
    ["in place", "in place, fewer elements than threads", "in place, bf16", "exchange of one layout", "another half"],
)
def test_no_barrier_in_ptx(name: str) -> None:
    kernel, args, config = HARMLESS[name]
    assert "barrier" not in events(kernel, args, num_warps=4, **config)


def test_nothing_is_prefetched_past_a_store() -> None:
    """Triton would load the operands of later iterations before this one stores them."""
    case = CASES["recurrence"]
    config = {"block_sizes": [64], "num_warps": 4, "num_stages": 4}
    assert "copy" not in events(case.kernel, case.make("cpu"), **config)

    def elsewhere(x, w, out):
        for t in hl.tile(x.size(0)):
            acc = hl.zeros([t, w.size(1)])
            for k in hl.tile(w.size(0), block_size=32):
                acc = hl.dot(x[t, k], w[k, :], acc=acc)
            out[t, :] = acc
        return out

    assert "copy" in events(elsewhere, case.make("cpu"), **config)
