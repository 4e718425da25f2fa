"""Names that generated code contains, and the rules that keep the user's names distinct from them."""

from __future__ import annotations

import builtins
import keyword
import re

#: Modules and helpers that a generated module binds at its top level.
RESERVED = frozenset(
    (
        "torch",
        "triton",
        "tl",
        "libdevice",
        "_launcher",
        "_otherwise",
        "_default_launcher",
        "_source_module",
        "_ARRIVED",
        "_NUM_SM",
        "_helion_runtime",
        "_builtins",
    )
)
#: Sizes that a config gives, and the kernels and helpers of a module.
_FAMILIES = re.compile(r"_(BLOCK|RDIM|SUBTILE)_SIZE_\w+|_helion_\w+")


#: Names that only device code uses: host code, which is a separate function, may have variables of these names.
_OF_DEVICE_CODE = frozenset(("tl", "libdevice"))


def is_reserved(name: str) -> bool:
    """Return whether generated host code, or its callees, use this name: then a variable of the user may not have it."""
    return name in RESERVED - _OF_DEVICE_CODE or _FAMILIES.fullmatch(name) is not None


def is_reserved_function(name: str) -> bool:
    """Return whether a generated module binds the name, which its host function then may not have."""
    return name in RESERVED or (is_reserved(name) and not name.startswith("_helion_"))


#: Keywords of a launch, over all targets: a parameter of a kernel cannot have such a name.
LAUNCH_OPTIONS = frozenset(
    (
        "allow_flush_denorm", "allowed_dot_input_precisions", "arch", "backend_name", "clc", "cluster_dims", "debug",
        "default_dot_input_precision", "deprecated_fp8_dot_operand_dtypes", "device", "device_type", "enable_fp_fusion",
        "enable_reflect_ftz", "extern_libs", "fpsan_homomorphic_casts", "grid", "instrumentation_mode", "ir_override",
        "kpack", "launch_cooperative_grid", "launch_pdl", "llvm_fn_attrs", "matrix_instr_nonkdim",
        "max_num_imprecise_acc_default", "maxnreg", "min_shared_mem",
        "num_buffers_warp_spec", "num_consumer_groups", "num_ctas", "num_stages", "num_warps", "optimize_epilogue",
        "pre_hook", "ptx_options", "ptx_version", "reg_dec_producer", "reg_inc_consumer", "sanitize_overflow",
        "sched4reg", "schedule_hint", "self", "stream", "supported_fp8_dtypes", "supports_fp8", "warmup", "warp_size",
        "waves_per_eu", "wgp_cu_mode",
    )
)  # fmt: skip
#: Libraries that kernels are written in, whose functions have no effects.
KERNEL_LIBRARIES = ("helion", "triton")
#: Names every generated module imports under the name users give them, too: a global bound to that very module is fine.
SHARED_MODULES = {"torch": "torch", "triton": "triton", "tl": "triton.language"}

_IDENTIFIER = re.compile(r"[^0-9a-zA-Z_]+")


def identifier(text: str, default: str = "v") -> str:
    """Convert ``text`` to a Python identifier: runs of other characters become one underscore."""
    name = _IDENTIFIER.sub("_", text).strip("_") or default
    if name[0].isdigit() or keyword.iskeyword(name):
        name = f"_{name}"
    return name


class NameSpace:
    """Source of distinct identifiers. The first request for a name gets it bare, later ones get ``_1``, ``_2`` ..."""

    def __init__(self, taken: frozenset[str] = RESERVED) -> None:
        # a variable called `sum` is legal, but not pleasant to read
        self._taken = {*taken, *dir(builtins)}
        self._next: dict[str, int] = {}

    def fresh(self, base: str) -> str:
        return self.claim(identifier(base))

    def claim(self, base: str) -> str:
        """Return ``base``, an identifier, or a similar one if it is taken."""
        name = base
        while name in self._taken:
            count = self._next.get(base, 0) + 1
            self._next[base] = count
            name = f"{base}_{count}"
        self._taken.add(name)
        return name
