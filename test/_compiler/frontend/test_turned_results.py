"""Results that the host copies in another order, which kernels store in that order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from generated_source import load

import helion
import helion.language as hl

B, H, S, D = 2, 3, 40, 32
LEFT, C, RIGHT, E = 5, 16, 7, 32


@helion.kernel(static_shapes=True)
def heads_first(x: torch.Tensor) -> torch.Tensor:
    b, h, s, d = x.size()
    out = torch.empty([b, h, s, d], dtype=x.dtype, device=x.device)
    for i, j, tile in hl.tile([b, h, out.size(2)], block_size=[1, 1, None]):
        out[i.begin, j.begin, tile, :] = x[i.begin, j.begin, tile, :] + 1
    return out.transpose(1, 2).reshape(b, s, h * d)


@helion.kernel(static_shapes=True)
def outer_products(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    (k, i, c), (_, j, e) = x.size(), y.size()
    left, right = x.view(k, i * c), y.view(k, j * e)
    out = torch.empty([i * c, j * e], dtype=torch.float32, device=x.device)
    for tile_m, tile_n in hl.tile([i * c, j * e]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, left[tile_k, tile_m].T, right[tile_k, tile_n])
        out[tile_m, tile_n] = acc / k
    return out.view(i, c, j, e).permute(0, 2, 1, 3).contiguous().view(i, j, c * e)


def of_heads(seed: int = 0) -> torch.Tensor:
    return torch.randn(B, H, S, D, generator=torch.Generator().manual_seed(seed))


def of_products() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(24, LEFT, C, generator=generator), torch.randn(24, RIGHT, E, generator=generator)


def stored(kernel: Any, arguments: Sequence[Any]) -> Any:
    """Return the tensor that the only kernel of a program stores to."""
    program = kernel.bind(tuple(arguments), target="a100").variant.specialized.analysis.program
    (store,) = (op for op in program.walk() if op.kind == "store")
    return program.tensors[store.attrs.tensor]


def test_heads_are_stored_next_to_each_other() -> None:
    x = of_heads()
    found = heads_first(x)
    assert torch.equal(found, (x + 1).transpose(1, 2).reshape(B, S, H * D)) and found.is_contiguous()
    assert stored(heads_first, (x,)).strides == (S * H * D, D, H * D, 1)


def test_rows_and_columns_are_divided() -> None:
    x, y = of_products()
    found = outer_products(x, y)
    wanted = torch.einsum("kic,kje->ijce", x.double(), y.double()).reshape(LEFT, RIGHT, C * E) / 24
    torch.testing.assert_close(found.double(), wanted, rtol=1e-2, atol=1e-3)
    assert found.is_contiguous() and stored(outer_products, (x, y)).shape == (LEFT, RIGHT, C, E)


TEXT = """
def kernel(x: torch.Tensor, last: bool = True):
    b, h, s, d = x.size()
    {before}
    out = torch.empty([{rows}], dtype=x.dtype, device=x.device)
    {made}
    for tile_m, tile_n in hl.tile([b * h * s, d]):
        {store}
    {after}
    return {result}
"""
TURNED = "out.view(b * h, s, d).permute(1, 0, 2).contiguous()"
PLAIN = {
    "rows": "b * h * s, d",
    "before": "flat = x.view(b * h * s, d)",
    "made": "pass",
    "store": "out[tile_m, tile_n] = flat[tile_m, tile_n] * 2",
    "after": "pass",
    "result": TURNED,
}
SAME: dict[str, dict[str, str]] = {
    "copied twice": {"result": f"{TURNED}, out"},
    "read by the host": {"after": "total = out.sum()", "result": f"{TURNED} + 0 * total"},
    "kept by the host": {"made": "kept = [out]", "result": f"{TURNED}, kept"},
    "no copy": {"result": "out.view(b * h, s, d).permute(1, 0, 2)"},
    "columns that move": {"result": "out.view(b, h, s, d).permute(0, 1, 3, 2).contiguous()"},
    "another division": {"result": "out.view(b, h * s, d).permute(1, 0, 2)[:, :, :8].contiguous()"},
    "parts that are no rows": {"result": "out.view(b * h, s * d // 16, 16).permute(1, 0, 2).contiguous()"},
    "a size that changes": {"after": "s, b = s // 2, b * 2"},
    "elements that are added": {"store": "out[tile_m, tile_n] += flat[tile_m, tile_n]", "made": "out.zero_()"},
    "a branch": {"after": "if last: return out.view(b, h, s, d).permute(2, 0, 1, 3).contiguous()"},
    "memory of another tensor": {
        "made": "other = out",
        "result": "other.view(b * h, s, d).permute(1, 0, 2).contiguous()",
    },
    "strides of an argument": {"rows": "b * h * s, d", "made": "out = torch.empty_like(flat)"},
}


def kernel_of(changes: dict[str, str], directory: Path, **settings: Any) -> tuple[Any, Callable[..., Any]]:
    text = TEXT.format(**PLAIN | changes)
    eager = text.replace("hl.tile([b * h * s, d])", "[(slice(None), slice(None))]")
    loaded = load(text + eager.replace("def kernel", "def eager"), directory, "turned")
    return helion.kernel(loaded.kernel, **settings), loaded.eager


def same(found: Any, wanted: Any) -> bool:
    """Return whether results are equal, with the strides that they have without any rewrite."""
    if isinstance(wanted, (tuple, list)):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return torch.equal(found, wanted) and found.stride() == wanted.stride()


def test_a_plain_result_is_stored_in_the_order_of_its_copy(tmp_path: Path) -> None:
    kernel, eager = kernel_of({}, tmp_path, static_shapes=True)
    x = of_heads()
    assert same(kernel(x), eager(x))
    assert stored(kernel, (x,)).shape == (S, B * H, D)


@pytest.mark.parametrize("name", SAME)
def test_other_results_stay_as_they_are(name: str, tmp_path: Path) -> None:
    kernel, eager = kernel_of(SAME[name], tmp_path, static_shapes=True)
    x = of_heads()
    assert same(kernel(x), eager(x))
    assert stored(kernel, (x,)).shape == (B * H * S, D)


def test_short_runs_and_numbers_of_the_launch_stay_as_they_are(tmp_path: Path) -> None:
    narrow = torch.randn(B, H, S, 8)
    kernel, eager = kernel_of({}, tmp_path, static_shapes=True)
    assert same(kernel(narrow), eager(narrow)) and stored(kernel, (narrow,)).shape == (B * H * S, 8)
    kernel, eager = kernel_of({}, tmp_path, static_shapes=False)
    x = of_heads()
    assert same(kernel(x), eager(x)) and len(stored(kernel, (x,)).shape) == 2
