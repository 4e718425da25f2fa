"""The ordered heuristics: for rows that a cluster holds, then one for each matrix unit."""

from __future__ import annotations

from ....autotuner.proposal import Heuristic
from .attention import CuteAttentionHeuristic
from .attention_backward import CuteAttentionBackwardHeuristic
from .cluster_epilogue import CuteClusterEpilogueHeuristic
from .row_kernels import CuteRowKernelHeuristic
from .tcgen05_matmul import CuteTcgen05MatmulHeuristic
from .umma_attention import CuteTcgen05AttentionHeuristic
from .umma_attention_backward import CuteTcgen05BackwardHeuristic
from .wgmma_matmul import CuteWgmmaMatmulHeuristic

HEURISTICS: tuple[Heuristic, ...] = (
    CuteAttentionBackwardHeuristic(),
    CuteTcgen05BackwardHeuristic(),
    CuteAttentionHeuristic(),
    CuteTcgen05AttentionHeuristic(),
    CuteRowKernelHeuristic(),
    CuteClusterEpilogueHeuristic(),
    CuteTcgen05MatmulHeuristic(),
    CuteWgmmaMatmulHeuristic(),
)
