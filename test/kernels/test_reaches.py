"""Loops that reach past the end of another tensor than the one that they are over: refused, also where sizes are known at
the launch only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion._testing import import_path
from helion.runtime import stub_driver

dynamic = pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])


def copied(x: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile]


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + y[tile]
    return out


def of_next(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = y[tile.index + 1]
    return out


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)])
    for tile_m, tile_n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def pairs(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows, columns in hl.tile(x.size()):
        out[rows, columns] = y[rows, columns] * 2
    return out


def one_by_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        out[i] = y[i]
    return out


def reversed_(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    n = x.size(0)
    for i in hl.grid(n):
        out[i] = y[n - 1 - i]
    return out


def every_third(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for i in hl.grid(0, x.size(0), 3):
        out[i] = y[i]
    return out


def counted(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(n):
        out[tile] = x[tile]
    return out


def between(x: torch.Tensor, begin: int, end: int) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(begin, end):
        out[tile] = x[tile]
    return out


def masked(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.load(y, [tile], extra_mask=tile.index < y.size(0))
    return out


def in_a_branch(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0), block_size=16):
        if tile.begin < y.size(0):
            out[tile] = y[tile]
    return out


def shorter(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(min(x.size(0), y.size(0))):
        out[tile] = x[tile] + y[tile]
    return out


def made(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sizes of what host code makes follow from those of the arguments, and nothing is compared."""
    out = torch.empty([x.size(0), y.size(0) + 1])
    half = torch.zeros(2 * x.size(0))
    for rows, columns in hl.tile([x.size(0), y.size(0)]):
        out[rows, columns] = x[rows][:, None] + y[columns][None, :]
        half[rows] = x[rows]
    return out


def data(*sizes: int) -> torch.Tensor:
    """A part of a longer memory, as a view of an activation is."""
    return torch.arange(1.0, 2001.0)[: torch.Size(sizes).numel()].view(sizes)


def compares(kernel: helion.Kernel, *args: object) -> int:
    return kernel.bind(args).to_triton_code().count("past_the_end(")


@dynamic
@pytest.mark.parametrize(
    ("function", "fits", "short", "message"),
    [
        (
            added,
            (data(20), data(23)),
            (data(20), data(15)),
            r"tile \(up to 20\) and dimension 0 of 'y' \(15 elements\)",
        ),
        (of_next, (data(20), data(21)), (data(20), data(20)), r"tile \(up to 21\) and dimension 0 of 'y' \(20"),
        (product, (data(5, 7), data(9, 4)), (data(5, 7), data(6, 4)), r"tile_k \(up to 7\) and dimension 0 of 'y' \(6"),
        (pairs, (data(5, 7), data(5, 9)), (data(5, 7), data(5, 6)), r"columns \(up to 7\) and dimension 1 of 'y' \(6"),
        (one_by_one, (data(20), data(21)), (data(20), data(19)), r"i \(up to 20\) and dimension 0 of 'y' \(19"),
        (reversed_, (data(20), data(21)), (data(20), data(19)), r"i \(up to 20\) and dimension 0 of 'y' \(19"),
        (every_third, (data(20), data(19)), (data(20), data(18)), r"i \(up to 19\) and dimension 0 of 'y' \(18"),
        (counted, (data(20), 19), (data(20), 21), r"tile \(up to 21\) and dimension 0 of '(x|out)' \(20"),
        (between, (data(20), 3, 20), (data(20), 3, 21), r"tile \(up to 21\) and dimension 0 of '(x|out)' \(20"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_tensor_that_is_too_short_is_refused(
    function: Callable[..., torch.Tensor],
    fits: tuple[object, ...],
    short: tuple[object, ...],
    message: str,
    static: bool,
) -> None:
    kernel = helion.kernel(function, static_shapes=static)
    eager = helion.kernel(function, ref_mode=helion.RefMode.EAGER)
    torch.testing.assert_close(kernel(*fits), eager(*fits))
    with pytest.raises(exc.ShapeMismatch, match=message) as error:
        kernel(*short)
    assert error.value.location is not None and error.value.location.text.startswith(("out[", "acc ="))
    assert "shorten the loop, or use hl.load or hl.store with extra_mask" in str(error.value)
    torch.testing.assert_close(kernel(*fits), eager(*fits))


@dynamic
def test_memory_after_a_shorter_output_is_not_written(static: bool) -> None:
    kernel, memory = helion.kernel(copied, static_shapes=static), torch.zeros(30)
    with pytest.raises(exc.ShapeMismatch, match=r"dimension 0 of 'out' \(15 elements\)"):
        kernel(torch.ones(20), memory[:15])
    assert not memory.any()
    kernel(torch.ones(20), memory[:25])
    assert memory.sum() == 20


@dynamic
def test_loops_without_an_iteration_read_nothing(static: bool) -> None:
    kernel = helion.kernel(between, static_shapes=static)
    assert not kernel(data(20), 25, 25).any()
    assert not helion.kernel(counted, static_shapes=static)(data(20), -3).any()


@dynamic
def test_masked_accesses_may_reach_further(static: bool) -> None:
    x, y = data(40), data(21)
    expected = torch.zeros(40)
    expected[:21] = y
    assert torch.equal(helion.kernel(masked, static_shapes=static)(x, y), expected)
    assert torch.equal(helion.kernel(in_a_branch, static_shapes=static)(x, y), expected)


def of_previous(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile.index - 1]
    return out


def into_previous(x: torch.Tensor, out: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        out[tile.index - 2] = x[tile]


@dynamic
def test_memory_before_a_tensor_is_neither_read_nor_written(static: bool) -> None:
    x = data(30)[10:]
    assert helion.kernel(of_previous, static_shapes=static)(x).tolist() == [0, *x[:-1].tolist()]
    memory = torch.zeros(30)
    helion.kernel(into_previous, static_shapes=static)(x, memory[10:])
    assert memory.tolist() == [0.0] * 10 + x[2:].tolist() + [0.0] * 2
    with pytest.raises(exc.IndexOutOfRange, match="'of_previous' reads 'x' out of range"):
        helion.kernel(of_previous, static_shapes=static, checked=True)(x)


def test_what_is_known_costs_nothing() -> None:
    for function, args in ((shorter, (data(40), data(21))), (made, (data(40), data(21))), (added, (data(9), data(9)))):
        kernel = helion.kernel(function, static_shapes=False)
        kernel(*args)
        assert compares(kernel, *args) == 0
    kernel = helion.kernel(added, static_shapes=False)
    assert compares(kernel, data(20), data(23)) == 1


def test_written_calls_compare_too() -> None:
    kernel = helion.kernel(added, static_shapes=False, config=helion.Config(block_sizes=[16]))
    with stub_driver() as stub:
        for _ in range(3):
            kernel(data(20), data(23))
        assert "<helion dispatch" in kernel.__call__.__code__.co_filename
        with pytest.raises(exc.ShapeMismatch, match=r"\(up to 24\) and dimension 0 of 'y' \(23 elements\)"):
            kernel(data(24), data(23))
        assert len(stub.launches) == 3


@helion.kernel(static_shapes=False)
def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + y[tile]
    return out


def test_a_graph_compares_too() -> None:
    compiled = torch.compile(lambda x, y: both(x, y) * 2, backend="eager", dynamic=True)
    assert torch.equal(compiled(data(20), data(23)), data(20) * 4)
    with pytest.raises(Exception, match=r"tile \(up to 23\) and dimension 0 of 'y' \(20 elements\)"):
        compiled(data(23), data(20))


def third_last(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0)])
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, -3]
    return out


def chosen(x: torch.Tensor, at: int) -> torch.Tensor:
    out = torch.zeros([x.size(0)])
    for tile in hl.tile(x.size(0)):
        if at < x.size(1):
            out[tile] = x[tile, at]
    return out


@dynamic
def test_an_index_that_is_known_at_the_launch(static: bool) -> None:
    kernel = helion.kernel(third_last, static_shapes=static)
    assert torch.equal(kernel(data(9, 5)), data(9, 5)[:, -3])
    with pytest.raises(
        exc.InvalidAPIUsage, match=r"Index -3 is out of range for dimension 1 of 'x', which has 2 elements"
    ):
        kernel(data(9, 2))
    kernel = helion.kernel(chosen, static_shapes=static)
    assert torch.equal(kernel(data(9, 5), -1), data(9, 5)[:, -1])
    assert not kernel(data(9, 5), 5).any()


def picked(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    out = torch.empty([at.size(0)])
    for tile in hl.tile(at.size(0)):
        out[tile] = x[at[tile]]
    return out


def test_checked_mode_finds_a_negative_index_that_is_loaded() -> None:
    kernel, x = helion.kernel(picked, checked=True), data(20)[10:]
    assert kernel(x, torch.tensor([0, 9])).tolist() == [11, 20]
    with pytest.raises(
        exc.IndexOutOfRange, match="'picked' reads 'x' out of range in dimension 0, which has 10 elements"
    ):
        kernel(x, torch.tensor([0, -1]))


def test_the_other_backend_takes_no_other_sizes() -> None:
    x, y = (torch.empty(size, dtype=torch.bfloat16) for size in ((256, 192), (320, 128)))
    with pytest.raises(
        exc.CuteUnsupported, match=r"y is \(y_size_0, y_size_1\), of which tiles cover \(x_size_1, y_size_1\)"
    ):
        helion.kernel(product, backend="cute", static_shapes=False).bind((x, y), target="h100")


def test_a_module_without_helion_compares_too(tmp_path: Path) -> None:
    kernel = helion.kernel(added, static_shapes=False, config=helion.Config(block_sizes=[16]))
    options = helion.OutputCodeOptions(allow_helion_deps=False)
    path = tmp_path / "alone.py"
    path.write_text(kernel.bind((data(20), data(23))).to_code(options=options))
    with pytest.raises(
        RuntimeError, match=r"tile \(up to 23\) reaches past the end of dimension 0 of 'y' \(20 elements\)"
    ):
        import_path(path).added(data(23), data(20))
