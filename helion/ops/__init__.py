"""Operators for models, each a short kernel in the language of this package: ``helion.ops.rms_norm(x, weight)``.

All are operators of ``torch.library``: they work in ``torch.compile(fullgraph=True)``, export and CUDA graphs, with any
batch size, and have gradients unless their documentation says otherwise. ``import helion`` does not import them.
An op is imported when it is first used; ``register_all()`` imports them all.
"""

from typing import TYPE_CHECKING, Any

from .._support.lazy import lazy

if TYPE_CHECKING:
    from .kernels.attention import attention as attention
    from .kernels.bags import embedding_bag as embedding_bag
    from .kernels.bags import jagged_mean as jagged_mean
    from .kernels.bags import jagged_softmax as jagged_softmax
    from .kernels.cross_entropy import cross_entropy as cross_entropy
    from .kernels.decode import decode as decode
    from .kernels.decode import latent_decode as latent_decode
    from .kernels.decode import paged_decode as paged_decode
    from .kernels.dropout import bias_dropout_residual as bias_dropout_residual
    from .kernels.experts import grouped_matmul as grouped_matmul
    from .kernels.experts import moe as moe
    from .kernels.experts import route as route
    from .kernels.fp8.gated import geglu_fp8 as geglu_fp8
    from .kernels.fp8.gated import swiglu_fp8 as swiglu_fp8
    from .kernels.fp8.matmuls import block_scaled_matmul as block_scaled_matmul
    from .kernels.fp8.matmuls import scaled_matmul as scaled_matmul
    from .kernels.fp8.norms import add_layer_norm_fp8 as add_layer_norm_fp8
    from .kernels.fp8.norms import add_rms_norm_fp8 as add_rms_norm_fp8
    from .kernels.fp8.norms import layer_norm_fp8 as layer_norm_fp8
    from .kernels.fp8.norms import rms_norm_fp8 as rms_norm_fp8
    from .kernels.fp8.quantize import quantize_fp8 as quantize_fp8
    from .kernels.fp8.quantize import quantize_fp8_blocks as quantize_fp8_blocks
    from .kernels.gated import geglu as geglu
    from .kernels.gated import swiglu as swiglu
    from .kernels.int4_linear import int4_linear as int4_linear
    from .kernels.int4_linear import quantize_int4 as quantize_int4
    from .kernels.integer_linear import int8_linear as int8_linear
    from .kernels.layer_norm import add_layer_norm as add_layer_norm
    from .kernels.layer_norm import layer_norm as layer_norm
    from .kernels.linear_cross_entropy import linear_cross_entropy as linear_cross_entropy
    from .kernels.qk_norm_rope import qk_norm_rope as qk_norm_rope
    from .kernels.recurrences.delta_rule import gated_delta_rule as gated_delta_rule
    from .kernels.recurrences.linear_attention import linear_attention as linear_attention
    from .kernels.recurrences.selective_scan import selective_scan as selective_scan
    from .kernels.rms_norm import add_rms_norm as add_rms_norm
    from .kernels.rms_norm import rms_norm as rms_norm
    from .kernels.rope import rope as rope
    from .kernels.sampling import sample as sample
    from .kernels.softmax import softmax as softmax
    from .kernels.varlen import varlen_attention as varlen_attention
    from .patching import Patches as Patches
    from .patching import patch as patch

_FILES: dict[str, Any] = {
    "attention": lazy("helion.ops.kernels.attention"),
    "bags": lazy("helion.ops.kernels.bags"),
    "cross_entropy": lazy("helion.ops.kernels.cross_entropy"),
    "decode": lazy("helion.ops.kernels.decode"),
    "dropout": lazy("helion.ops.kernels.dropout"),
    "experts": lazy("helion.ops.kernels.experts"),
    "fp8.gated": lazy("helion.ops.kernels.fp8.gated"),
    "fp8.matmuls": lazy("helion.ops.kernels.fp8.matmuls"),
    "fp8.norms": lazy("helion.ops.kernels.fp8.norms"),
    "fp8.quantize": lazy("helion.ops.kernels.fp8.quantize"),
    "gated": lazy("helion.ops.kernels.gated"),
    "int4_linear": lazy("helion.ops.kernels.int4_linear"),
    "integer_linear": lazy("helion.ops.kernels.integer_linear"),
    "layer_norm": lazy("helion.ops.kernels.layer_norm"),
    "linear_cross_entropy": lazy("helion.ops.kernels.linear_cross_entropy"),
    "qk_norm_rope": lazy("helion.ops.kernels.qk_norm_rope"),
    "recurrences.delta_rule": lazy("helion.ops.kernels.recurrences.delta_rule"),
    "recurrences.linear_attention": lazy("helion.ops.kernels.recurrences.linear_attention"),
    "recurrences.selective_scan": lazy("helion.ops.kernels.recurrences.selective_scan"),
    "rms_norm": lazy("helion.ops.kernels.rms_norm"),
    "rope": lazy("helion.ops.kernels.rope"),
    "sampling": lazy("helion.ops.kernels.sampling"),
    "softmax": lazy("helion.ops.kernels.softmax"),
    "varlen": lazy("helion.ops.kernels.varlen"),
}
_PATCHING: Any = lazy("helion.ops.patching")
#: Names that are no operators.
_OTHERS: dict[str, Any] = {"Patches": _PATCHING, "patch": _PATCHING}
_OPS: dict[str, Any] = {
    "add_layer_norm": _FILES["layer_norm"],
    "add_layer_norm_fp8": _FILES["fp8.norms"],
    "add_rms_norm": _FILES["rms_norm"],
    "add_rms_norm_fp8": _FILES["fp8.norms"],
    "attention": _FILES["attention"],
    "bias_dropout_residual": _FILES["dropout"],
    "block_scaled_matmul": _FILES["fp8.matmuls"],
    "cross_entropy": _FILES["cross_entropy"],
    "decode": _FILES["decode"],
    "embedding_bag": _FILES["bags"],
    "gated_delta_rule": _FILES["recurrences.delta_rule"],
    "geglu": _FILES["gated"],
    "geglu_fp8": _FILES["fp8.gated"],
    "grouped_matmul": _FILES["experts"],
    "int4_linear": _FILES["int4_linear"],
    "int8_linear": _FILES["integer_linear"],
    "jagged_mean": _FILES["bags"],
    "jagged_softmax": _FILES["bags"],
    "latent_decode": _FILES["decode"],
    "layer_norm": _FILES["layer_norm"],
    "layer_norm_fp8": _FILES["fp8.norms"],
    "linear_attention": _FILES["recurrences.linear_attention"],
    "linear_cross_entropy": _FILES["linear_cross_entropy"],
    "moe": _FILES["experts"],
    "paged_decode": _FILES["decode"],
    "qk_norm_rope": _FILES["qk_norm_rope"],
    "quantize_fp8": _FILES["fp8.quantize"],
    "quantize_fp8_blocks": _FILES["fp8.quantize"],
    "quantize_int4": _FILES["int4_linear"],
    "rms_norm": _FILES["rms_norm"],
    "rms_norm_fp8": _FILES["fp8.norms"],
    "rope": _FILES["rope"],
    "route": _FILES["experts"],
    "sample": _FILES["sampling"],
    "scaled_matmul": _FILES["fp8.matmuls"],
    "selective_scan": _FILES["recurrences.selective_scan"],
    "softmax": _FILES["softmax"],
    "swiglu": _FILES["gated"],
    "swiglu_fp8": _FILES["fp8.gated"],
    "varlen_attention": _FILES["varlen"],
}


if not TYPE_CHECKING:  # type checkers report names that are not above

    def __getattr__(name: str) -> Any:
        known = _OPS | _OTHERS
        if name not in known:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(known)}")
        value = globals()[name] = getattr(known[name], name)
        return value


def __dir__() -> list[str]:
    return sorted((*_OPS, *_OTHERS, "register_all"))


def register_all() -> None:
    """Register all operators with torch, as a process needs that loads an exported graph."""
    for name, file in _OPS.items():
        globals()[name] = getattr(file, name)
