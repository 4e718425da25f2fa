"""The smoke test of an installed wheel, which ``scripts/test_wheel.py`` runs in an empty folder.

It imports every module, runs kernels on CPU tensors, compiles one for a GPU, and prints a line with the versions.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import pkgutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
import torch._dynamo  # what helion registers with it is imported along
import triton

import helion
import helion.language as hl
from helion import ops

#: Packages of extras; a module that needs one may say so.
OPTIONAL = ("cutlass", "cuda", "ray", "rich", "matplotlib", "fsspec")


@helion.kernel(static_shapes=False)
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], dim=-1)
    return out


@helion.kernel
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile(out.shape):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def import_all() -> int:
    """Import all modules of the package; return their number."""
    count = 0
    for module in pkgutil.walk_packages(helion.__path__, "helion."):
        if module.name.endswith("__main__"):
            continue
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] not in OPTIONAL:
                raise
        count += 1
    return count


def run_kernels() -> None:
    """Compare kernels and operators with PyTorch on CPU tensors, also under autograd, torch.compile and export."""
    for rows in (3, 5):
        x = torch.randn(rows, 37)
        torch.testing.assert_close(softmax(x), x.softmax(-1))
    a, b = torch.randn(19, 33), torch.randn(33, 21)
    torch.testing.assert_close(matmul(a, b), a @ b, rtol=1e-4, atol=1e-4)
    x, weight = torch.randn(5, 37, requires_grad=True), torch.ones(37, requires_grad=True)
    expected = torch.nn.functional.rms_norm(x, [37], weight, 1e-6)
    for function in (ops.rms_norm, torch.compile(ops.rms_norm, fullgraph=True, backend="aot_eager")):
        found = function(x, weight)
        torch.testing.assert_close(found, expected)
        given = torch.randn_like(found)
        for left, right in zip(
            torch.autograd.grad(found, (x, weight), given),
            torch.autograd.grad(expected, (x, weight), given, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4)


def compile_for_a_gpu() -> None:
    """Compile a kernel for a GPU that is not there."""
    x = torch.empty(64, 1000, dtype=torch.bfloat16, device="meta")
    bound = softmax.bind((x,), target="h100")
    assert "tl.store" in bound.to_code()
    assert bound.resources().spill_bytes == 0


def run_commands() -> None:
    """Run the installed command."""
    command = Path(sysconfig.get_path("scripts"), "helion")
    shown = subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout
    assert helion.__version__ in shown, shown
    subprocess.run([command, "doctor"], stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    assert Path(helion.__file__).is_relative_to(sys.prefix), f"{helion.__file__} is not of this environment"
    assert importlib.metadata.version("helion-tiles") == helion.__version__
    with contextlib.redirect_stderr(sys.stdout):
        count = import_all()
        ops.register_all()
        run_kernels()
        compile_for_a_gpu()
        run_commands()
    print(f"{count} modules, torch {torch.__version__}, Triton {triton.__version__}")


if __name__ == "__main__":
    main()
