"""Defaults for GPUs that do not exist: rules and model know a GPU by its numbers and features alone."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.cells import Cell, swept_cells
from helion import exc
from helion.autotuner.margins import FASTER_RATIO
from helion.hardware import Target, target
from helion.runtime.bound import BoundKernel

#: Every this many cells are asked for; the exhaustive form asks for all.
EVERY = 36
#: Largest geometric mean of predicted times of defaults, relative to the fastest seed, and to the default of an H200. The
#: first is that of a hundred kernels or more, and the wider one that of a few.
TO_SEEDS, TO_SEEDS_OF_FEW, TO_ANOTHER = 1.05, 1.1, 1.02
#: The same for one kernel: its default is at most this many times as long as that of an H200 there.
WORST = 1.25
KNOWN = target("h200")


def made_up(row: Target, **numbers: Any) -> Target:
    """Return a GPU with other numbers. Its rates are those of the row for each SM."""
    speed = numbers["num_sms"] / row.num_sms
    rates = tuple((dtype, rate * speed) for dtype, rate in row.matrix_tflops)
    return dataclasses.replace(
        row, device="made up", fp32_tflops=row.fp32_tflops * speed, matrix_tflops=rates, **numbers
    )


MIB = 2**20
GPUS = {
    "less": made_up(KNOWN, num_sms=100, bandwidth_gb_per_s=0.7 * KNOWN.bandwidth_gb_per_s, l2_bytes=30 * MIB),
    "more": made_up(
        KNOWN,
        num_sms=160,
        bandwidth_gb_per_s=9000,
        l2_bytes=100 * MIB,
        smem_per_sm_bytes=300000,
        smem_per_block_bytes=298976,
    ),
    "small": made_up(target("l40s"), num_sms=60, bandwidth_gb_per_s=500, l2_bytes=16 * MIB),
    "wide": made_up(target("b200"), num_sms=200, bandwidth_gb_per_s=12000, registers_per_sm=131072),
    "half": made_up(target("mi300x"), num_sms=152, bandwidth_gb_per_s=2650, xcds=4),
}


def bound(cell: Cell, gpu: Target) -> BoundKernel | None:
    """Return the cell's kernel there, None where the GPU lacks its dtypes."""
    try:
        return cell.function.bind(cell.args, target=gpu)
    except exc.BackendUnsupported:
        return None


def complaints(cells: Sequence[Cell], gpu: Target) -> list[str]:
    """Return the defaults that do not fit, spill, or are slow by prediction, and the means that are too large."""
    found, to_seeds, to_another = [], [], []
    for cell in cells:
        kernel = bound(cell, gpu)
        if kernel is None:
            continue
        config, predict = kernel.default_config(), kernel._analysis.predict
        own = predict(config)
        measured = any(seed.config == config and seed.may_spill for seed in kernel.seeds)  # and runs well with spills
        good = [seed.predicted.time_us for seed in kernel.seeds if seed.predicted.fits and not seed.predicted.spills]
        if not good or not own.fits or (own.spills and not measured) or own.shared_bytes > gpu.smem_per_block_bytes:
            found.append(f"{cell.key}: {config} does not fit, or spills")
            continue
        if own.time_us > FASTER_RATIO * min(good):
            found.append(f"{cell.key}: {own.time_us:.1f} us, a seed {min(good):.1f}")
        to_seeds.append(own.time_us / min(good))
        if gpu.features == KNOWN.features:
            there = predict(
                kernel._analysis.space.normalize(cell.function.bind(cell.args, target=KNOWN).default_config())
            )
            to_another.append(own.time_us / there.time_us if there.fits and not there.spills else 1.0)
            if to_another[-1] > WORST:
                found.append(f"{cell.key}: {own.time_us:.1f} us, the default of another GPU {there.time_us:.1f}")
    for ratios, most in ((to_seeds, TO_SEEDS if len(cells) > 99 else TO_SEEDS_OF_FEW), (to_another, TO_ANOTHER)):
        if ratios and statistics.geometric_mean(ratios) > most:
            found.append(f"{statistics.geometric_mean(ratios):.3f} in the mean, at most {most}")
    return found


@pytest.mark.parametrize("name", ["less", "small", "half"])
def test_defaults_suit_a_gpu_that_nobody_measured(name: str) -> None:
    cells = list(swept_cells())[::EVERY]
    assert len(cells) > 15 and complaints(cells, GPUS[name]) == []


def test_a_gpu_without_room_is_complained_about() -> None:
    cell = next(cell for cell in swept_cells() if cell.suite == "matmul")
    kernel = cell.function.bind(cell.args, target=KNOWN)
    needed = kernel._analysis.predict(kernel.default_config()).shared_bytes
    assert complaints([cell], KNOWN) == [] and needed > KNOWN.smem_per_block_bytes // 4
    slow = dataclasses.replace(KNOWN, max_registers_per_thread=16, registers_per_sm=2048)
    assert any("spills" in what for what in complaints([cell], slow))


@pytest.mark.parametrize(
    ("kernel", "case", "name"),
    [
        ("rms_norm_gradients", "4096 by 2048", "less"),
        ("causal_backward", "16 by 1000 by 256", "more"),
        ("scaled_residual", "4096 by 5120 by 5120", "more"),
        ("biased_gelu_gradients", "16384 by 8192", "less"),
    ],
)
def test_defaults_follow_waves_and_memory(kernel: str, case: str, name: str) -> None:
    """Programs of 1.3 waves, tiles that were measured with spills, and persistent programs whose stages just fit."""
    cells = [cell for cell in swept_cells() if (cell.kernel, cell.case) == (kernel, case)]
    own = [what for what in complaints(cells, GPUS[name]) if kernel in what]
    assert cells and own == []


@pytest.mark.prove
@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize("name", GPUS)
def test_all_defaults_suit_a_gpu_that_nobody_measured(name: str, part: int) -> None:
    assert complaints(list(swept_cells())[part::6], GPUS[name]) == []
