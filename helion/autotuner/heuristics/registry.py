"""Which heuristics there are, per backend, the most specific first. The last one of each always applies."""

from __future__ import annotations

from .base import Heuristic
from .triton_attention import TritonAttentionHeuristic
from .triton_column_reduction import TritonColumnReductionHeuristic
from .triton_fallback import TritonFallbackHeuristic
from .triton_feature_gradient import TritonFeatureGradientHeuristic
from .triton_matmul import TritonMatmulHeuristic
from .triton_matmul_reduction_epilogue import TritonMatmulReductionEpilogueHeuristic
from .triton_matmul_tiled_reduction_epilogue import TritonMatmulTiledReductionEpilogueHeuristic
from .triton_pointwise import TritonPointwiseHeuristic
from .triton_products import TritonProductsHeuristic
from .triton_reduction import TritonReductionHeuristic
from .triton_row_epilogue import TritonRowEpilogueHeuristic
from .triton_scatter import TritonScatterHeuristic
from .triton_skinny_gemm import TritonSkinnyGemmHeuristic
from .triton_streaming_reduction import TritonStreamingReductionHeuristic
from .triton_user_tiled_reduction import TritonUserTiledReductionHeuristic

HEURISTICS: dict[str, tuple[Heuristic, ...]] = {
    "triton": (
        TritonMatmulReductionEpilogueHeuristic(),
        TritonRowEpilogueHeuristic(),
        TritonMatmulTiledReductionEpilogueHeuristic(),
        TritonAttentionHeuristic(),
        TritonMatmulHeuristic(),
        TritonSkinnyGemmHeuristic(),
        TritonProductsHeuristic(),
        TritonColumnReductionHeuristic(),
        TritonFeatureGradientHeuristic(),
        TritonStreamingReductionHeuristic(),
        TritonReductionHeuristic(),
        TritonUserTiledReductionHeuristic(),
        TritonPointwiseHeuristic(),
        TritonScatterHeuristic(),
        TritonFallbackHeuristic(),
    ),
}
