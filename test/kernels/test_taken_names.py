"""Names that generated code and launches use, as names of the user's."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import sys
import types
from pathlib import Path

import pytest
import torch
from conftest import PROVE
from triton.backends.amd.compiler import HIPOptions
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime.jit import JITFunction

import helion
from helion import exc
from helion._names import LAUNCH_OPTIONS, RESERVED

HEADER = "import torch, helion, helion.language as hl\n\n\n@helion.kernel(static_shapes=False)\n"
PARAMETERS = """def kernel(x: torch.Tensor, {name}: torch.Tensor, factor: float):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] + {name}[tile, :] * factor
    return out
"""
NUMBERS = """def kernel(x: torch.Tensor, {name}: int, factor: float):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] + {name} * factor
    return out
"""
VARIABLES = """def kernel(x: torch.Tensor, y: torch.Tensor, factor: float):
    {name} = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        {name}[tile, :] = x[tile, :] + y[tile, :] * factor
    return {name}
"""
VALUES = """def kernel(x: torch.Tensor, y: torch.Tensor, factor: float):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        {name} = y[tile, :] * factor
        out[tile, :] = x[tile, :] + {name}
    return out
"""
FUNCTIONS = VALUES.replace("{name}", "scaled").replace("def kernel", "def {name}")
FORMS = {"parameters": PARAMETERS, "numbers": NUMBERS, "variables": VARIABLES, "values": VALUES, "functions": FUNCTIONS}
OF_DEVICE_CODE = ("tl", "libdevice")
OWN = (*OF_DEVICE_CODE, "max", "min", "len", "print", "range", "type", "pid", "indices_0", "mask_0", "offset_0", "load")
OWN += ("_hl_more", "_hl_slow", "_hl_g0", "kernel_", "self_", "args", "kwargs", "key", "signature", "fn")
OWN += ("_hl_profiled",)
NAMES = sorted({*LAUNCH_OPTIONS, *OWN})
#: The sample has every third name in one form, so that the forms have all names together.
EVERY = 3


def module_of(path: Path, text: str) -> types.ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_all_options_of_a_launch_are_known() -> None:
    fields = {field.name for options in (CUDAOptions, HIPOptions) for field in dataclasses.fields(options)}
    parameters = set(inspect.signature(JITFunction.run).parameters) - {"args", "kwargs"}
    assert fields | parameters <= LAUNCH_OPTIONS


def test_options_of_all_supported_tritons_are_known() -> None:
    of_later_ones = {"clc", "fpsan_homomorphic_casts", "llvm_fn_attrs", "min_shared_mem", "sched4reg", "wgp_cu_mode"}
    assert of_later_ones <= LAUNCH_OPTIONS


@pytest.mark.parametrize("form", FORMS)
def test_any_name_works(form: str, tmp_path: Path) -> None:
    x, y = torch.randn(3, 5), torch.randn(3, 5)
    names = NAMES if PROVE else NAMES[list(FORMS).index(form) % EVERY :: EVERY]
    for name in [*names, "_helion_kernel", "_helion_parts"] if form == "functions" else names:
        if form == "functions" and name in OF_DEVICE_CODE:
            continue
        text = HEADER + FORMS[form].format(name=name)
        module = module_of(tmp_path / f"{form}_{name}.py", text)
        kernel = getattr(module, name if form == "functions" else "kernel")
        second, expected = (3, x + 6) if form == "numbers" else (y, x + y * 2)
        torch.testing.assert_close(kernel(x, second, 2.0), expected, msg=lambda text, name=name: f"{name}: {text}")
        code = kernel.bind((x, second, 2.0), target="sm_90").to_triton_code()
        device = next(line for line in code.splitlines() if line.startswith("def _helion_"))
        parameters = {part.split(":")[0].strip() for part in device.split("(")[1].split(")")[0].split(",")}
        assert not parameters & LAUNCH_OPTIONS, name


@pytest.mark.parametrize("name", ["num_warps", "num_stages", "max", "debug"])
@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_launch_options_as_parameters_compile(name: str, target: str, tmp_path: Path) -> None:
    kernel = module_of(tmp_path / f"compiled_{name}_{target}.py", HEADER + NUMBERS.format(name=name)).kernel
    assert kernel.bind((torch.randn(3, 5), 3, 2.0), target=target).resources().registers > 0


@pytest.mark.parametrize("name", [*sorted(RESERVED), "_BLOCK_SIZE_0", "_RDIM_SIZE_1"])
@pytest.mark.parametrize("form", ["parameters", "variables", "functions"])
def test_names_of_generated_modules_are_refused(name: str, form: str, tmp_path: Path) -> None:
    if form != "functions" and name in OF_DEVICE_CODE:  # a variable of the host function
        return
    what = {"parameters": "parameter", "variables": "variable", "functions": "function"}[form]
    with pytest.raises(exc.NamingConflict, match=f"rename the {what} '{name}'"):
        module_of(tmp_path / f"reserved_{form}_{name}.py", HEADER + FORMS[form].format(name=name))


def test_an_option_given_verbatim_leaves_the_name_to_the_user(tmp_path: Path) -> None:
    kernel = module_of(tmp_path / "verbatim.py", HEADER + PARAMETERS.format(name="foo")).kernel
    bound = kernel.bind((torch.randn(3, 5), torch.randn(3, 5), 2.0))
    code = bound.to_triton_code(helion.Config(block_sizes=[1], _triton_config_foo=1))
    assert "(x, foo_1, out" in code and "foo=1)" in code
