"""Each error that the documentation of ``hl`` names is raised by a kernel that makes that mistake."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import helion
from helion import exc

ROOT = Path(__file__).resolve().parents[2]

_ATOMICS = dict.fromkeys(("add", "max", "min", "and", "or", "xor", "xchg"), "1") | {"cas": "1, 2"}
#: Statements behind ``for t in hl.tile(x.size(0)):`` for a float32 ``x[8, 8]``, by function and error.
DEVICE = {
    ("atomic_add", "TypeInferenceError"): "hl.atomic_add(i16, [t, 0], 1)",
    ("atomic_max", "TypeInferenceError"): "hl.atomic_max(i16, [t, 0], 1)",
    ("atomic_min", "TypeInferenceError"): "hl.atomic_min(i16, [t, 0], 1)",
    ("atomic_xchg", "TypeInferenceError"): "hl.atomic_xchg(i16, [t, 0], 1)",
    ("atomic_cas", "TypeInferenceError"): "hl.atomic_cas(i8, [t, 0], 1, 2)",
    ("atomic_and", "TypeInferenceError"): "hl.atomic_and(x, [t, 0], 1)",
    ("atomic_or", "TypeInferenceError"): "hl.atomic_or(x, [t, 0], 1)",
    ("atomic_xor", "TypeInferenceError"): "hl.atomic_xor(x, [t, 0], 1)",
    ("zeros", "ShapeSpecializingAllocation"): "out[t, :] = hl.zeros([x[0, 0]])",
    ("full", "ShapeSpecializingAllocation"): "out[t, :] = hl.full([x[0, 0]], 1)",
    ("full", "ShapeMismatch"): "out[t, :] = hl.full([t], x[t, 0])[:, None]",
    ("arange", "ShapeSpecializingCall"): "out[t, :] = hl.arange(0, t.begin)",
    ("subscript", "InvalidIndexingType"): "out[t, :] = hl.subscript(x[t, :], [0])",
    ("load", "RankMismatch"): "out[t, :] = hl.load(x, [t, 0, 0])",
    ("load", "InvalidIndexingType"): "out[t, :] = hl.load(x, [t, 1.5])",
    ("store", "DeviceTensorSubscriptAssignmentNotAllowed"): "hl.store(x[t, :], [t, 0], 1)",
    ("store", "RankMismatch"): "hl.store(x, [t, 0, 0], 1)",
    ("store", "ShapeMismatch"): "hl.store(x, [t, slice(None)], hl.zeros([5]))",
    ("dot", "ShapeMismatch"): "out[t, :] = hl.dot(x[t, :], hl.zeros([16, 16]))",
    ("dot", "DotBatchDimensionMismatch"): "out[t, :] = hl.dot(hl.zeros([2, 8, 8]), hl.zeros([3, 8, 8])).sum(0)",
    ("dot_scaled", "InvalidAPIUsage"): "hl.dot_scaled(x[t, :], None, 'none', x[:, :], None, 'bf16')",
    ("dot_scaled", "TypeInferenceError"): "hl.dot_scaled(x[t, :], None, 'bf16', x[:, :], None, 'bf16')",
    ("dot_scaled", "ShapeMismatch"): "h = x[t, :].to(torch.float16)\n    hl.dot_scaled(h[None, :, :], None, 'fp16', h, None, 'fp16')",
    ("barrier", "BarrierOnlyAllowedAtTopLevel"): "hl.barrier()",
    ("rand", "TypeInferenceError"): "out[t, :] = hl.rand([t, 8], 1.5)",
    ("rand", "ShapeSpecializingCall"): "for u in hl.tile(x[0, 0].to(torch.int32)):\n        out[u, 0] = hl.rand([u], 1)",
    ("rand4x", "TypeInferenceError"): "out[t, :] = hl.rand4x(1, x[t, :])[0]",
    ("randint", "InvalidAPIUsage"): "out[t, :] = hl.randint([t, 8], 5, 5, 1)",
    ("randint", "TypeInferenceError"): "out[t, :] = hl.randint([t, 8], 5, 8, 1.5)",
    ("split", "ShapeMismatch"): "a, b = hl.split(x[t, :])\n    out[t, :] = a",
    ("join", "ShapeMismatch"): "hl.join(hl.zeros([3]), hl.zeros([5]))",
    ("reduce", "InvalidReductionDim"): "out[t, 0] = hl.reduce(torch.add, x[t, :], dim=5)",
    ("reduce", "TypeInferenceError"): "out[t, 0] = hl.reduce(torch.add, 3, dim=1)",
    ("reduce", "NotAllowedInHelperFunction"): "out[t, 0] = hl.reduce(lambda a, b: a + x[t, 0], x[t, :], dim=1)",
    ("associative_scan", "InvalidReductionDim"): "out[t, :] = hl.associative_scan(torch.add, x[t, :], 7)",
    ("associative_scan", "TypeInferenceError"): "out[t, :] = hl.associative_scan(torch.add, 3, 1)",
    ("associative_scan", "NotAllowedInHelperFunction"): "out[t, :] = hl.associative_scan(lambda a, b: a + x[t, 0], x[t, :], 1)",
    ("cumsum", "InvalidReductionDim"): "out[t, :] = hl.cumsum(x[t, :], 7)",
    ("cumprod", "InvalidReductionDim"): "out[t, :] = hl.cumprod(x[t, :], 7)",
    ("specialize", "SpecializeOnDevice"): "n = hl.specialize(x.size(0))\n    out[t, :] = n",
    ("device_print", "InvalidAPIUsage"): "hl.device_print(x[t, 0])",
    ("breakpoint", "BreakpointInDeviceLoopRequiresInterpret"): "hl.breakpoint()",
    ("inline_triton", "InvalidAPIUsage"): "out[t, :] = hl.inline_triton('(', [], x[t, :])",
    ("triton_kernel", "InvalidAPIUsage"): "out[t, :] = hl.triton_kernel(torch.sin, [x[t, :]], x[t, :])",
    ("triton_kernel", "UndefinedVariable"): "out[t, :] = hl.triton_kernel('nothing', [x[t, :]], x[t, :])",
    ("inline_asm_elementwise", "ShapeMismatch"): "hl.inline_asm_elementwise('a', '=r,r,r', [hl.zeros([3]), hl.zeros([5])], torch.float32, True, 1)",
    ("inline_asm_elementwise", "InvalidAPIUsage"): "hl.inline_asm_elementwise('a', '=r,r', [x[t, :]], 'int32', True, 1)",
    ("make_async_remote_copy", "InvalidAPIUsage"): "hl.make_async_remote_copy(x, [t], 1)",
    ("signal", "InvalidAPIUsage"): "hl.signal(x, [0], 1)",
    ("wait", "InvalidAPIUsage"): "hl.wait(x, [0], 1)",
    ("remote_barrier", "InvalidAPIUsage"): "hl.remote_barrier([0, 1])",
    ("tile", "LoopFunctionNotInFor"): "u = hl.tile(4)",
    ("grid", "LoopFunctionNotInFor"): "u = hl.grid(4)",
    ("tile", "TileOfTile"): "for u in hl.tile(t):\n        out[u, :] = x[u, :]",
    ("grid", "TileOfTile"): "for u in hl.grid(t):\n        out[u, :] = x[u, :]",
    ("static_range", "TypeInferenceError"): "for u in hl.static_range(t.begin):\n        out[u, :] = x[u, :]",
    ("jagged_tile", "InvalidJaggedTileUsage"): "for u in hl.jagged_tile(3):\n        out[t, u] = x[t, u]",
    ("float4_e2m1fn_x2_to_float32", "InvalidAPIUsage"): "a, b = hl.float4_e2m1fn_x2_to_float32(x[t, :])\n    out[t, :] = a",
    ("load_float4_e2m1fn_x16_to_float16", "InvalidAPIUsage"): "hl.load_float4_e2m1fn_x16_to_float16(x, t.index)",
    ("load_bfloat16_x16_to_float16", "InvalidAPIUsage"): "hl.load_bfloat16_x16_to_float16(x, t.index)",
    ("stacktensor_like", "StackTensorDevPtrOnHost"): "out[t, :] = hl.stacktensor_like(x, x)[t]",
    ("stacktensor_like", "StackTensorExampleOnDevice"): "out[t, :] = hl.stacktensor_like(x[t, :], x[t, 0])[t]",
    ("stacktensor_like", "StackTensorDevPtrDtype"): "out[t, :] = hl.stacktensor_like(x, x[t, 0])[t]",
    **{
        (f"atomic_{name}", "AtomicOnDeviceTensor"): f"hl.atomic_{name}(x[t, :], [0], {values})"
        for name, values in _ATOMICS.items()
    },
    **{
        (f"atomic_{name}", "InvalidAPIUsage"): f"hl.atomic_{name}(i32, [t, 0], {values}, sem='none')"
        for name, values in _ATOMICS.items()
    },
    **{
        (f"tile_{name}", "TypeInferenceError"): f"out[t, :] = hl.tile_{name}(3)"
        for name in ("begin", "block_size", "count", "end", "id", "index")
    },
}  # fmt: skip
_COPY = "for t in hl.tile(x.size(0)):\n    out[t, :] = x[t, :]"
#: Whole bodies, for host code.
HOST = {
    ("register_block_size", "InvalidAPIUsage"): f"b = hl.register_block_size(3, 8)\n{_COPY}",
    ("specialize", "SpecializeArgType"): f"n = hl.specialize(x)\n{_COPY}",
    ("register_tunable", "RegisterTunableArgTypes"): f"n = hl.register_tunable(3, 4)\n{_COPY}",
    ("register_tunable", "TunableNameConflict"): f"n = hl.register_tunable('num_warps', PowerOfTwoFragment(1, 4))\n{_COPY} * n",
    ("register_tunable", "TunableTypeNotSupported"): f"n = hl.register_tunable('n', EnumFragment(('a', 'b')))\n{_COPY}",
    ("static_range", "DeviceAPIOnHost"): f"for i in hl.static_range(3):\n    pass\n{_COPY}",
    ("tile", "InvalidTileRange"): "for t in hl.tile(5, 3):\n    out[t, :] = x[t, :]",
    ("grid", "InvalidTileRange"): "for t in hl.grid(5, 3):\n    out[t, :] = x[t, :]",
    ("store", "OverlappingStore"): "e = x[0].expand(8, 8)\nfor t in hl.tile(8):\n    hl.store(e, [t, slice(None)], x[t, :])",
    ("stacktensor_like", "StackTensorcOnHost"): f"s = hl.stacktensor_like(x, x)\n{_COPY}",
}  # fmt: skip

TRIALS = {**{at: f"for t in hl.tile(x.size(0)):\n    {body}" for at, body in DEVICE.items()}, **HOST}
#: Errors of the run, which checked kernels raise (test_checked.py).
AT_RUN_TIME = {("load", "IndexOutOfRange"), ("store", "IndexOutOfRange")}


def _module(name: str, path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, helion.Kernel]:
    lines = ["import torch", "import helion", "import helion.language as hl", "from helion.autotuner import *"]
    for number, body in enumerate(TRIALS.values()):
        lines += ["@helion.kernel", f"def kernel_{number}(x):", "    out = torch.empty_like(x)"]
        lines += ["    i8, i16, i32 = x.view(torch.int8), x.view(torch.int16), x.view(torch.int32)"]
        lines += [textwrap.indent(body, "    "), "    return out", ""]
    file = tmp_path_factory.mktemp("errors") / "documented_errors.py"
    file.write_text("\n".join(lines))
    module = _module("documented_errors", file)
    return {at: getattr(module, f"kernel_{number}") for number, at in enumerate(TRIALS)}


@pytest.mark.parametrize("at", TRIALS, ids="-".join)
def test_mistakes_raise_what_is_documented(at: tuple[str, str], kernels: dict[Any, helion.Kernel]) -> None:
    with pytest.raises(getattr(exc, at[1])):
        kernels[at](torch.randn(8, 8))


def test_every_documented_error_is_tried() -> None:
    reference = _module("docs_reference_of_errors", ROOT / "scripts" / "reference.py")
    documented = {
        (entry.name.removeprefix("hl."), error.removeprefix("exc."))
        for entry in reference.language()
        for error, _ in reference.items(reference.sections(entry.doc).get("Raises:", ()))
    }
    assert documented == set(TRIALS) | AT_RUN_TIME
