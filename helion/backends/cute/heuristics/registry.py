"""Which heuristics there are, one for each matrix unit."""

from __future__ import annotations

from ....autotuner.proposal import Heuristic
from .tcgen05_matmul import CuteTcgen05MatmulHeuristic
from .wgmma_matmul import CuteWgmmaMatmulHeuristic

HEURISTICS: tuple[Heuristic, ...] = (CuteTcgen05MatmulHeuristic(), CuteWgmmaMatmulHeuristic())
