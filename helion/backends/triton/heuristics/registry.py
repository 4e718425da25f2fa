"""Heuristics in order of precedence, the most specific first. The last one always applies."""

from __future__ import annotations

from ....autotuner.proposal import Heuristic
from .families.attention.backward import TritonAttentionGradientHeuristic
from .families.attention.decode import TritonAttentionDecodeHeuristic
from .families.attention.forward import TritonAttentionHeuristic
from .families.column_scan import TritonColumnScanHeuristic
from .families.epilogue.published import TritonMatmulReductionEpilogueHeuristic
from .families.epilogue.rows import TritonRowEpilogueHeuristic
from .families.epilogue.tiled import TritonMatmulTiledReductionEpilogueHeuristic
from .families.exchange import TritonExchangeHeuristic
from .families.fallback import TritonFallbackHeuristic
from .families.long_scan import TritonLongScanHeuristic
from .families.matmul.fused_loops import TritonJoinedLoopsHeuristic
from .families.matmul.merged_operands import TritonHoistedOperandsHeuristic
from .families.matmul.plain import TritonMatmulHeuristic
from .families.matmul.rewritten_operands import TritonRewrittenMatmulHeuristic
from .families.matmul.several import TritonProductsHeuristic
from .families.matmul.skinny import TritonSkinnyGemmHeuristic
from .families.matmul.unfused import TritonProductsFirstHeuristic
from .families.pointwise import TritonPointwiseHeuristic
from .families.predicted_tiles import TritonPredictedTilesHeuristic
from .families.recurrence import TritonRecurrenceHeuristic
from .families.reduction.column import TritonColumnReductionHeuristic
from .families.reduction.feature_gradient import TritonFeatureGradientHeuristic
from .families.reduction.nested import TritonNestedReductionHeuristic
from .families.reduction.outer import TritonOuterReductionHeuristic
from .families.reduction.sequential import TritonSequentialReductionHeuristic
from .families.reduction.split import TritonSplitReductionHeuristic
from .families.reduction.streaming import TritonStreamingReductionHeuristic
from .families.reduction.user_tiled import TritonUserTiledReductionHeuristic
from .families.reduction.whole import TritonReductionHeuristic
from .families.scatter import TritonScatterHeuristic
from .families.sorted_rows import TritonSortedRowsHeuristic
from .families.state_recurrence import TritonStateRecurrenceHeuristic

#: Heuristics by family, in order of precedence. The last family always applies.
FAMILIES: dict[str, tuple[Heuristic, ...]] = {
    "matmul with reduced rows": (
        TritonMatmulReductionEpilogueHeuristic(),
        TritonRowEpilogueHeuristic(),
        TritonMatmulTiledReductionEpilogueHeuristic(),
    ),
    "attention": (
        TritonAttentionHeuristic(),
        TritonAttentionDecodeHeuristic(),
        TritonAttentionGradientHeuristic(),
    ),
    "matmul": (
        TritonHoistedOperandsHeuristic(),
        TritonJoinedLoopsHeuristic(),
        TritonRewrittenMatmulHeuristic(),
        TritonMatmulHeuristic(),
        TritonSkinnyGemmHeuristic(),
        TritonProductsHeuristic(),
    ),
    "sort": (TritonSortedRowsHeuristic(),),
    "scan": (TritonLongScanHeuristic(), TritonColumnScanHeuristic(), TritonStateRecurrenceHeuristic()),
    "exchange": (TritonExchangeHeuristic(),),
    "reduction": (
        TritonSequentialReductionHeuristic(),
        TritonSplitReductionHeuristic(),
        TritonOuterReductionHeuristic(),
        TritonColumnReductionHeuristic(),
        TritonNestedReductionHeuristic(),
        TritonFeatureGradientHeuristic(),
        TritonStreamingReductionHeuristic(),
        TritonReductionHeuristic(),
        TritonUserTiledReductionHeuristic(),
    ),
    "pointwise": (TritonPointwiseHeuristic(),),
    "recurrence": (TritonRecurrenceHeuristic(),),
    "scatter": (TritonScatterHeuristic(),),
    "unfused matmul": (TritonProductsFirstHeuristic(),),
    "fallback": (TritonPredictedTilesHeuristic(), TritonFallbackHeuristic()),
}

HEURISTICS: tuple[Heuristic, ...] = tuple(rule for family in FAMILIES.values() for rule in family)
