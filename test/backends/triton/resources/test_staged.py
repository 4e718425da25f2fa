"""Predicted times of matmuls in loops that prefetch: loads in flight, pipelines that fill, tiles of persistent programs."""

from __future__ import annotations

import pytest
import sample_kernels
import torch
from harness import tensor

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion.backends.triton.resources.time.demand import demands
from helion.backends.triton.resources.time.launch import launch_of
from helion.backends.triton.resources.time.model import parts
from helion.backends.triton.resources.time.parameters import fitted
from helion.backends.triton.resources.time.record import Demand
from helion.hardware import target

H200 = target("h200")
matmul = helion.kernel(sample_kernels.matmul)
TILES = {"block_sizes": [128, 128, 64], "num_warps": 8}
PERSISTENT = {"pid_type": "persistent_interleaved"}


@helion.kernel(backend="triton")
def turned(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows, block in hl.tile([x.size(0), x.size(1)], block_size=[None, 128]):
        out[rows, block] = hl.dot(x[rows, block], turn[:, :]).to(x.dtype)
    return out


def product(*sizes: int) -> helion.BoundKernel:
    m, k, n = sizes or (4096, 4096, 4096)
    return matmul.bind((tensor(m, k), tensor(k, n)), target=H200)


def rotation() -> helion.BoundKernel:
    return turned.bind((tensor(16384, 4096), tensor(128, 128)), target=H200)


def demand(bound: helion.BoundKernel, **config: object) -> Demand:
    full = bound.config_spec.normalize(config)
    analysis = bound._analysis
    (found,) = demands(analysis.facts, launch_of(bound.config_spec.decode(full)), analysis.predict(full), H200)
    return found


def latency(found: Demand) -> float:
    return float(parts(found, fitted().products, H200).latency)


@pytest.mark.parametrize("stages", (2, 3, 4))
def test_bytes_of_prefetched_loads_are_over_the_steps_between(stages: int) -> None:
    found = demand(product(), **TILES, num_stages=stages)
    asked = 64 * (128 + 128) * 64 * 2
    assert found.staged_bytes == pytest.approx(asked / (stages - 1)) and found.prefetched_bytes == asked
    assert found.looped_bytes == 0 and found.fills == 1


def test_no_load_is_prefetched_outside_of_a_loop() -> None:
    """One binary has one time, whatever the number of stages."""
    bound = rotation()
    one, three = (demand(bound, block_sizes=[64], num_warps=4, num_stages=stages) for stages in (1, 3))
    assert one == three and three.staged_bytes == three.pipelined_rounds == three.fills == 0


def test_the_loop_over_tiles_of_a_persistent_program_prefetches() -> None:
    bound = rotation()
    config = {"block_sizes": [64], "num_warps": 4, "num_stages": 3, **PERSISTENT}
    found = demand(bound, **config)
    assert found.staged_bytes > 0 and found.pipelined_rounds == pytest.approx(1 / 2)
    assert 0 < found.fills < 0.1  # one for all tiles of a program
    assert demand(bound, **{**config, "range_num_stages": [1]}).fills == 0


def test_a_persistent_program_makes_its_descriptors_once() -> None:
    boxes = {"indexing": ["tensor_descriptor", "tensor_descriptor", "pointer"]}
    flat = demand(product(), **TILES, num_stages=3, **boxes)
    persistent = demand(product(), **TILES, num_stages=3, **boxes, **PERSISTENT)
    assert flat.descriptors == 2 and 0 < persistent.descriptors < 0.5


def test_loads_in_flight_hide_behind_a_longer_step() -> None:
    """Twice the bytes add less than half of their time where the matrix unit takes longer."""
    found = demand(product(), **TILES, num_stages=3)
    busy, idle = found._replace(matrix_us=4 * found.matrix_us), found._replace(matrix_us=0.0, looped_issue=0.0)
    longer = [latency(each._replace(staged_bytes=2 * each.staged_bytes)) - latency(each) for each in (busy, idle)]
    assert 0 < longer[0] < 0.5 * longer[1]


def test_no_sm_has_a_part_of_a_program() -> None:
    """Of 133 programs that an SM has one at a time, one SM has two."""
    found = demand(product(), **TILES, num_stages=3)._replace(programs=132, resident=1, new_bytes=0.0, asked_bytes=0.0)
    full, more, double = (
        parts(found._replace(programs=count), fitted().products, H200).total for count in (132, 133, 264)
    )
    assert more - full > 0.5 * (double - full)


@helion.kernel(backend="triton")
def dequantized(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([m, n]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[rows, inner], w[inner, columns].to(x.dtype))
        out[rows, columns] = acc.to(x.dtype)
    return out


def of_bytes(rows: int) -> helion.BoundKernel:
    return dequantized.bind((tensor(rows, 4096), tensor(4096, 4096, dtype=torch.int8)), target=H200)


def test_computed_operands_go_through_shared_memory() -> None:
    """Each step loads the bytes, stores the floats, and waits for all warps (measurement ``computed_operands``)."""
    found, loaded = demand(of_bytes(4096), **TILES), demand(product(), **TILES)
    assert found.computed_bytes == 64 * (64 * 128) * (1 + 2) * 2 and loaded.computed_bytes == 0
    assert found.barriers == 64 and loaded.barriers == 0
    spared = found._replace(computed_bytes=0.0)
    assert latency(found) > 1.1 * latency(spared)


def test_layers_of_bytes_take_longer_than_by_the_other_backend() -> None:
    """Its time is measured (measurement ``computed_operands``); the cute backend takes 45 us."""
    cell = CELLS["weight_only_int8"]
    bound = cell.kernel.bind(cell.arguments("meta", False), target=H200)
    found = bound._analysis.predict(bound.config_spec.normalize({**TILES, "num_stages": 6}))
    assert found.time_us == pytest.approx(66, rel=0.15)


@pytest.mark.parametrize(("rows", "columns", "along"), [(32, 16, 2), (32, 64, 1), (16, 64, 1)])
def test_fragments_of_computed_operands_are_computed_by_each_warp_along_rows(
    rows: int, columns: int, along: int
) -> None:
    """Measurement ``repeated_operands``."""
    found = demand(of_bytes(32), block_sizes=[rows, columns, 64], num_warps=2)
    assert found.looped_issue == 64 * (columns * 64 / 32) * along and found.computed_bytes == 0


@pytest.mark.parametrize(("depth", "counted"), [(16, True), (32, True), (64, False), (128, False)])
def test_pieces_of_lines_take_the_time_of_lines(depth: int, counted: bool) -> None:
    """Those of the left operand are shorter than a line; boxes have none (measurement ``short_pieces``)."""
    tile = {"block_sizes": [128, 128, depth], "num_warps": 8, "num_stages": 3}
    found = demand(product(), **tile)
    pieces = 4096 * 128 * 2 * (1 / (2 * depth) - 1 / 128)
    assert found.lines == pytest.approx(pieces if counted else 0)
    boxed = demand(product(), **tile, indexing=["tensor_descriptor", "tensor_descriptor", "pointer"])
    assert boxed.lines == 0
