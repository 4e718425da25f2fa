"""Attention whose keys are bounded by loaded integers: values, the printed blocks and masks, and refusals."""

from __future__ import annotations

import dataclasses
import functools
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from backends.cute import attention_spans as spans
from backends.cute.edited_roles import edited, without
from backends.cute.edited_source import edited as changed
from backends.cute.printed_blocks import function
from backends.cute.printed_registers import unwritten_registers

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.attention import bounds, numbers, softmax, steps
from helion.backends.cute.codegen.attention import spans as printed_spans
from helion.backends.cute.execute.launcher import LaunchFailed
from helion.backends.cute.plan.attention.build import plan_attention
from helion.backends.cute.plan.attention.records import AttentionChoice
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.attention.programs import attention_program
from helion.backends.cute.shapes import shape_of_plan
from helion.backends.cute.verify.attention.verify import verify_attention
from helion.backends.cute.verify.state import Fault
from helion.hardware import target
from helion.ops.kernels import decode


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert (found.double() - wanted).norm() < 5e-3 * wanted.norm()


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("name", spans.SEQUENCES)
def test_sequences_one_after_another(name: str, static: bool) -> None:
    given, wanted, logsum = spans.given_of(spans.SEQUENCES[name])
    out, found = helion.kernel(spans.of_rows, backend="cute", static_shapes=static)(*given)
    close(out, wanted)
    assert torch.equal(torch.isfinite(found), torch.isfinite(logsum))
    assert not torch.isfinite(logsum).all(), "some rows see no key"
    torch.testing.assert_close(found.double(), logsum, rtol=1e-5, atol=1e-5)


def test_bounds_in_masks_alone() -> None:
    """Bounds and a causal mask together, in a loop over all keys."""
    torch.manual_seed(1)
    q, k, v = ((torch.randn(2, 200, 64) + 0.2).bfloat16() for _ in range(3))
    first = torch.arange(200) // 70 * 70
    last = torch.minimum(first + 65, torch.tensor(199))
    given = q, k, v, first.to(torch.int32), torch.maximum(last, torch.arange(200)).to(torch.int32)
    kernel = helion.kernel(spans.documents, backend="cute")
    close(kernel(*given), spans.of_documents(*given))
    plan = kernel.bind(given, target="sm_90").plan().attention
    assert plan.problem.key_range.shifts == (0, 1) and plan.parts == ("diagonal", "free", "edge")
    assert not plan.problem.score.instructions


def test_a_prefix_of_keys_for_each_query() -> None:
    torch.manual_seed(2)
    q, k, v = ((torch.randn(2, 2, n, 64) + 0.2).bfloat16() for n in (90, 150, 150))
    given = q, k, v, torch.randint(0, 150, (2, 90))
    close(helion.kernel(spans.prefixes, backend="cute")(*given), spans.of_prefixes(*given))


PACKED = {
    "causal": ((100, 1, 130), (150, 40, 130), 4, 2, 64, 64, True),
    "full, more values": ((70, 5, 0, 200), (5, 70, 33, 65), 2, 1, 64, 128, False),
}


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("name", PACKED)
def test_rows_of_a_sequence(name: str, static: bool) -> None:
    torch.manual_seed(3)
    given = spans.packed_of(*PACKED[name])
    found = helion.kernel(spans.packed, backend="cute", static_shapes=static)(*given)
    for one, wanted in zip(found, spans.of_packed(*given), strict=True):
        close(one, wanted)
    begin, end = int(given[3][0]), int(given[3][-1])
    assert not found[0][:begin].any() and not found[0][end:].any(), "rows of no sequence are not written"


def test_a_loop_over_the_rows_of_a_sequence() -> None:
    torch.manual_seed(4)
    q, k, v, offsets, _, longest, *_ = spans.packed_of((100, 0, 129), (100, 0, 129), 2, 1, 64, 64, True)
    found = helion.kernel(spans.absolute, backend="cute")(q, k[: len(q)], v[: len(q)], offsets, longest)
    close(found, spans.of_packed(q, k, v, offsets, offsets, longest, 1, True)[0])


def test_slots_of_caches() -> None:
    torch.manual_seed(5)
    q, k, v = ((torch.randn(shape) + 0.2).bfloat16() for shape in ((3, 8, 64), (5, 200, 2, 64), (5, 200, 2, 64)))
    k[:, 190:], v[:, 190:] = float("nan"), float("nan")
    given = q, k, v, torch.tensor([4, 0, 2]), torch.tensor([190, 1, 77])
    close(helion.kernel(spans.slots, backend="cute")(*given), spans.of_slots(*given))


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(("page", "numbers_of"), [(64, torch.int32), (128, torch.int64)])
def test_keys_in_pages(static: bool, page: int, numbers_of: torch.dtype) -> None:
    torch.manual_seed(6)
    config = helion.Config(block_sizes=[64, 64], wgmma_key_splits=2)
    kernel = helion.kernel(spans.paged, backend="cute", config=config, static_shapes=static)
    given = spans.paged_of([200, 0, 64, 301], page, 8, 2, 4, 64, numbers=numbers_of)
    found = kernel(*given)
    close(found, spans.of_paged(*given))
    assert not found[1].any(), "a sequence without keys gives 0"


@pytest.mark.parametrize(("static", "by_heads", "page"), [(True, False, 64), (False, True, 16), (False, False, 128)])
def test_pages_as_a_dimension(static: bool, by_heads: bool, page: int) -> None:
    """Heads of a page follow each other, or have whole pages of rows."""
    torch.manual_seed(6)
    q, k, v, *others = spans.paged_of([200, 0, 64, 301], page, 20, 2, 4, 64)
    if by_heads:
        k, v = (x.unflatten(0, (-1, page)).transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    given = (q, *(x if by_heads else x.unflatten(0, (-1, page)) for x in (k, v)), *others)
    close(
        helion.kernel(spans.pooled, backend="cute", static_shapes=static)(*given),
        spans.of_paged(q, *(x.flatten(0, 1) for x in given[1:3]), *others),
    )


@pytest.mark.parametrize(("static", "size"), [(True, 64), (False, 128)])
def test_blocks_of_a_list(static: bool, size: int) -> None:
    torch.manual_seed(9)
    given, seen = spans.listed_of(3, 2 * size, 4 * size, 64, size)
    found = helion.kernel(spans.listed, backend="cute", static_shapes=static)(*given)
    close(found, spans.of_listed(*given[:3], seen, size))


def test_auto_takes_lists_and_pools_by_prediction() -> None:
    meta = functools.partial(torch.empty, device="meta")
    tensors = (meta(16, 8192, 128, dtype=torch.bfloat16) for _ in range(3))
    given: tuple[Any, ...] = (*tensors, *(meta(size, dtype=torch.int32) for size in ((16, 64, 64), (16, 64))), 128)
    assert helion.kernel(spans.listed).bind(given, target="h200").backend_on_gpu == "cute"
    pool = (meta(4096, 64, 8, 128, dtype=torch.bfloat16) for _ in range(2))
    table, lengths = meta(32, 128, dtype=torch.int32), meta(32, dtype=torch.int32)
    given = (meta(32, 8, 4, 128, dtype=torch.bfloat16), *pool, table, lengths, 64)
    assert helion.kernel(spans.pooled).bind(given, target="h200").backend_on_gpu == "cute"
    bound = helion.kernel(spans.pooled, backend="cute").bind((*given[:-1], 16), target="h200")
    assert bound.default_config().block_sizes == [64] and bound.seeds


LISTS = {
    "a tile that is not full": (("q, k, v,", "q[:, :100], k, v,"), "100 queries are no multiple of the 64 of a tile"),
    "positions of queries": (("tile_m.id", "tile_m.begin // 64"), "no arithmetic of the head"),
    "other tiles": (("block_size=[1, size]", "block_size=[1, 96]"), "tiles of 96 queries|no multiple"),
    "a list for each query": (("blocks[head, number,", "blocks[head, tile_m.begin,"), "no arithmetic of the head"),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_other_lists_are_refused(name: str, tmp_path: Path) -> None:
    (old, new), message = LISTS[name]
    given, _ = spans.listed_of(2, 128, 256, 64, 64)
    function_: Any = spans.listed
    if old in "q, k, v,":
        given = (given[0][:, :100].contiguous(), *given[1:])
    else:
        text = Path(spans.__file__).read_text()
        start, end = text.index("def listed("), text.index("@dataclasses.dataclass")
        head = "import torch\nimport helion\nimport helion.language as hl\n\n\n"
        function_ = changed(head + text[start:end], old, new, tmp_path / "lists.py").listed
    with pytest.raises(exc.CuteUnsupported, match=message):
        helion.kernel(function_, backend="cute").bind(given)


def test_sequences_of_outputs_in_float32() -> None:
    torch.manual_seed(8)
    q, k, v, cu_q, cu_k, longest, *_ = spans.packed_of((100, 1, 130), (150, 40, 130), 4, 4, 64, 96, False)
    found = helion.kernel(spans.packed_in_float32, backend="cute", static_shapes=False)(q, k, v, cu_q, cu_k, longest)
    wanted, _ = spans.of_packed(q, k, v, cu_q, cu_k, longest, 4, False)
    inside = slice(int(cu_q[0]), int(cu_q[-1]))
    close(found[inside], wanted[inside])
    assert not found[: inside.start].any() and not found[inside.stop :].any()


@pytest.mark.parametrize(("few", "page"), [(True, 32), (False, 48)])
def test_pages_of_the_operators(few: bool, page: int) -> None:
    """Compute the kernel of ``helion.ops.paged_decode`` here, and in the general backend."""
    torch.manual_seed(7)
    given = (*spans.paged_of([200, 0, 64], page, 7, 2, 4, 64), few, 64**-0.5)
    for backend in ("cute", "triton"):
        found = helion.kernel(decode.paged_kernel.fn, backend=backend, static_shapes=False)(*given)
        close(found, spans.of_paged(*given[:6]))


def test_auto_takes_pages_by_prediction() -> None:
    meta = functools.partial(torch.empty, device="meta")
    for batch, page in ((1, 64), (32, 128)):
        cache = meta(batch * 8192, 8, 128, dtype=torch.bfloat16)
        table, lengths = meta(batch, 8192 // page, dtype=torch.int32), meta(batch, dtype=torch.int32)
        given = (meta(batch, 8, 4, 128, dtype=torch.bfloat16), cache, cache, table, lengths, page, batch == 1, 0.1)
        bound = helion.kernel(decode.paged_kernel.fn, static_shapes=False).bind(given, target="h200")
        (keys,) = (axis for axis in bound.facts.axes if axis.extent is None)
        assert bound.backend_on_gpu == "cute" and keys.mean == 8192


def test_printed_pages_are_those_of_the_table() -> None:
    """Run the printed row of each block: the key of a page, by an address modulo 2**64."""
    given = spans.paged_of([700, 100], 128, 8, 2, 4, 64)
    bound = helion.kernel(spans.paged, backend="cute").bind(of_meta(given), target="sm_90")
    problem = bound.plan().attention.problem
    for keys in (64, 32, 128):
        made = plan_attention(problem, AttentionChoice(groups=1, keys=keys), target("sm_90"))
        table = given[3]
        held = {(0, page, 0): int(table[0, page]) for page in range(8)}
        names = {"cutlass": SimpleNamespace(Int32=int, min=min), f"vector_{made.problem.k.pages.table.label}": held}
        for block in range(-(-700 // keys)):
            row = eval(printed_spans.row_of_page(made, made.problem.k, f"({block})"), {**names, "head_0": 0})
            at = block * keys
            assert row + at == int(table[0, at // 128]) * 128 + at % 128
            apart = dataclasses.replace(made.problem.k, pages=dataclasses.replace(made.problem.k.pages, distance=1000))
            row = eval(printed_spans.row_of_page(made, apart, f"({block})"), {**names, "head_0": 0})
            assert row + at == int(table[0, at // 128]) * 1000 + at % 128
    with pytest.raises(Refusal, match="blocks of 96 keys in pages of 128"):
        plan_attention(problem, AttentionChoice(groups=1, keys=96), target("sm_90"))


PAGES = {
    "another size": ("tile.index // page", "tile.index // (page + 64)"),
    "another rest": ("tile.index % page", "tile.index % (page * 2)"),
    "a distance that is loaded": ("] * page", "] * lengths[b]"),
    "less the begin": ("at = tile.index % page", "at = tile.index % page - tile.begin"),
}


@pytest.mark.parametrize("name", PAGES)
def test_other_computed_positions_are_refused(name: str, tmp_path: Path) -> None:
    text = Path(spans.__file__).read_text()
    start, end = text.index("def paged("), text.index("@dataclasses.dataclass")
    head = "import torch\nimport helion\nimport helion.language as hl\n\n\n"
    function_ = changed(head + text[start:end], *PAGES[name], tmp_path / "pages.py").paged
    with pytest.raises(exc.CuteUnsupported, match="computed positions|pages of 64 rows every 128"):
        helion.kernel(function_, backend="cute").bind(spans.paged_of([200, 64], 64, 8, 2, 4, 64))


def test_segments_without_a_softmax() -> None:
    _, kernel, given = spans.hstu.cases()[1]
    found = helion.kernel(kernel.fn, backend="cute")(*given)
    close(found, spans.hstu.reference(*(x.double() if x.is_floating_point() else x for x in given[:4]), *given[4:]))


def plan_of(causal: bool, keys: int = 64) -> Any:
    meta = [torch.empty(2, 500, 64, dtype=torch.bfloat16, device="meta") for _ in range(3)]
    numbers_of_rows = [torch.empty(500, dtype=torch.int32, device="meta") for _ in range(2)]
    if causal:
        bound = helion.kernel(spans.documents, backend="cute").bind((*meta, *numbers_of_rows), target="sm_90")
        return bound.plan(helion.Config(block_sizes=[128, keys]))
    rows = [x.transpose(0, 1).contiguous() for x in meta]
    bound = helion.kernel(spans.of_rows, backend="cute").bind(
        (*rows, None, *numbers_of_rows, 1, 0.1, 0.0), target="sm_90"
    )
    return bound.plan(helion.Config(block_sizes=[128, keys]))


@pytest.mark.parametrize("causal", [True, False])
def test_printed_blocks_and_masks_show_the_keys_of_each_query(causal: bool) -> None:
    """Run the printed bounds, masks and rows of TMA for random bounds of a tile's rows."""
    made = plan_of(causal).attention
    blocks = function(bounds.bounds_function(made), "blocks_of")
    cutlass = SimpleNamespace(
        min=min, max=max, Int32=int, Float32=float, select_=lambda c, one, other: one if c else other
    )
    shown: dict[str, Any] = {"cutlass": cutlass}
    exec("\n".join(softmax._mask(made)), shown)
    rng = random.Random(0)
    for _ in range(60):
        rows, tile_m = made.rows, rng.randrange(4)
        low = sorted(rng.randrange(500) for _ in range(rows)) if rng.random() < 0.7 else [rng.randrange(500)] * rows
        high = [min(500, each + rng.randrange(-3, 150)) for each in low]
        low, high = [max(0, each) for each in low], [max(0, each) for each in high]
        origin = min(low)
        names: dict[str, Any] = {
            "cutlass": cutlass,
            "origin": origin,
            "limit": max(max(high) - origin, 0),
            "most_begins": max(low),
            "least_ends": min(high),
        }
        given = [names[each] for each in ("origin", "limit", "most_begins", "least_ends")]
        given += [1 for _ in numbers.parameters(made)]
        names["begin"], names["end"], names["whole"], names["edge"] = blocks(tile_m, *given)
        exec("\n".join(bounds.part_lengths(made)), names)
        order = [(names["end"] - 1, True)]
        for part in made.parts:
            counted = range(names[f"{part}_blocks"])
            order += [(eval(bounds.block_index(made, part), {**names, "at": at}), part != "free") for at in counted]
        assert [block for block, _ in order] == [*reversed(range(names["begin"], names["end"]))]
        exec("\n".join(line for line in steps._spanned_blocks(made)[:3]), names)
        for row in rng.sample(range(rows), 6):
            query = tile_m * rows + row
            last = min(high[row], query + 1) if causal else high[row]
            found = []
            for block, masked in order:
                first_key = origin + block * made.keys
                scores = [0.0] * made.keys
                if masked:  # elements of a thread's first row, with two columns of each 8
                    for lane in range(4):
                        own = [0.0] * (made.keys // 2)
                        shown["mask"](
                            own,
                            query,
                            first_key + 2 * lane,
                            names["origin"],
                            names["limit"],
                            [low[row]] * 2,
                            [high[row]] * 2,
                            *given[4:],
                        )
                        for at, value in enumerate(own):
                            if at // 2 % 2 == 0:
                                scores[at // 4 * 8 + at % 2 + 2 * lane] = value
                found += [first_key + at for at, value in enumerate(scores) if value == 0.0]
                for at in (0, made.keys - 1):  # the row that TMA reads, by an address modulo 2**64
                    index = names["first_row"] + block * made.keys + at
                    pitch = 2 * made.problem.k.pitch
                    end, rows_back = (eval(each, names) for each in printed_spans.places("end_of_k"))
                    address = (index + end) * pitch + rows_back * (2**34 - pitch)
                    assert address % 2**64 == (first_key + at) * pitch % 2**64
                    assert (index < printed_spans.ROWS) == (first_key + at < origin + names["limit"])
            assert sorted(found) == [*range(low[row], last)]


@pytest.mark.parametrize("static", [True, False])
def test_heads_are_rows_where_tma_has_too_few_dimensions(static: bool) -> None:
    """Sequences of a cache are whole rows apart. A launch whose sequences are not is refused."""
    q, k, v = (torch.randn(shape).bfloat16() for shape in ((3, 8, 64), (5, 200, 2, 64), (5, 200, 2, 64)))
    given = q, k, v, torch.tensor([4, 0, 2]), torch.tensor([190, 1, 77])
    kernel = helion.kernel(spans.slots, backend="cute", static_shapes=static)
    problem = kernel.bind(given).plan().attention.problem
    assert len(problem.k.modes) == 1 and problem.k.base is not None
    close(kernel(*given), spans.of_slots(*given))
    rows = torch.randn(5, 201 * 128 + 64).bfloat16()
    apart = rows[:, : 200 * 128].view(5, 200, 2, 64)
    with pytest.raises(
        (LaunchFailed, exc.CuteError, exc.CuteUnsupported), match="no whole number of rows|6 dimensions"
    ):
        kernel(q, apart, apart, *given[3:])


def test_registers_are_written_and_planted_faults_are_found() -> None:
    made = plan_of(True)
    assert not unwritten_registers(shape_of_plan(made).kernel(made).source)
    program = attention_program(made.attention)
    verify_attention(program)
    with pytest.raises(Fault, match="stale"):
        verify_attention(edited(program, "attend", without(g.Wait("v_read"))))


def of_meta(given: Any) -> Any:
    return [each.to("meta") if torch.is_tensor(each) else each for each in given]


@pytest.mark.prove
@pytest.mark.parametrize("name", ["documents", "packed", "absolute", "hstu", "paged"])
def test_binaries_are_neither_spilled_nor_serialized(name: str) -> None:
    rows = spans.packed_of((500, 700), (600, 700), 4, 2, 128, 128, True)
    given = {
        "documents": [*(torch.empty(2, 500, 64, dtype=torch.bfloat16) for _ in range(3)), *[torch.arange(500)] * 2],
        "packed": rows,
        "absolute": [rows[0], *[rows[0]] * 2, rows[3], 500],
        "paged": spans.paged_of([2000, 3000], 128, 30, 2, 4, 128),
        "hstu": [rows[0], *[rows[0]] * 2, rows[3], 0.1, 500],
    }[name]
    kernel = spans.segments if name == "hstu" else getattr(spans, name)
    bound = helion.kernel(kernel, backend="cute").bind(of_meta(given), target="sm_90")
    for seed in bound.seeds:
        found = bound.resources(seed.config)
        assert found.spill_bytes == 0 and found.sass_counts["WARPGROUP"] <= 14


def test_auto_takes_sequences_by_prediction() -> None:
    meta = functools.partial(torch.empty, device="meta")
    rows = [meta(16384, 16, 128, dtype=torch.bfloat16) for _ in range(3)]
    bounds_of_rows = [meta(16384, dtype=torch.int32) for _ in range(2)]
    given = (*rows, None, *bounds_of_rows, 1, 0.1, 0.0)
    assert helion.kernel(spans.of_rows, static_shapes=False).bind(given, target="h200").backend_on_gpu == "cute"
    bound = helion.kernel(spans.of_rows, backend="cute", static_shapes=False).bind(given, target="h200")
    assert bound.seeds[0].config["wgmma_tile_scheduler"] == "dynamic"


def test_auto_splits_the_keys_of_a_cache() -> None:
    meta = functools.partial(torch.empty, dtype=torch.bfloat16, device="meta")
    lengths = torch.empty(1, dtype=torch.int32, device="meta")
    given = (meta(1, 8, 4, 128), *(meta(1, 65536, 8, 128) for _ in range(2)), lengths, True, None)
    kernel = decode.decode_kernel.fn
    assert helion.kernel(kernel, static_shapes=False).bind(given, target="h200").backend_on_gpu == "cute"
    bound = helion.kernel(kernel, backend="cute", static_shapes=False).bind(given, target="h200")
    assert bound.seeds[0].config["wgmma_key_splits"] > 1


# Refusals --------------------------------------------------------------------------------------------------------------


def unmasked(q, k, v, ends):  # type: ignore[no-untyped-def]
    heads, m, dims = q.size(0), q.size(1), hl.specialize(q.size(2))
    out = torch.empty_like(q)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m], dtype=torch.float32)
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(0, torch.amax(ends[tile_m])):
            scores = hl.dot(q[h.begin, tile_m, :], k[h.begin, tile_n, :].T) * 0.125
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[h.begin, tile_m, :] = acc / total[:, None]
    return out


def weighted(q, k, v, ends):  # type: ignore[no-untyped-def]
    heads, m, dims = q.size(0), q.size(1), hl.specialize(q.size(2))
    out = torch.empty_like(q)
    for h, tile_m in hl.tile([heads, m], block_size=[1, None]):
        acc = hl.zeros([tile_m, dims], dtype=torch.float32)
        for tile_n in hl.tile(0, torch.amax(ends[tile_m])):
            weights = torch.sigmoid(hl.dot(q[h.begin, tile_m, :], k[h.begin, tile_n, :].T))
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile_n, :], acc=acc)
        out[h.begin, tile_m, :] = acc
    return out


@pytest.mark.parametrize("function_", [unmasked, weighted])
def test_a_loop_that_ends_with_a_tile_needs_a_mask(function_: Any) -> None:
    given = [torch.zeros(2, 90, 64, dtype=torch.bfloat16) for _ in range(3)]
    with pytest.raises(exc.CuteUnsupported, match="ends with the last key of a tile's queries, by ends"):
        helion.kernel(function_, backend="cute").bind((*given, torch.zeros(90, dtype=torch.int32)))


def test_keys_are_not_split_where_their_bounds_are_loaded() -> None:
    meta = [torch.empty(2, 500, 64, dtype=torch.bfloat16, device="meta") for _ in range(3)]
    more = [torch.empty(500, dtype=torch.int32, device="meta") for _ in range(2)]
    bound = helion.kernel(spans.documents, backend="cute").bind((*meta, *more), target="sm_90")
    with pytest.raises(exc.InvalidConfig, match="of the keys of a query, are not loaded"):
        bound.plan(helion.Config(block_sizes=[64, 64], wgmma_key_splits=2))
