"""Configs of row_norm.py for Hopper, by the length of a row.

They were the fastest of a sweep on an H200, whose rows are in benchmarks/results/nvidia-h200-sweeps.tsv.
"""

from __future__ import annotations

import bisect
from typing import Any

#: The longest rows that each config was measured for, and the configs.
LENGTHS = (1000, 4096, 16384, 32768)
CONFIGS: tuple[dict[str, Any], ...] = (
    {"block_sizes": [2], "reduction_loops": [None], "num_warps": 4},
    {"block_sizes": [4], "reduction_loops": [None], "num_warps": 16},
    {"block_sizes": [1], "reduction_loops": [None], "num_warps": 32},
    {"block_sizes": [1], "reduction_loops": [16384], "num_warps": 32},
    {"block_sizes": [1], "reduction_loops": [32768], "num_warps": 32},
)


def key_row_norm(x: Any, weight: Any, eps: float = 1e-6) -> int:
    """Return the number of the config: calls with the same one share a compilation."""
    return bisect.bisect_left(LENGTHS, x.shape[1])


def autotune_row_norm(*args: Any) -> dict[str, Any]:
    """Return the config for these arguments."""
    return CONFIGS[key_row_norm(*args)]
