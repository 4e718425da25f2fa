"""Heuristics in order of precedence, the most specific first. The last one always applies."""

from __future__ import annotations

from ....autotuner.proposal import Heuristic
from .attention import TritonAttentionHeuristic
from .attention_decode import TritonAttentionDecodeHeuristic
from .attention_gradient import TritonAttentionGradientHeuristic
from .column_reduction import TritonColumnReductionHeuristic
from .fallback import TritonFallbackHeuristic
from .feature_gradient import TritonFeatureGradientHeuristic
from .hoisted_operands import TritonHoistedOperandsHeuristic
from .joined_loops import TritonJoinedLoopsHeuristic
from .long_scan import TritonLongScanHeuristic
from .matmul import TritonMatmulHeuristic
from .matmul_reduction_epilogue import TritonMatmulReductionEpilogueHeuristic
from .matmul_tiled_reduction_epilogue import TritonMatmulTiledReductionEpilogueHeuristic
from .nested_reduction import TritonNestedReductionHeuristic
from .outer_reduction import TritonOuterReductionHeuristic
from .pointwise import TritonPointwiseHeuristic
from .products import TritonProductsHeuristic
from .products_first import TritonProductsFirstHeuristic
from .recurrence import TritonRecurrenceHeuristic
from .reduction import TritonReductionHeuristic
from .rewritten_matmul import TritonRewrittenMatmulHeuristic
from .row_epilogue import TritonRowEpilogueHeuristic
from .scatter import TritonScatterHeuristic
from .skinny_gemm import TritonSkinnyGemmHeuristic
from .split_reduction import TritonSplitReductionHeuristic
from .state_recurrence import TritonStateRecurrenceHeuristic
from .streaming_reduction import TritonStreamingReductionHeuristic
from .user_tiled_reduction import TritonUserTiledReductionHeuristic

HEURISTICS: tuple[Heuristic, ...] = (
    TritonMatmulReductionEpilogueHeuristic(),
    TritonRowEpilogueHeuristic(),
    TritonMatmulTiledReductionEpilogueHeuristic(),
    TritonAttentionHeuristic(),
    TritonAttentionDecodeHeuristic(),
    TritonAttentionGradientHeuristic(),
    TritonHoistedOperandsHeuristic(),
    TritonJoinedLoopsHeuristic(),
    TritonRewrittenMatmulHeuristic(),
    TritonMatmulHeuristic(),
    TritonSkinnyGemmHeuristic(),
    TritonProductsHeuristic(),
    TritonLongScanHeuristic(),
    TritonStateRecurrenceHeuristic(),
    TritonSplitReductionHeuristic(),
    TritonOuterReductionHeuristic(),
    TritonColumnReductionHeuristic(),
    TritonNestedReductionHeuristic(),
    TritonFeatureGradientHeuristic(),
    TritonStreamingReductionHeuristic(),
    TritonReductionHeuristic(),
    TritonUserTiledReductionHeuristic(),
    TritonPointwiseHeuristic(),
    TritonRecurrenceHeuristic(),
    TritonScatterHeuristic(),
    TritonProductsFirstHeuristic(),
    TritonFallbackHeuristic(),
)
