"""Teams of 64 rows of 8-bit floats, which read all of B for half of the rows."""

from __future__ import annotations

import dataclasses

import helion
from benchmarks.unfitted import CELLS
from helion.hardware import target as target_of


def test_teams_of_64_rows_take_no_turns_on_any_bandwidth() -> None:
    cell, preset = CELLS["fp8_rowwise_gelu"], target_of("h200")
    for share in (0.9, 1.0, 1.024):  # the driver's memory clock gives another bandwidth than the row
        live = dataclasses.replace(preset, bandwidth_gb_per_s=share * preset.bandwidth_gb_per_s)
        bound = helion.kernel(cell.kernel.fn, backend="cute").bind(cell.arguments("meta", False), target=live)
        config = bound.default_config()
        assert config["block_sizes"][:2] == [128, 128] and not config["wgmma_pingpong"]
        seeds = [each.config for each in bound.seeds]
        assert not any(each["block_sizes"][0] == 64 and each["wgmma_pingpong"] for each in seeds)
