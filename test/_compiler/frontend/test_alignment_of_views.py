"""Views of arguments: those that certainly begin at a multiple of 16 bytes are marked as aligned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from generated_source import load
from harness import tensor

import helion

TEXT = """
def kernel(x: torch.Tensor, out: torch.Tensor) -> None:
    part = {view}
    for tile_m, tile_n in hl.tile(part.size()):
        out[tile_m, tile_n] = part[tile_m, tile_n]
"""
VIEWS = {
    "x[:, :32]": True,
    "x[:, 32:]": True,
    "x[:, 33:]": False,
    "x[:, 8:40]": True,
    "x[3:, :32]": True,
    "x[1:, 4:]": False,
    "x[:, -32:]": True,
    "x[:, -31:]": False,
    "x.narrow(1, 16, 8)": True,
    "x.narrow(1, 1, 8)": False,
    "x.chunk(2, dim=1)[1]": True,
    "x.split([4, 60], dim=1)[1]": False,
    "x.as_strided((4, 8), (64, 1), 0)": False,
    "x[:, 4:][:, 4:]": False,
}


def begins_aligned(view: str, directory: Path, **settings: Any) -> bool:
    """Return whether the tensor that a kernel reads through a view is marked."""
    x = tensor(90, 64, dtype=torch.bfloat16)
    part = eval(view, {"x": x})
    kernel = helion.kernel(load(TEXT.format(view=view), directory, "views").kernel, **settings)
    bound = kernel.bind((x, tensor(*part.shape, dtype=torch.bfloat16)), target="h100")
    tensors = bound.variant.specialized.analysis.program.tensors
    return next(each for each in tensors if each.name != "out").aligned


@pytest.mark.parametrize("view", VIEWS)
def test_views_of_arguments(view: str, tmp_path: Path) -> None:
    assert begins_aligned(view, tmp_path) is VIEWS[view]


@pytest.mark.parametrize(
    ("view", "aligned"),
    [
        ("x[:, 32:]", True),
        ("x[:, 33:]", False),
        ("x[:, 0:]", True),
        ("x[3:]", False),
        ("x.narrow(1, 16, 8)", True),
        ("x[:, x.size(0) - 58 :]", False),
    ],
)
def test_views_of_sizes_known_at_launch(view: str, aligned: bool, tmp_path: Path) -> None:
    """Columns are next to each other. The stride of rows is a number of the launch."""
    assert begins_aligned(view, tmp_path, static_shapes=False) is aligned
