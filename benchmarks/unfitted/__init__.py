"""Kernels of users that no rule was fitted to: written from the guide alone, then timed as found."""

from __future__ import annotations

from . import attention, images, layouts, products, ragged, rows, scans, sums, training, windows
from .cell import UserKernel

MODULES = (rows, sums, layouts, ragged, scans, images, windows, training, products, attention)
CELLS: dict[str, UserKernel] = {name: cell for module in MODULES for name, cell in module.CELLS.items()}
assert len(CELLS) == sum(len(module.CELLS) for module in MODULES), "two kernels have one name"
