"""Scripts that reproduce a call: they run by themselves, and their kernel is compiled to the same code."""

from __future__ import annotations

import dataclasses
import enum
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion import exc
from helion.runtime.specialization import repro

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 4
DTYPES = {"half": torch.float16}
LIMITS = (-1.0, float("inf"))
COMPUTED = WIDTH * 3


class Mode(enum.Enum):
    PLAIN = 1
    DOUBLE = 2


@dataclasses.dataclass(frozen=True)
class Options:
    scale: float
    label: str


def shifted(value: torch.Tensor) -> torch.Tensor:
    return clipped(value) + WIDTH + COMPUTED


def clipped(value: torch.Tensor) -> torch.Tensor:
    return torch.clamp(value, min=LIMITS[0])


@helion.kernel
def add_one(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + 1
    return out


@helion.kernel(static_shapes=False, dot_precision="ieee")
def with_globals(x: torch.Tensor, options: Options, flag: hl.constexpr = True) -> torch.Tensor:  # type: ignore[valid-type]
    out = torch.empty(x.shape, dtype=DTYPES["half"], device=x.device)
    for tile in hl.tile(x.size()):
        value = shifted(F.relu(x[tile])) * options.scale
        if flag:
            value = value + 1
        out[tile] = value
    return out


@helion.kernel(config=helion.Config(block_sizes=[8], num_warps=2))
def applied(x: torch.Tensor, functions: tuple[Callable[..., Any], ...]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        value = x[tile]
        for function in hl.static_range(1):
            value = functions[0](functions[1](value))
        out[tile] = value
    return out


@helion.kernel
def gathered(x: torch.Tensor, index: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    out = torch.empty([index.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(index.size(0)):
        out[tile] = x[index[tile]] + more[tile]
    return out


def factory(offset: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def plus(value: torch.Tensor) -> torch.Tensor:
        return value + offset

    return plus


def script_of(kernel: helion.Kernel, args: tuple[Any, ...], path: Path) -> dict[str, Any]:
    """The names of the script, which has been written to ``path`` and run."""
    bound = kernel.bind(args)
    path.write_text(repro.script(bound, bound.default_config(), kernel.normalize_args(*args)))
    return runpy.run_path(str(path))


CASES: dict[str, tuple[helion.Kernel, tuple[Any, ...]]] = {
    "transposed": (add_one, (torch.zeros(5, 7).T,)),
    "expanded": (add_one, (torch.zeros(5, 1).expand(5, 7),)),
    "not aligned": (add_one, (torch.zeros(64)[1:],)),
    "empty": (add_one, (torch.zeros(0, 3),)),
    "half": (add_one, (torch.zeros(5, dtype=torch.bfloat16),)),
    "bytes": (add_one, (torch.zeros(5, dtype=torch.int8),)),
    "globals": (with_globals, (torch.zeros(5, 6), Options(2.0, "b"), False)),
    "lambda": (applied, (torch.zeros(5), (lambda v: v * WIDTH, torch.exp))),
    "closures": (applied, (torch.zeros(5), (factory(2.0), factory(3.0)))),
}


@pytest.mark.parametrize("name", CASES)
def test_the_script_runs_and_its_kernel_is_the_same(name: str, tmp_path: Path) -> None:
    kernel, args = CASES[name]
    names = script_of(kernel, args, tmp_path / "script.py")
    result = names["helion_repro_caller"]()
    assert isinstance(result, torch.Tensor)
    expected = kernel(*args)
    assert (result.shape, result.stride(), result.dtype) == (expected.shape, expected.stride(), expected.dtype)
    again = next(v for v in names.values() if isinstance(v, helion.Kernel))
    ((held,),) = again.variants._exact._entries.values()
    known = kernel.bind(args)
    text = known.to_triton_code(known.default_config(), output_origin_lines=False)
    assert _without_module(held.variant.face.to_triton_code(output_origin_lines=False)) == _without_module(text)


def _without_module(text: str) -> list[str]:
    named = re.sub(r"KernelFallback\([^)]*\)", "KernelFallback()", text)
    return [line for line in named.splitlines() if not line.startswith("_source_module = ")]


def test_arguments_keep_their_layout_range_and_aliasing(tmp_path: Path) -> None:
    x = torch.zeros(100)
    index = torch.randint(5, 85, (80,))
    args = (x[:90], index, x[2:90][:80])
    result = script_of(gathered, args, tmp_path / "script.py")["helion_repro_caller"]()
    assert result.shape == (80,)
    text = (tmp_path / "script.py").read_text()
    assert f"low={int(index.min())}, high={int(index.max())}" in text
    assert "memory_0 = _random((90,)" in text and "memory_0.as_strided((80,), (1,), 2)" in text
    short = torch.tensor([3, 1, 2])
    script_of(gathered, (x, short, torch.zeros(3)), tmp_path / "script.py")
    assert "torch.tensor([3, 1, 2], dtype=torch.int64, device='cpu')" in (tmp_path / "script.py").read_text()


def test_meta_tensors_give_a_script_for_a_gpu() -> None:
    args = (torch.zeros(3, dtype=torch.int32, device="meta"),)
    bound = add_one.bind(args)
    assert "_random((3,), (1,), torch.int32, 'cuda')" in repro.script(bound, None, args)


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    writer = repro._Writer({})
    namespace: dict[str, Any] = {}
    exec("def made(v): return v", namespace)
    assert writer.value(namespace["made"]) == "made"
    assert "# made: a function whose source was not found" in "\n".join(writer.definitions)
    assert writer.value(Mode.DOUBLE) == "Mode.DOUBLE" and "class Mode(enum.Enum):" in writer.definitions[-1]
    assert "import enum" in writer.imports
    assert writer.value(object()) == "object" and "which this script cannot make" in writer.definitions[-1]


def run(code: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "program.py"
    file.write_text(code)
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, str(file)], env=env, capture_output=True, text=True, check=True)


PROGRAM = """
import torch, helion, helion.language as hl

@helion.kernel
def double(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * 2
    return out

double(torch.ones(5))
double(torch.ones(5))
"""


@pytest.mark.prove
def test_the_variable_prints_a_script_that_runs(tmp_path: Path) -> None:
    printed = run(PROGRAM, tmp_path, HELION_PRINT_REPRO="1").stderr
    assert printed.count(repro.BEGIN) == printed.count(repro.END) == 1, "once per bound kernel"
    script = printed[printed.index(repro.BEGIN) : printed.index(repro.END)]
    again = run(script, tmp_path)
    assert again.stdout.startswith("tensor([") and repro.BEGIN not in again.stderr


def test_a_kernel_that_does_not_compile_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    @helion.kernel(print_repro=True)
    def broken(x: torch.Tensor) -> torch.Tensor:
        for tile in hl.tile(x.size(0)):
            x[tile] = no_such_name  # type: ignore[name-defined]  # noqa: F821
        return x

    with pytest.raises(exc.UndefinedVariable):
        broken(torch.ones(5))
    printed = capsys.readouterr().err
    assert "@helion.kernel(static_shapes=True)\ndef broken(" in printed and printed.count(repro.END) == 1


def test_each_config_is_printed_at_its_first_call(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = helion.kernel(add_one.fn, print_repro=True)
    x = torch.ones(5)
    bound = kernel.bind((x,))
    for size in (2, 4, 2):
        bound.set_config({"block_sizes": [size]})
        bound(x), kernel(x)
    printed = capsys.readouterr().err
    assert printed.count(repro.BEGIN) == 2
    assert "block_sizes=[2]" in printed and "block_sizes=[4]" in printed


@pytest.mark.parametrize("name", ["transposed", "globals", "closures"])
def test_a_generated_module_with_a_caller_runs_by_itself(name: str, tmp_path: Path) -> None:
    kernel, args = CASES[name]
    bound = kernel.bind(args)
    text = bound.to_triton_code(emit_repro_caller=True)
    assert text != bound.to_triton_code()
    (tmp_path / "module.py").write_text(text)
    assert isinstance(runpy.run_path(str(tmp_path / "module.py"))["call"](), torch.Tensor)
    if name == "globals":
        assert run(text, tmp_path).stdout.startswith("tensor([[")


def test_origin_lines_are_an_option() -> None:
    bound = add_one.bind((torch.ones(5),))
    plain = bound.to_triton_code(output_origin_lines=False)
    assert "# src[" not in plain and "# src[" in bound.to_triton_code()
    assert bound.to_triton_code(output_origin_lines=True) == bound.to_triton_code() == bound.to_code()


def test_the_cache_key_and_path_of_a_config() -> None:
    bound = add_one.bind((torch.ones(5),))
    keys = {bound.backend_cache_key({"block_sizes": [size]}) for size in (2, 4)}
    assert len(keys) == 2 and all(len(key) == 32 for key in keys)
    bound.compile_config({"block_sizes": [2]})
    path = Path(bound.get_cached_path({"block_sizes": [2]}))
    assert path.read_text() == bound.to_triton_code({"block_sizes": [2]})
    assert bound.backend_cache_key({"block_sizes": [2]}) in path.name


def test_a_config_can_be_chosen_without_a_call() -> None:
    x = torch.ones(5)
    bound = helion.kernel(add_one.fn).bind((x,))
    bound.variant.ensure_config_exists((x,))
    assert bound.config == bound.default_config() and bound.variant.choice.run is not None
    bound.set_config({"block_sizes": [2]})
    bound.variant.ensure_config_exists((x,))
    assert bound.config != bound.default_config()
