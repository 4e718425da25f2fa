"""Loops over rows that begin anywhere, whose last tile has a loop of its own: which they are, and the values."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS


def lagged(x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
    b, n = x.size()
    out = torch.empty([b, 4], dtype=torch.float32, device=x.device)
    for rows, lag in hl.tile([b, 4], block_size=[None, 1]):
        acc = hl.zeros([rows])
        for tile in hl.tile(n):
            acc += (x[rows, tile].float() * padded[rows, tile.index + lag.begin].float()).sum(1)
        out[rows, lag.begin] = acc
    return out


def highest(x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
    """Maxima and the sum of exponentials, whose lanes out of range are masked."""
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for rows in hl.tile(x.size(0)):
        top = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows])
        for tile in hl.tile(x.size(1)):
            v = x[rows, tile].float()
            new = torch.maximum(top, v.amax(1))
            total = total * torch.exp(top - new) + torch.exp(v - new[:, None]).sum(1)
            top = new
        out[rows] = top + torch.log(total)
    return out


def shifted(x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
    """Differences of neighbours: loads with a constant shift, by places of the loop."""
    out = torch.empty([x.size(0)], dtype=torch.float32, device=x.device)
    for rows in hl.tile(x.size(0)):
        acc = hl.zeros([rows])
        for tile in hl.tile(x.size(1)):
            weight = (tile.index.float()[None, :] + tile.begin) * 0.001
            acc += ((padded[rows, tile.index + 3].float() - x[rows, tile].float()) * weight).sum(1)
        out[rows] = acc
    return out


Case = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _lagged(x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
    n = x.size(1)
    return torch.stack([(x.float() * padded[:, at : at + n].float()).sum(1) for at in range(4)], 1)


def _shifted(x: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
    at = torch.arange(x.size(1))
    return ((padded[:, 3 : 3 + x.size(1)].float() - x.float()) * (at + at // 16 * 16) * 0.001).sum(1)


CASES: tuple[tuple[Case, Case], ...] = (
    (lagged, _lagged),
    (highest, lambda x, padded: torch.logsumexp(x.float(), 1)),
    (shifted, _shifted),
)


def _tile(kernel: Case, rows: int, size: int) -> helion.Config:
    return helion.Config(block_sizes=[rows, size], num_warps=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [63, 64, 65, 79, 97, 1001])
@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_the_values(case: tuple[Case, Case], static: bool, width: int, dtype: torch.dtype) -> None:
    kernel, reference = case
    x = torch.randn(5, width).to(dtype)
    padded = torch.nn.functional.pad(x, (0, 4))
    got = helion.kernel(kernel, config=_tile(kernel, 2, 16), static_shapes=static)(x, padded)
    torch.testing.assert_close(got, reference(x, padded), atol=2e-3, rtol=1e-4)


def _code(kernel: Case, width: int, size: int = 64, **options: object) -> str:
    x, padded = torch.empty(64, width, device="meta"), torch.empty(64, width + 4, device="meta")
    bound = helion.kernel(kernel, backend="triton").bind((x, padded), target="h200")
    return bound.to_triton_code(helion.Config(**{**_tile(kernel, 1, size).to_dict(), **options}))


def _loops(code: str) -> list[str]:
    return re.findall(r"in tl\.range\((\d+, \d+), _BLOCK", code)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_whole_tiles_have_no_masks(case: tuple[Case, Case]) -> None:
    code = _code(case[0], 1001)
    assert _loops(code) == ["0, 960", "960, 1001"]
    whole = code.split("tl.range(")[1]
    assert "mask" not in whole and re.search(r"tl\.load\(\(\w+ \+ .*offset_\d", whole)


def test_loops_that_stay_as_they_are() -> None:
    assert _loops(_code(lagged, 1024)) == ["0, 1024"], "all tiles are whole"
    assert _loops(_code(highest, 1000)) == ["0, 1000"], "rows begin at multiples of a vector"
    assert _loops(_code(highest, 201)) == ["0, 201"], "a row has few tiles"
    assert _loops(_code(highest, 1001, range_unroll_factors=[0, 2])) == ["0, 1001"], "an unroll factor repeats the body"
    assert _loops(_code(highest, 1001, range_num_stages=[0, 3], num_stages=3)) == ["0, 1001"], "stages copy ahead"


def test_the_loop_is_shorter_in_instructions() -> None:
    """Offline: 8 elements a thread of rows whose loads begin anywhere need few registers."""
    cell = CELLS["autocorrelation"]
    bound = helion.kernel(cell.kernel.fn, backend="triton").bind(cell.arguments("meta", False), target="h200")
    found = bound.resources({**bound.default_config(), "block_sizes": [1, 1024], "num_warps": 4})
    assert found.spill_bytes == 0 and found.registers <= 40
