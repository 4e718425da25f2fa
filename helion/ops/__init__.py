"""Operators for models, each a short kernel in the language of this package: ``helion.ops.rms_norm(x, weight)``.

All are operators of ``torch.library``: they work in ``torch.compile(fullgraph=True)``, export and CUDA graphs, with any
batch size, and have gradients unless their documentation says otherwise. ``import helion`` does not import them.
"""

from .attention import attention as attention
from .bags import embedding_bag as embedding_bag
from .bags import jagged_mean as jagged_mean
from .bags import jagged_softmax as jagged_softmax
from .cross_entropy import cross_entropy as cross_entropy
from .decode import decode as decode
from .decode import paged_decode as paged_decode
from .dropout import bias_dropout_residual as bias_dropout_residual
from .experts import grouped_matmul as grouped_matmul
from .experts import moe as moe
from .experts import route as route
from .fp8 import quantize_fp8 as quantize_fp8
from .fp8 import rms_norm_fp8 as rms_norm_fp8
from .fp8 import scaled_matmul as scaled_matmul
from .gated import geglu as geglu
from .gated import swiglu as swiglu
from .integer_linear import int8_linear as int8_linear
from .layer_norm import add_layer_norm as add_layer_norm
from .layer_norm import layer_norm as layer_norm
from .linear_cross_entropy import linear_cross_entropy as linear_cross_entropy
from .qk_norm_rope import qk_norm_rope as qk_norm_rope
from .recurrences import linear_attention as linear_attention
from .recurrences import selective_scan as selective_scan
from .rms_norm import add_rms_norm as add_rms_norm
from .rms_norm import rms_norm as rms_norm
from .rope import rope as rope
from .softmax import softmax as softmax
