"""One block size of the config for several dimensions of a loop and for loops inside each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc


def places(x: torch.Tensor) -> torch.Tensor:
    """All fields of both tiles; extents that differ."""
    m, n = x.size()
    out = torch.empty_like(x)
    size = hl.register_block_size(4, 64)
    for i, j in hl.tile([m, n], block_size=size):
        begins = i.begin * 10 + j.begin + i.id * 3 + j.id * 5 + i.count + j.count * 2 + j.block_size
        out[i, j] = x[i, j] + i.index[:, None] * 100 + j.index[None, :] + begins
    return out


def _places(x: torch.Tensor) -> torch.Tensor:
    (m, n), (i, j) = x.shape, (torch.arange(s) for s in x.shape)
    counts = -(-m // 8) + -(-n // 8) * 2 + 8
    rows = i // 8 * 80 + i // 8 * 3 + i * 100
    return x + rows[:, None] + j // 8 * 8 + j // 8 * 5 + j + counts


def offset(x: torch.Tensor) -> torch.Tensor:
    """Bounds that differ, of which one axis begins behind 0."""
    out = torch.zeros_like(x)
    size = hl.register_block_size(x.size(0))
    for i, j in hl.tile([3, 0], [x.size(0), x.size(1) - 2], block_size=[size, size]):
        out[i, j] = x[i, j] * 2 + j.index[None, :]
    return out


def _offset(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    out[3:, :-2] = (x * 2 + torch.arange(x.size(1)))[3:, :-2]
    return out


def cubes(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    size = hl.register_block_size(2, 16)
    for i, j, k in hl.tile(x.size(), block_size=[size, size, size]):
        out[i, j, k] = x[i, j, k] + i.index[:, None, None] * 2 + j.index[None, :, None] * 7 + k.index * 9
    return out


def _cubes(x: torch.Tensor) -> torch.Tensor:
    i, j, k = (torch.arange(s) for s in x.shape)
    return x + i[:, None, None] * 2 + j[:, None] * 7 + k * 9


def nested(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Loops behind each other inside a loop of the same size share their tile."""
    m, n = x.size()
    out, sums = torch.empty_like(x), torch.empty([m])
    size = hl.register_block_size(m)
    for i in hl.tile(m, block_size=size):
        total = hl.zeros([i])
        for j in hl.tile(n, block_size=size):
            total += x[i, j].sum(1)
        for j in hl.tile(n, block_size=size):
            out[i, j] = x[i, j] - total[:, None]
        sums[i] = total
    return out, sums


def of_a_tile(x: torch.Tensor) -> torch.Tensor:
    """The size of the outer tile, which the config gives."""
    out = torch.empty([x.size(0)])
    for i in hl.tile(x.size(0)):
        total = hl.zeros([i])
        for j in hl.tile(x.size(1), block_size=i.block_size):
            total += x[i, j].sum(1)
        out[i] = total
    return out


def three_deep(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(1)])
    size = hl.register_block_size(8)
    for g in hl.grid(x.size(0)):
        for i in hl.tile(x.size(1), block_size=size):
            total = hl.zeros([i])
            for j in hl.tile(x.size(2), block_size=size):
                for k in hl.tile(x.size(2), block_size=size):
                    total += (x[g, i, j][:, :, None] * x[g, i, k][:, None, :]).sum(2).sum(1)
            out[g, i] = total
    return out


def in_halves(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    size = hl.register_block_size(2, x.size(0))
    for i, j in hl.tile(x.size(), block_size=[size // 2, size // 2]):
        out[i, j] = x[i, j] + i.index[:, None]
    return out


def sizes_as_shapes(x: torch.Tensor) -> torch.Tensor:
    """A size that stands twice in a shape means both tiles."""
    out = torch.empty_like(x)
    size = hl.register_block_size(x.size(0))
    for i, j in hl.tile(x.size(), block_size=[size, size]):
        total = hl.zeros([size, size]) + x[i, j].reshape(size, size) + x[0, j].reshape(1, size)
        flat = total.reshape(-1).reshape(i.block_size, j.block_size)
        halves = flat.reshape(i.block_size, j.block_size // 2, 2)
        even, odd = hl.split(halves)
        out[i, j] = hl.join(even, odd).reshape(i.block_size, j.block_size) + hl.zeros([i.block_size, j.block_size])
    return out


def gram(x: torch.Tensor) -> torch.Tensor:
    """The lower triangle, mirrored."""
    n, k = x.size()
    out = torch.empty([n, n])
    size = hl.register_block_size(n)
    for i, j in hl.tile([n, n], block_size=[size, size]):
        if i.begin >= j.begin:
            acc = hl.zeros([i, j])
            for t in hl.tile(k):
                acc = hl.dot(x[i, t], x[j, t].T, acc=acc)
            out[i, j] = acc
            out[j, i] = acc.T
    return out


def gram_of_rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(0)])
    size = hl.register_block_size(x.size(0))
    for i, j in hl.tile(out.size(), block_size=[size, size]):
        out[i, j] = x[i, :] @ x[j, :].T
    return out


def distances(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(0)])
    size = hl.register_block_size(x.size(0))
    for i in hl.tile(x.size(0), block_size=size):
        for j in hl.tile(x.size(0), block_size=size):
            out[i, j] = (x[i, :][:, None, :] - x[j, :][None, :, :]).abs().sum(-1)
    return out


def square_product(x: torch.Tensor) -> torch.Tensor:
    """One size along M, N and K."""
    out = torch.empty([x.size(0), x.size(0)])
    size = hl.register_block_size(x.size(0))
    for i, j in hl.tile(out.size(), block_size=size):
        acc = hl.zeros([i, j])
        for t in hl.tile(x.size(1), block_size=size):
            acc = torch.addmm(acc, x[i, t], x[j, t].T)
        out[i, j] = acc
    return out


def _tensor(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) - 0.5


def _gram(x: torch.Tensor) -> torch.Tensor:
    return x @ x.T


Reference = Callable[[torch.Tensor], Any]
CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], list[int], Reference]] = {
    "places": (places, (21, 13), [8], _places),
    "places, wide": (places, (5, 40), [8], _places),
    "offset": (offset, (21, 40), [8], _offset),
    "cubes": (cubes, (5, 9, 11), [4], _cubes),
    "nested": (nested, (21, 13), [8], lambda x: (x - x.sum(1)[:, None], x.sum(1))),
    "nested, wide": (nested, (13, 21), [8], lambda x: (x - x.sum(1)[:, None], x.sum(1))),
    "of a tile": (of_a_tile, (21, 13), [8], lambda x: x.sum(1)),
    "three deep": (three_deep, (2, 9, 7), [4], lambda x: x.sum(2) ** 2),
    "halves": (in_halves, (21, 13), [8], lambda x: x + torch.arange(21)[:, None]),
    "shapes": (sizes_as_shapes, (21, 14), [8], lambda x: x + x[0]),
    "gram": (gram, (40, 21), [16, 16], _gram),
    "gram of rows": (gram_of_rows, (40, 21), [16], _gram),
    "distances": (distances, (21, 6), [8], lambda x: (x[:, None] - x[None]).abs().sum(-1)),
    "square product": (square_product, (40, 21), [16], _gram),
}


#: Kernels that give the same whatever the config.
SAME = [name for name in CASES if "places" not in name]


@pytest.mark.parametrize("form", ["static", "dynamic", "checked"])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, form: str) -> None:
    function, shape, sizes, reference = CASES[name]
    config = helion.Config(block_sizes=sizes)
    kernel = helion.kernel(function, config=config, static_shapes=form == "static", checked=form == "checked")
    x = _tensor(*shape)
    torch.testing.assert_close(kernel(x), reference(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SAME)
def test_default_config(name: str) -> None:
    function, shape, _, reference = CASES[name]
    x = _tensor(*shape)
    torch.testing.assert_close(helion.kernel(function)(x), reference(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", [name for name in SAME if name != "shapes"])
def test_eager(name: str) -> None:
    function, shape, _, reference = CASES[name]
    x = _tensor(*shape)
    torch.testing.assert_close(
        helion.kernel(function, ref_mode=helion.RefMode.EAGER)(x), reference(x), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("target", ["h100", "sm_80", "sm_100", "gfx942"])
@pytest.mark.parametrize("name", ["places", "gram", "nested", "square product"])
def test_one_entry_for_all(name: str, target: str) -> None:
    function, shape, sizes, _ = CASES[name]
    args = (torch.empty([20 * s for s in shape], device="meta"),)
    bound = helion.kernel(function, backend="triton").bind(args, target=target)
    config = bound.default_config()
    assert len(config["block_sizes"]) == len(sizes)
    bound.to_triton_code(config)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["gram of rows", "distances", "nested", "of a tile", "square product"])
def test_gradients(name: str, dynamic: bool) -> None:
    function, shape, sizes, reference = CASES[name]
    kernel = helion.kernel(function, config=helion.Config(block_sizes=sizes), static_shapes=not dynamic)
    x, y = (_tensor(*shape).requires_grad_() for _ in range(2))
    got, expected = kernel.differentiable()(x), reference(y)
    if not isinstance(got, tuple):
        got, expected = (got,), (expected,)
    for values in (got, expected):
        sum((v * (v.detach() + 1)).sum() for v in values).backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-3, atol=1e-3)


def test_a_product_of_the_cute_backend() -> None:
    def half(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0), x.size(0)], dtype=x.dtype)
        size = hl.register_block_size(x.size(0))
        for i, j in hl.tile(out.size(), block_size=[size, size]):
            acc = hl.zeros([i, j])
            for t in hl.tile(x.size(1)):
                acc = torch.addmm(acc, x[i, t], x[j, t].T)
            out[i, j] = acc.to(x.dtype)
        return out

    x = _tensor(304, 96).half()
    bound = helion.kernel(half, backend="cute").bind((x,), target="h100")
    config = bound.default_config()
    assert len(config["block_sizes"]) == 2
    expected = _gram(x.double())
    torch.testing.assert_close(bound.compile_config(config)(x).double(), expected, rtol=1e-2, atol=1e-1)


def test_tiles_of_one_size_are_two_dimensions() -> None:
    def swapped(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(1), x.size(0)])
        size = hl.register_block_size(x.size(0))
        for i, j in hl.tile(x.size(), block_size=[size, size]):
            out[j, i] = x[i, j]
        return out

    with pytest.raises(exc.ShapeMismatch, match="two tiles of one block size"):
        helion.kernel(swapped).bind((_tensor(21, 13),))


def test_shapes_that_change_the_order_of_such_tiles() -> None:
    def swapped(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(1), x.size(0)])
        size = hl.register_block_size(x.size(0))
        for i, j in hl.tile(x.size(), block_size=[size, size]):
            out[j, i] = x[i, j].reshape(j.block_size, i.block_size)
        return out

    with pytest.raises(exc.BackendUnsupported, match="tiles would change their order; use permute"):
        helion.kernel(swapped).bind((_tensor(21, 13),))
