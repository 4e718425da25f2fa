"""Lookups in small tables in loops that multiply: tables are loaded before the loop, where nothing stores to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion.backends.triton.execute.interpreter.races import detect_races

BF16 = torch.bfloat16


def looked_up(x, codes, book):
    m, k = x.size()
    out = torch.empty([m, codes.size(1)], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile(out.size()):
        acc = hl.zeros([rows, columns])
        for inner in hl.tile(k):
            w = book[codes[inner, columns].to(torch.int32)]
            acc = hl.dot(x[rows, inner], w.to(x.dtype), acc=acc)
        out[rows, columns] = acc
    return out


def halves(x, codes, book):
    """Two numbers of four bits a byte, the low bits in the first half of K."""
    half = codes.size(0)
    out = torch.empty([x.size(0), codes.size(1)], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile(out.size()):
        acc = hl.zeros([rows, columns])
        for inner in hl.tile(half):
            code = codes[inner, columns].to(torch.int32)
            acc = hl.dot(x[rows, inner], book[code & 15].to(x.dtype), acc=acc)
            acc = hl.dot(x[rows, inner.index + half], book[code >> 4].to(x.dtype), acc=acc)
        out[rows, columns] = acc
    return out


def of_rows(x, codes, book):
    """One number for each of K: lookups of one dimension."""
    m, k = x.size()
    out = torch.empty([m, codes.size(1)], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile(out.size()):
        acc = hl.zeros([rows, columns])
        for inner in hl.tile(k):
            scale = book[codes[inner, 0].to(torch.int32)]
            w = codes[inner, columns].to(torch.float32) * scale[:, None]
            acc = hl.dot(x[rows, inner], w.to(x.dtype), acc=acc)
        out[rows, columns] = acc
    return out


def beside(x, codes, book):
    """What is looked up is not multiplied."""
    m, k = x.size()
    out = torch.empty([m, codes.size(1)], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile(out.size()):
        acc = hl.zeros([rows, columns])
        total = hl.zeros([columns])
        for inner in hl.tile(k):
            code = codes[inner, columns].to(torch.int32)
            acc = hl.dot(x[rows, inner], code.to(x.dtype), acc=acc)
            total += book[code].sum(0)
        out[rows, columns] = acc + total
    return out


def stored_to(x, codes, book):
    """The table changes in the loop."""
    m, k = x.size()
    out = torch.empty([m, codes.size(1)], dtype=torch.float32, device=x.device)
    for rows, columns in hl.tile(out.size(), block_size=[None, None]):
        acc = hl.zeros([rows, columns])
        for inner in hl.tile(k):
            w = book[codes[inner, columns].to(torch.int32)]
            acc = hl.dot(x[rows, inner], w.to(x.dtype), acc=acc)
            book[inner.id] = 0.5
        out[rows, columns] = acc
    return out


def values(m: int, k: int, n: int, size: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(m, k).to(BF16), torch.randint(0, size, [k, n]).to(torch.uint8), torch.randn(size).to(dtype)


def _looked_up(x: torch.Tensor, codes: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    return x.double() @ book[codes.long()].to(x.dtype).double()


def _halves(x: torch.Tensor, codes: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    return _looked_up(x, torch.cat([codes & 15, codes >> 4]), book)


def _of_rows(x: torch.Tensor, codes: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    return x.double() @ (codes.float() * book[codes[:, :1].long()]).to(x.dtype).double()


def _beside(x: torch.Tensor, codes: torch.Tensor, book: torch.Tensor) -> torch.Tensor:
    return x.double() @ codes.double() + book[codes.long()].double().sum(0)


def _bytes(m: int, k: int, n: int) -> tuple[torch.Tensor, ...]:
    x, codes, _ = values(m, 2 * k, n, 256)
    return x, codes[:k], torch.randn(16)


#: Kernel, reference, arguments, and the lookups in registers.
CASES: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor], tuple[torch.Tensor, ...], int]] = {
    "16 numbers": (looked_up, _looked_up, values(37, 70, 41, 16), 1),
    "256 numbers": (looked_up, _looked_up, values(16, 64, 33, 256), 1),
    "one number": (looked_up, _looked_up, values(16, 64, 33, 1), 0),
    "halves of bytes": (halves, _halves, _bytes(37, 35, 41), 2),
    "a number for each of K": (of_rows, _of_rows, values(37, 70, 41, 32), 1),
    "not a power of two": (looked_up, _looked_up, values(37, 70, 41, 24), 0),
    "numbers of 2 bytes": (looked_up, _looked_up, values(37, 70, 41, 16, BF16), 0),
    "not multiplied": (beside, _beside, values(37, 70, 41, 16), 0),
}


@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", CASES)
def test_lanes_take_elements_of_tables(name: str, static: bool) -> None:
    fn, reference, args, count = CASES[name]
    config = helion.Config(block_sizes=[16, 32, 32], num_warps=4, num_stages=3)
    kernel = helion.kernel(fn, static_shapes=static, config=config)
    text = kernel.bind(args).to_triton_code()
    assert text.count("tl.gather(") == (count if static else 0)
    with detect_races():
        found = kernel(*args)
    torch.testing.assert_close(found.double(), reference(*args), rtol=1e-3, atol=1e-3)


def test_other_loads_stay() -> None:
    args = values(37, 70, 41, 16)

    def text(fn: Callable[..., Any], **config: Any) -> str:
        full = {"block_sizes": [16, 32, 32], "num_warps": 4, "num_stages": 3, **config}
        kernel = helion.kernel(fn, static_shapes=True, config=helion.Config(**full))
        return kernel.bind(args).to_triton_code()

    assert "tl.gather(" not in text(looked_up, num_stages=1), "without stages nothing is copied ahead"
    assert "tl.gather(" not in text(stored_to), "the table is stored to"
    code = text(looked_up)
    assert code.index("tl.load(book") < code.index("tl.range(") < code.index("tl.gather(")


@pytest.mark.parametrize(("fn", "size"), [(looked_up, 256), (halves, 16)])
def test_predicted_memory_has_no_copies_of_lookups(fn: Callable[..., Any], size: int) -> None:
    """What lookups pass to other threads is in it, and indices that are copied ahead."""
    x, codes, book = (
        torch.empty(shape, dtype=dtype, device="meta")
        for shape, dtype in (
            ((64, 4096), BF16),
            ((2048 if fn is halves else 4096, 4096), torch.uint8),
            ((size,), torch.float32),
        )
    )
    bound = helion.kernel(fn, static_shapes=True).bind((x, codes, book), target="h200")
    config = helion.Config(block_sizes=[64, 64, 64], num_warps=4, num_stages=4)
    predicted, real = bound._analysis.predict(bound.config_spec.normalize(config)), bound.resources(config)
    assert real.shared_bytes <= predicted.shared_bytes <= 1.4 * real.shared_bytes
    assert real.spill_bytes == 0
    assert bound.resources(bound.default_config()).fits


def test_checked_kernels_report_places_out_of_range() -> None:
    """Elsewhere such a place is brought into the table."""
    x, codes, book = torch.randn(16, 32).to(BF16), torch.full((32, 16), 16, dtype=torch.uint8), torch.randn(16)
    with pytest.raises(helion.exc.IndexOutOfRange):
        helion.kernel(looked_up, checked=True)(x, codes, book)
