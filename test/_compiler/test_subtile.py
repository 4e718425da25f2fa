"""Epilogues in column subtiles: generated text, equality with eager PyTorch, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion import exc
from helion._compiler.ir.grammar import DotAttrs
from helion._compiler.ir.verifier import verify
from helion._compiler.rewrites.epilogue_subtile import subtile, subtile_blocks
from helion._testing import check, map_tensors


def tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) - 0.5).to(dtype)


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


# --- kernels ------------------------------------------------------------------------------------------------------------


@helion.kernel
def gemm(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for a, b in hl.tile(out.size()):
        acc = hl.zeros([a, b])
        for c in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[a, c], y[c, b])
        out[a, b] = F.gelu(acc + bias[b]).to(x.dtype)
    return out


@helion.kernel
def many_ways(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two stores, one of them transposed, an update in place, and positions in the tile and in the tensor."""
    m, n = x.size(0), y.size(1)
    out, flipped, total = torch.empty([m, n]), torch.empty([n, m]), torch.ones([m, n])
    for a, b in hl.tile([m, n]):
        acc = hl.zeros([a, b])
        for c in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[a, c], y[c, b])
        v = torch.where(b.index[None, :] < a.index[:, None], acc, -acc) + bias[b]
        total[a, b] = total[a, b] + v
        out[a, b] = v * (a.begin + 1) + hl.arange(b.block_size)[None, :] * 0
        flipped[b, a] = v.t()
    return out, flipped, total


@helion.kernel
def without_a_loop(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)])
    for a, b in hl.tile(out.size()):
        out[a, b] = torch.relu(x[a, :] @ y[:, b])
    return out


@helion.kernel
def batched(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(1), y.size(2)])
    for a, b, c in hl.tile(out.size()):
        acc = hl.zeros([a, b, c])
        for d in hl.tile(x.size(2)):
            acc = torch.baddbmm(acc, x[a, b, d], y[a, d, c])
        out[a, b, c] = acc * 2
    return out


@helion.kernel
def columns_inside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The product and its store stand in a loop over the columns; another value of that loop has them, too."""
    out = torch.empty([x.size(0), y.size(1)])
    for a in hl.tile(x.size(0)):
        for b in hl.tile(y.size(1)):
            sums = hl.zeros([b])
            acc = hl.zeros([a, b])
            for c in hl.tile(x.size(1)):
                acc = torch.addmm(acc, x[a, c], y[c, b])
                sums = sums + y[c, b].sum(0)
            out[a, b] = acc - sums
    return out


CASES: dict[str, tuple[helion.Kernel, tuple[Any, ...], Callable[..., Any]]] = {
    "bias": (gemm, (tensor(13, 19), tensor(19, 77), tensor(77)), lambda x, y, b: F.gelu(x @ y + b)),
    "half": (
        gemm,
        (tensor(9, 21, dtype=torch.bfloat16), tensor(21, 100, dtype=torch.bfloat16), tensor(100)),
        lambda x, y, b: F.gelu((x.double() @ y.double() + b).float()).to(x.dtype),
    ),
    "without a loop": (without_a_loop, (tensor(19, 16), tensor(16, 70)), lambda x, y: torch.relu(x @ y)),
    "batched": (batched, (tensor(3, 7, 19), tensor(3, 19, 40)), lambda x, y: x @ y * 2),
    "columns inside": (columns_inside, (tensor(9, 19), tensor(19, 77)), lambda x, y: x @ y - y.sum(0)),
}


def _many_ways(x: torch.Tensor, y: torch.Tensor, bias: torch.Tensor, rows: int) -> tuple[torch.Tensor, ...]:
    acc = x @ y
    row, column = torch.arange(x.size(0))[:, None], torch.arange(y.size(1))[None, :]
    v = torch.where(column < row, acc, -acc) + bias
    return v * (row // rows * rows + 1), v.t(), v + 1


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [2, 4])
def test_the_result_is_that_of_eager(name: str, count: int) -> None:
    kernel, args, reference = CASES[name]
    bound = kernel.bind(args)
    rng = Random(f"{name} {count}")
    split = 0
    for config in (bound.config_spec.random(rng) for _ in range(8)):
        config = bound.config_spec.repair({**config, "epilogue_subtile": count})
        split += config["epilogue_subtile"] is not None
        check(f"{name} with {config}", bound.compile_config(config), reference, map_tensors(args, torch.Tensor.clone))
    assert split


@pytest.mark.parametrize("indexing", ["pointer", "block_ptr"])
@pytest.mark.parametrize("count", [None, 2, 4])
def test_several_stores_in_place_and_transposed(count: int | None, indexing: str) -> None:
    args = (tensor(45, 37), tensor(37, 77), tensor(77))
    for columns in (16, 32, 64):
        config = helion.Config(block_sizes=[16, columns, 16], epilogue_subtile=count, indexing=indexing)
        function = many_ways.bind(args).compile_config(config)
        check(f"{columns} columns", function, lambda *a: _many_ways(*a, rows=16), args)


@pytest.mark.parametrize("indexing", ["tensor_descriptor", "block_ptr"])
@pytest.mark.parametrize("count", [2, 4])
def test_boxes_beyond_the_end(count: int, indexing: str) -> None:
    """The last tile has 16 columns of 64, so that some subtiles have none."""
    args = (tensor(48, 32), tensor(32, 80), tensor(80))
    bound = gemm.bind(args, target="sm_90")
    config = helion.Config(block_sizes=[32, 64, 16], epilogue_subtile=count, indexing=indexing)
    text = bound.to_triton_code(config)
    assert (
        text.count("out_desc.store(" if indexing == "tensor_descriptor" else "tl.store(tl.make_block_ptr(out") == count
    )
    check(indexing, bound.compile_config(config), lambda x, y, b: F.gelu(x @ y + b), args)


def test_text() -> None:
    bound = gemm.bind((meta(256, 64), meta(64, 512), meta(512, dtype=torch.float32)), target="sm_100")
    code = bound.to_triton_code(
        helion.Config(block_sizes=[128, 256, 64], epilogue_subtile=2, indexing="tensor_descriptor")
    )
    lines = [line.strip() for line in code.splitlines() if "# src" not in line]
    assert "_SUBTILE_SIZE_1 = tl.constexpr(128)" in lines
    first = lines.index("view = tl.reshape(acc, [_BLOCK_SIZE_0, 2, _SUBTILE_SIZE_1])")
    assert lines[first + 1 : first + 5] == [
        "permute = tl.permute(view, [0, 2, 1])",
        "acc_1, acc_2 = tl.split(permute)",
        "indices_1_part = offset_1 + tl.arange(0, _SUBTILE_SIZE_1)",
        "load_2 = tl.load(bias + indices_1_part)",
    ]
    second = lines.index("offset_1_part = offset_1 + _SUBTILE_SIZE_1")
    assert lines[second + 1 : second + 3] == [
        "indices_1_part_1 = offset_1_part + tl.arange(0, _SUBTILE_SIZE_1)",
        "load_3 = tl.load(bias + indices_1_part_1)",
    ]
    stores = [line for line in lines if ".store(" in line]
    assert len(stores) == 2
    assert stores[0].startswith("out_desc.store([offset_0, offset_1], ")
    assert stores[1].startswith("out_desc.store([offset_0, offset_1_part], ")
    assert "out_desc = tl.make_tensor_descriptor(out, [256, 512], [512, 1], [_BLOCK_SIZE_0, _SUBTILE_SIZE_1])" in lines


@pytest.mark.parametrize("count", [2, 4])
def test_programs_are_well_formed(count: int) -> None:
    for kernel, args, _ in CASES.values():
        bound = kernel.bind(args)
        program = bound._analysis.program
        config = bound.config_spec.normalize(helion.Config(block_sizes=[64] * len(bound.config_spec.tunable)))
        sizes = bound.config_spec.sizes(config)
        split = verify(subtile(program, count, sizes), "subtile")
        stores = [sum(op.kind == "store" for op in p.walk()) for p in (program, split)]
        assert stores[1] == count * stores[0]
        products = [sum(isinstance(op.attrs, DotAttrs) for op in p.walk()) for p in (program, split)]
        assert products[0] == products[1]


@pytest.mark.prove
@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_registers(target: str) -> None:
    """A large tile spills when held whole, and does not in two halves."""
    bound = gemm.bind((meta(4096, 4096), meta(4096, 4096), meta(4096)), target=target)
    config = {"block_sizes": [128, 256, 64], "num_warps": 8, "num_stages": 3}
    whole, halves = (bound.resources(helion.Config(**config, epilogue_subtile=n)) for n in (None, 2))
    assert whole.spill_bytes > 0
    assert halves.spill_bytes == 0
    assert halves.registers < whole.registers


# --- the space ----------------------------------------------------------------------------------------------------------


def test_normal_form() -> None:
    spec = gemm.bind((meta(64, 64), meta(64, 512), meta(512)), target="sm_90").config_spec
    assert spec.normalize(helion.Config())["epilogue_subtile"] is None
    for columns, given, normal in [
        (128, True, 2),
        (128, 4, 4),
        (16, 4, 2),
        (16, 2, 2),
        (8, 2, None),
        (8, None, None),
    ]:
        config = spec.normalize({"block_sizes": [16, columns, 16], "epilogue_subtile": given})
        assert config["epilogue_subtile"] == normal
        assert spec.normalize(config) == config
    for wrong in (3, 8, 1, "2"):
        with pytest.raises(exc.InvalidConfig, match="epilogue_subtile must be one of None, 2, 4"):
            spec.normalize({"epilogue_subtile": wrong})


@pytest.mark.parametrize(
    ("target", "k", "searched"),
    [
        ("sm_100", 512, (None,)),
        ("sm_100", 1024, (None, 2)),
        ("sm_100", 16384, (None, 2, 4)),
        ("sm_90", 16384, (None,)),
    ],
)
def test_what_a_search_tries(target: str, k: int, searched: tuple[int | None, ...]) -> None:
    spec = gemm.bind((meta(4096, k), meta(k, 4096), meta(4096)), target=target).config_spec
    field = spec.field("epilogue_subtile")
    rng = Random(0)
    assert {field.random(rng) for _ in range(50)} == set(searched)
    assert field.neighbours(None) == [n for n in searched if n is not None]


# --- what is refused ----------------------------------------------------------------------------------------------------


def row_sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)])
    for a, b in hl.tile(out.size()):
        acc = x[a, :] @ y[:, b]
        out[a, b] = acc - acc.sum(-1, keepdim=True)
    return out


def whole_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)])
    for a in hl.tile(x.size(0)):
        out[a, :] = x[a, :] @ y[:, :]
    return out


def added_atomically(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([x.size(0), y.size(1)])
    for a, b in hl.tile(out.size()):
        acc = x[a, :] @ y[:, b]
        out[a, b] = acc
        hl.atomic_add(out, [a, b], acc)
    return out


def read_after(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([x.size(0), y.size(1)])
    for a, b in hl.tile(out.size()):
        acc = x[a, :] @ y[:, b]
        out[a, b] = acc
        out[a, b] = acc + out[a, 0][:, None]
    return out


def read_beside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([x.size(0), y.size(1) + 1])
    for a, b in hl.tile([x.size(0), y.size(1)]):
        acc = x[a, :] @ y[:, b]
        out[a, b] = acc + out[a, b + 1]
    return out


def pointwise(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b] + y[a, b]
    return out


REFUSED = {
    row_sums: "an op other than elementwise operations and stores reads the result of the matmul",
    whole_rows: "no store writes tiled columns of a matmul",
    added_atomically: "an op other than elementwise operations and stores reads the result of the matmul",
    read_after: "other accesses to a tensor of the epilogue are between its loads and stores",
    read_beside: "the epilogue accesses a tensor at several positions",
    pointwise: "no store writes tiled columns of a matmul",
}


@pytest.mark.parametrize("function", REFUSED)
def test_nothing_to_split(function: Callable[..., Any]) -> None:
    bound = helion.kernel(function).bind((tensor(32, 32), tensor(32, 32)))
    assert subtile_blocks(bound._analysis.program) == ((), REFUSED[function])
    assert bound.config_spec.field("epilogue_subtile").reason == REFUSED[function]
    for without_effect in (None, False, 0, True, 2, 4):
        config = {"epilogue_subtile": without_effect}
        assert bound.config_spec.normalize(config) == bound.conservative_config()
    with pytest.raises(exc.InvalidConfig, match="epilogue_subtile must be one of None, 2, 4, got 3"):
        bound.compile_config({"epilogue_subtile": 3})
