"""Loops that are split where masks are known: into which runs, and that nothing else changes."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import tensor

import helion
import helion.language as hl
from helion import exc


def attention(q, k, v, reach: int, visible: Callable, from_tile: hl.constexpr, to_tile: hl.constexpr):
    """Sums of `weights @ v` over the keys that are walked over, where a hidden one has a weight of 0.5."""
    m, n = q.size(0), k.size(0)
    d = hl.specialize(q.size(1))
    out = torch.empty([m, d], dtype=torch.float32, device=q.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, d], dtype=torch.float32)
        begin, end = 0, n
        if from_tile:
            begin = tile_m.begin
        if to_tile:
            end = tile_m.end
        for tile_n in hl.tile(begin, end):
            s = hl.dot(q[tile_m, :], k[tile_n, :].T)
            s = torch.where(visible(tile_m.index[:, None], tile_n.index[None, :], reach), s, 0.5)
            acc = hl.dot(s.to(v.dtype), v[tile_n, :], acc=acc)
        out[tile_m, :] = acc
    return out


def _back(i, j, reach):
    return i >= j


def _ahead(i, j, reach):
    return j > i + 3


def _not_behind(i, j, reach):
    return ~(i - j > reach)


def _window(i, j, reach):
    apart = i - j
    return (apart >= 0) & (reach > apart)


def _outside(i, j, reach):
    return (j < i - 5) | (i + 5 < j)


def _prefix(i, j, reach):
    return (j <= reach) & (i == i)


def _scattered(i, j, reach):
    return (i * j) % 7 > 2


#: What is seen, whether the loop begins at the tile of queries, whether it ends there, and its runs with tiles of 16 by 16.
CASES: dict[str, tuple[Callable[..., Any], bool, bool, int]] = {
    "back to the diagonal": (_back, False, True, 2),
    "back": (_back, False, False, 3),
    "ahead from the diagonal": (_ahead, True, False, 3),
    "ahead": (_ahead, False, False, 3),
    "not behind": (_not_behind, False, True, 3),
    "window": (_window, False, True, 3),
    "window of all": (_window, False, False, 3),
    "outside": (_outside, False, False, 3),
    "prefix": (_prefix, False, False, 3),
}
SHAPES = [(48, 48, 7), (45, 45, 20)]
SIZES = [[16, 16], [32, 16], [16, 32]]
PROVE = bool(os.environ.get("HELION_PROVE"))
SAMPLES = list(itertools.product(SHAPES, SIZES)) if PROVE else [((45, 45, 7), [16, 16])]


def _reference(visible: Callable[..., Any], begins: bool, ends: bool, tile: int, args: tuple[Any, ...]) -> torch.Tensor:
    q, k, v, reach, *_ = args
    q, k, v = q.double(), k.double(), v.double()
    i, j = torch.arange(len(q))[:, None], torch.arange(len(k))[None, :]
    weights = torch.where(visible(i, j, reach), q @ k.T, 0.5)
    first, last = i // tile * tile, (i // tile + 1) * tile
    walked = (j >= first if begins else j >= 0) & (j < last if ends else j < len(k))
    return torch.where(walked, weights, 0.0) @ v


@pytest.mark.parametrize("name", CASES)
def test_runs_give_what_one_loop_gives(name: str) -> None:
    visible, begins, ends, runs = CASES[name]
    for (m, n, reach), sizes in SAMPLES:
        torch.manual_seed(0)
        args = (*(torch.randn(rows, 16) + 0.5 for rows in (m, n, n)), reach, visible, begins, ends)
        bound = helion.kernel(attention, static_shapes=True).bind(args)
        config = helion.Config(block_sizes=sizes, peel_masks=True)
        code = bound.to_triton_code(config)
        assert code.count("in tl.range(") == runs
        result = bound.compile_config(config)(*args)
        if PROVE or visible is _window:
            assert torch.equal(result, bound.compile_config(helion.Config(block_sizes=sizes))(*args))
        expected = _reference(visible, begins, ends, sizes[0], args)
        assert (result.double() - expected).abs().max() <= 1e-5 * expected.abs().max()


def _below(i, j, reach):
    return i - j < reach


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("visible", [_below, _prefix])
def test_scalars_beyond_indices_are_converted_as_comparisons_do(
    visible: Callable[..., Any], index_dtype: torch.dtype
) -> None:
    q, k, v = (torch.randn(rows, 16) + 0.5 for rows in (33, 45, 45))
    whole, peeled = (helion.Config(block_sizes=[16, 16], peel_masks=each) for each in (False, True))
    for reach in (-(2**63), -(2**40), 20 - 2**32, 2**31 + 9, 2**63 - 1):
        args = (q, k, v, reach, visible, False, False)
        bound = helion.kernel(attention, static_shapes=True, index_dtype=index_dtype).bind(args)
        assert bound.to_triton_code(peeled).count("in tl.range(") == 3
        result = bound.compile_config(peeled)(*args)
        torch.testing.assert_close(result, bound.compile_config(whole)(*args))


def _bodies(code: str) -> list[str]:
    """The text of each loop of a kernel."""
    return re.split(r"\n    for ", code.split("tl.store")[0])[1:]


def _bound(name: str, m: int = 4096, target: str = "h200") -> helion.BoundKernel:
    visible, begins, ends, _ = CASES[name]
    args = (*(tensor(m, 64) for _ in range(3)), 512, visible, begins, ends)
    return helion.kernel(attention, static_shapes=True).bind(args, target=target)


def test_nothing_is_masked_where_all_is_seen() -> None:
    code = _bound("back to the diagonal").to_triton_code(helion.Config(block_sizes=[128, 64], peel_masks=True))
    whole, diagonal = _bodies(code)
    assert "tl.where" not in whole and "mask" not in whole
    assert diagonal.count("tl.where") == 1 and "mask" not in diagonal  # the loop ends with a tile of queries
    ragged = _bound("back to the diagonal", 4097).to_triton_code(helion.Config(block_sizes=[128, 64], peel_masks=True))
    whole, diagonal = _bodies(ragged)
    assert "tl.where" not in whole and "mask_2" not in whole and "mask_2" in diagonal


def test_what_is_hidden_from_a_whole_tile_is_not_computed() -> None:
    code = _bound("window of all").to_triton_code(helion.Config(block_sizes=[128, 64], peel_masks=True))
    assert [body.count("tl.dot(") for body in _bodies(code)] == [1, 2, 1]


def test_whole_runs_may_be_moved_as_boxes() -> None:
    config = {"block_sizes": [128, 64], "indexing": "tensor_descriptor"}
    plain, peeled = (
        _bound("back to the diagonal").to_triton_code(helion.Config(**config, peel_masks=peel))
        for peel in (False, True)
    )
    assert "k_desc.load" not in plain and peeled.count("k_desc.load") == 2


@pytest.mark.parametrize(
    ("m", "visible", "sizes", "peeled"),
    [
        (4096, _scattered, [128, 64], False),
        (4097, _scattered, [128, 64], True),
        (63, _scattered, [64, 64], False),
        (64, _back, [64, 64], False),
        (128, _back, [64, 64], True),
    ],
)
def test_a_loop_is_split_where_some_of_its_tiles_are_unlike_others(
    m: int, visible: Callable[..., Any], sizes: list[int], peeled: bool
) -> None:
    args = (*(tensor(m, 64) for _ in range(3)), 512, visible, False, False)
    bound = helion.kernel(attention, static_shapes=True).bind(args, target="h200")
    full = bound.config_spec.normalize(helion.Config(block_sizes=sizes, peel_masks=True))
    assert full["peel_masks"] is peeled


def one_product(x, w):
    out = torch.empty([x.size(0), w.size(1)], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile(out.shape):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = hl.dot(x[tile_m, tile_k], w[tile_k, tile_n], acc=acc)
        out[tile_m, tile_n] = acc
    return out


def test_a_loop_with_one_product_has_no_key() -> None:
    bound = helion.kernel(one_product, static_shapes=True).bind((tensor(64, 64), tensor(64, 64)))
    with pytest.raises(exc.InvalidConfig, match=r"peel_masks.*two matmuls"):
        bound.to_triton_code(helion.Config(peel_masks=True))


def test_a_loop_whose_warps_have_roles_stays_whole() -> None:
    bound = _bound("back", target="sm_100")
    config = helion.Config(block_sizes=[128, 64], range_warp_specializes=[None, True], peel_masks=True)
    assert bound.config_spec.normalize(config)["peel_masks"] is False


@pytest.mark.parametrize(("name", "first"), [("back to the diagonal", True), ("back", False), ("ahead", False)])
def test_programs_of_the_most_work_begin_first(name: str, first: bool) -> None:
    code = _bound(name).to_triton_code(helion.Config(block_sizes=[128, 64]))
    assert ("offset_0 = (31 - pid) * _BLOCK_SIZE_0" in code) is first


def test_a_turned_box_is_a_view_of_one_that_is_copied() -> None:
    q, keys, v = tensor(2, 4096, 64), tensor(2, 4096, 64).transpose(1, 2), tensor(2, 4096, 64)
    bound = helion.kernel(batched, static_shapes=True).bind((q, keys, v), target="h200")
    code = bound.to_triton_code(helion.Config(block_sizes=[1, 128, 64], indexing="tensor_descriptor"))
    assert re.search(
        r"tl\.permute\(tl\.reshape\(keys_desc\.load\(.*\), \[_BLOCK_SIZE_\d, _RDIM_SIZE_\d\]\), \[1, 0\]\)", code
    )


def batched(q, keys, v):
    b, m, d = q.size()
    d = hl.specialize(d)
    out = torch.empty([b, m, d], dtype=torch.float32, device=q.device)
    for tile_b, tile_m in hl.tile([b, m]):
        acc = hl.zeros([tile_b, tile_m, d], dtype=torch.float32)
        for tile_n in hl.tile(v.size(1)):
            s = torch.bmm(q[tile_b, tile_m, :], keys[tile_b, :, tile_n])
            acc = torch.baddbmm(acc, s, v[tile_b, tile_n, :])
        out[tile_b, tile_m, :] = acc
    return out


def _equal_ends(mask: torch.Tensor, tile: int) -> tuple[int, int]:
    """Return the tiles at the begin and at the end of a row of tiles in which a mask has one value."""
    kinds = [set(part.unique().tolist()) for part in mask.split(tile, dim=1)]
    first = len(list(itertools.takewhile(lambda kind: len(kind) == 1 and kind == kinds[0], kinds)))
    last = len(list(itertools.takewhile(lambda kind: len(kind) == 1 and kind == kinds[-1], reversed(kinds))))
    return first, min(last, len(kinds) - first)


@pytest.mark.parametrize("name", ["back to the diagonal", "back", "ahead from the diagonal", "ahead", "window of all"])
@pytest.mark.parametrize("sizes", [(16, 16), (32, 16), (16, 32)])
def test_facts_know_the_share_of_tiles_with_known_masks(name: str, sizes: tuple[int, int]) -> None:
    visible, begins, ends, _ = CASES[name]
    m, n, reach = 256, 256, 20  # no tile is all in the window
    args = (*(tensor(rows, 16) for rows in (m, n, n)), reach, visible, begins, ends)
    bound = helion.kernel(attention, static_shapes=True).bind(args, target="h200")
    (loop,) = bound.facts.rewrite("peel_masks").loops
    height, width = sizes
    total = first = last = 0
    for row in range(0, m, height):
        i, j = torch.arange(row, row + height)[:, None], torch.arange(row if begins else 0, row + height if ends else n)
        mask = visible(i, j[None, :], reach)
        head, tail = _equal_ends(mask, width)
        total, first, last = total - (-len(j) // width), first + head, last + tail
    assert loop.shares({loop.rows: height, loop.columns: width}) == (first / total, last / total)


def test_loops_whose_comparisons_no_tile_knows_have_no_shares() -> None:
    for name in ("prefix", "scattered"):
        visible = {"prefix": _prefix, "scattered": _scattered}[name]
        args = (*(tensor(64, 16) for _ in range(3)), 7, visible, False, False)
        bound = helion.kernel(attention, static_shapes=True).bind(args, target="h200")
        assert bound.facts.rewrite("peel_masks") is None


def test_known_masks_take_less_time() -> None:
    def times(visible: Callable[..., Any], ends: bool) -> list[tuple[float, dict[str, float]]]:
        args = (*(tensor(8192, 64, dtype=torch.bfloat16) for _ in range(3)), 1024, visible, False, ends)
        bound = helion.kernel(attention, static_shapes=True).bind(args, target="h200")
        configs = [
            bound.config_spec.normalize({"block_sizes": [64, 64], "num_warps": 4, "peel_masks": peeled})
            for peeled in (False, True)
        ]
        found = [bound._analysis.predict(config) for config in configs]
        return [(each.time_us, dict(each.units)) for each in found]

    (masked, units), (peeled, fewer) = times(_back, True)
    assert peeled < masked
    assert fewer["matrix units"] == units["matrix units"]
    (masked, units), (peeled, fewer) = times(_window, False)
    assert peeled < masked
    # scores of most tiles are hidden: one of two matmuls is left
    assert 0.5 * units["matrix units"] < fewer["matrix units"] < 0.6 * units["matrix units"]


def test_loops_from_a_row_to_a_known_end_have_facts() -> None:
    """Their extent is not known, since they begin at a row. Those of gradients for keys and values are such loops."""
    visible, begins, ends, _ = CASES["ahead from the diagonal"]
    args = (*(tensor(rows, 16) for rows in (256, 320, 320)), 20, visible, begins, ends)
    bound = helion.kernel(attention, static_shapes=True).bind(args, target="h200")
    (loop,) = bound.facts.rewrite("peel_masks").loops
    assert loop.from_rows and not loop.to_rows and loop.extents == (256, 320)
