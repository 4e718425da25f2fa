"""Launches of products: through the dispatcher with a stub, and through real shared objects with a runtime that is none."""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from backends.cute import products, scaled_kernels
from backends.cute.products import BF16, matmul
from backends.cute.row_kernels import scaled_norm
from fake_cudart import FakeRuntime

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute import shapes
from helion.backends.cute.execute import evaluators, launcher, seen
from helion.backends.cute.plan.dtypes import NUMBER
from helion.backends.cute.plan.kernel import CutePlan
from helion.backends.cute.toolchain import library, shared_object
from helion.backends.cute.toolchain.errors import CompilationFailed
from helion.backends.cute.toolchain.kernel import GemmKernel

ARGUMENTS = tuple(products.values(64, 64, dtype=BF16, device="cpu", seed=seed) for seed in (0, 1))


def kernel_of(bound: Any) -> GemmKernel:
    return inspect.unwrap(bound.compile_config()).__globals__["_helion_matmul"]


# The dispatcher ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def compiled_by_nobody(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Launches of stubs find every kernel compiled; the names of those that were asked for."""
    asked: list[str] = []
    for module in (launcher, seen):
        monkeypatch.setattr(module, "folder", lambda kernel: asked.append(kernel.name))
    return asked


def test_a_call_goes_straight_to_its_launch(compiled_by_nobody: list[str]) -> None:
    kernel = helion.kernel(matmul.fn, backend="cute")
    with helion.runtime.stub_driver() as stub:
        for _ in range(4):
            kernel(*ARGUMENTS)
        assert len(compiled_by_nobody) == 1, "later calls do not ask"
        (launch,) = set(stub.launches)
        assert len(stub.launches) == 4
        assert (launch.name, launch.num_args) == ("_helion_matmul", 3)
        rows, columns = kernel.bind(ARGUMENTS).plan().gemm.work
        assert launch.grid == (rows * columns, 1, 1)
    torch.testing.assert_close(kernel(*ARGUMENTS), (ARGUMENTS[0] @ ARGUMENTS[1]), atol=0.2, rtol=0.02)


def test_an_address_that_the_copy_engine_cannot_take_is_named(compiled_by_nobody: list[str]) -> None:
    kernel = helion.kernel(matmul.fn, backend="cute")
    shifted = torch.zeros(64 * 64 + 1, dtype=BF16)[1:].view(64, 64)
    described = kernel_of(kernel.bind(ARGUMENTS))
    with pytest.raises(launcher.LaunchFailed, match=r"y, of shape .* begins 2 bytes after a multiple of 16.*clone it"):
        launcher.check_launch(described, (ARGUMENTS[0], shifted))
    with pytest.raises(launcher.LaunchFailed, match=r"y is on meta, and x on cpu"):
        launcher.check_launch(described, (ARGUMENTS[0], shifted.to("meta")))
    with helion.runtime.stub_driver() as stub:
        for arguments in (ARGUMENTS, ARGUMENTS, (ARGUMENTS[0], shifted)):
            kernel(*arguments)  # the written call leaves the last one to the launcher, which copies it
        assert len(stub.launches) == 3


def shifted(tensor: torch.Tensor, elements: int = 1) -> torch.Tensor:
    """A tensor with the same numbers and strides, that begins after a multiple of 16 bytes."""
    span = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    view = torch.as_strided(torch.zeros(span + elements, dtype=tensor.dtype), tensor.shape, tensor.stride(), elements)
    distinct = tuple(slice(None) if step else slice(1) for step in tensor.stride())
    view[distinct] = tensor[distinct]
    assert view.data_ptr() % 16
    return view


@helion.kernel(backend="cute", static_shapes=True)
def accumulate(x: torch.Tensor, y: torch.Tensor, added: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    for tile_m, tile_n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = (acc + added[tile_m, tile_n]).to(out.dtype)
    return out


@pytest.mark.parametrize("elements", [1, 2, 4])
def test_tensors_anywhere_are_copied_for_the_launch(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs with gaps between rows, repeated rows, and an output with gaps: all begin between multiples of 16 bytes."""
    seen_by_kernel: list[int] = []
    evaluate = evaluators.evaluate
    monkeypatch.setattr(
        launcher.evaluators,
        "evaluate",
        lambda kernel, given: (seen_by_kernel.extend(each.data_ptr() % 16 for each in given), evaluate(kernel, given)),
    )
    x = products.values(70, 96, dtype=BF16, device="cpu", seed=3)[:, :64]
    row = products.values(1, 64, dtype=BF16, device="cpu", seed=4).expand(70, 64)
    given = [shifted(each, elements) for each in (x, ARGUMENTS[1], row, torch.zeros(70, 96, dtype=BF16)[:, :64])]
    assert accumulate(*given) is given[3]
    expected = x.double() @ ARGUMENTS[1].double() + row.double()
    torch.testing.assert_close(given[3].double(), expected, atol=0.05, rtol=0.02)
    torch.testing.assert_close(given[0], x)
    assert seen_by_kernel and not any(seen_by_kernel)


@pytest.mark.parametrize("at", range(5))
def test_every_tensor_of_a_launch_is_named(at: int) -> None:
    """A, B, D and factors of blocks of K."""
    case = scaled_kernels.CASES["by_id"]
    given = scaled_kernels.arguments(case, 200, 136, 400)
    bound = case.kernel.bind(given)
    described = inspect.unwrap(bound.compile_config()).__globals__[f"_helion_{case.kernel.name}"]
    tensors = [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in bound.plan().arguments]
    launcher.check_launch(described, tensors)
    apart = torch.empty(tensors[at].nbytes + 1, dtype=torch.uint8)[1:].view(torch.uint8)
    tensors[at] = apart
    with pytest.raises(
        launcher.LaunchFailed, match=rf"^{bound.plan().arguments[at].name}\w*, of shape .* begins 1 bytes"
    ):
        launcher.check_launch(described, tensors)


def test_no_rows_launch_nothing() -> None:
    x, y = torch.zeros(0, 64, dtype=BF16), torch.zeros(64, 64, dtype=BF16)
    for static in (True, False):
        kernel = helion.kernel(matmul.fn, backend="cute", static_shapes=static)
        assert kernel(x, y).shape == (0, 64) and "_launcher(_helion_matmul, (0,)" in kernel.bind((x, y)).to_code()
        with pytest.raises(exc.CuteUnsupported, match="M = 64, N = 64, K = 0"):
            kernel(y[:, :0], y[:0])
    no_products = torch.zeros(0, 64, 64, dtype=BF16)
    assert products.bmm(no_products, no_products).shape == (0, 64, 64)


def test_calls_are_errors_of_their_kernel() -> None:
    kernel = helion.kernel(matmul.fn, backend="cute")
    bound = kernel.bind(ARGUMENTS)
    executor = bound.variant.specialized.executor
    assert executor.is_failure(launcher.LaunchFailed("CUDA error 700")) and executor.is_failure(CompilationFailed("g"))
    assert executor.error is exc.CuteError


# Binaries on disk ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """A compiler that makes some bytes, in a cache of its own; what it was asked for."""
    made: list[str] = []

    def build(kernel: GemmKernel) -> tuple[bytes, bytes]:
        made.append(kernel.name)
        return b"shared object", b"cubin"

    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    monkeypatch.setattr(library.shared_object, "build_shared_object", build)
    monkeypatch.setattr(library, "installed_version", lambda: "1.0")
    monkeypatch.setattr(library, "_FOUND", {})
    yield made


def test_a_binary_is_kept_for_later_processes(counted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernel_of(matmul.bind(ARGUMENTS))
    place = library.folder(kernel)
    assert (place / library.SHARED_OBJECT).read_bytes() == b"shared object"
    for version in ("1.0", ""):  # where nothing is installed, any version does
        monkeypatch.setattr(library, "installed_version", lambda version=version: version)
        monkeypatch.setattr(library, "_FOUND", {})
        assert library.folder(kernel) == place
    assert len(counted) == 1


def test_another_cache_folder_has_binaries_of_its_own(
    counted: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kernel = kernel_of(matmul.bind(ARGUMENTS))
    first = library.folder(kernel)
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    monkeypatch.setenv("HELION_CACHE_DIR", str(other))
    assert not library.is_compiled(kernel)
    second = library.folder(kernel)
    assert library.is_compiled(kernel) and second.is_relative_to(other) and not first.is_relative_to(other)
    assert library.folder(kernel) == second and len(counted) == 2


def test_a_binary_is_kept_elsewhere_where_the_cache_cannot_be_written(
    counted: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gemm").write_text("no folder")
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    monkeypatch.setattr(library.files, "private_folder", lambda: own)
    kernel = kernel_of(matmul.bind(ARGUMENTS))
    place = library.folder(kernel)
    assert place.is_relative_to(own) and (place / library.SHARED_OBJECT).read_bytes() == b"shared object"
    assert library.folder(kernel) == place and library.is_compiled(kernel) and len(counted) == 1
    assert f"{tmp_path / 'gemm'} cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("spoil", ["version", "content", "notes", "writable"])
def test_a_binary_that_is_not_what_was_put_there_is_made_again(
    counted: list[str], monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    kernel = kernel_of(matmul.bind(ARGUMENTS))
    place = library.folder(kernel)
    if spoil == "version":
        monkeypatch.setattr(library, "installed_version", lambda: "2.0")
    elif spoil == "content":
        (place / library.SHARED_OBJECT).write_bytes(b"something else")
    elif spoil == "notes":
        (place / library.NOTES).write_text("{")
    else:
        (place / library.SHARED_OBJECT).chmod(0o777)
    monkeypatch.setattr(library, "_FOUND", {})
    library.folder(kernel)
    assert len(counted) == 2
    assert json.loads((place / library.NOTES).read_text())["dsl"] == ("2.0" if spoil == "version" else "1.0")
    assert (place / library.SHARED_OBJECT).read_bytes() == b"shared object"


def test_text_unit_and_operands_tell_kernels_apart() -> None:
    kernel = kernel_of(matmul.bind(ARGUMENTS))
    others = [{"source": kernel.source + " "}, {"unit": "tcgen05"}, {"pointers": (*kernel.pointers, "float32")}]
    assert len({kernel.key, *(dataclasses.replace(kernel, **changes).key for changes in others)}) == 4
    assert dataclasses.replace(kernel, name="other").key == kernel.key


def test_without_the_dsl_a_kernel_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cutlass", None)
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(library, "_FOUND", {})
    bound = helion.kernel(matmul.fn, backend="cute").bind(ARGUMENTS)
    for ask in (bound.resources, lambda: bound.export_shared_object(tmp_path / "kernel.so")):
        with pytest.raises(
            exc.CuteBackendUnavailable, match=r"CuTe DSL.*not installed.*pip install 'helion-tiles\[cute\]'"
        ):
            ask()
    assert "not installed" in bound.explain()


def test_importing_helion_imports_little_and_planning_and_printing_no_dsl() -> None:
    script = (
        "import sys, helion\n"
        "ours = [m for m in sys.modules if m.startswith('helion.backends.cute.')]\n"
        "assert ours == ['helion.backends.cute.backend'], ours\n"
        "import torch, helion.backends.cute.codegen.module, helion.backends.cute.plan.build\n"
        "assert 'cutlass' not in sys.modules\n"
        "from backends.cute.products import matmul\n"
        "x = torch.empty(64, 64, dtype=torch.bfloat16)\n"
        "matmul(x, x); print(matmul.bind((x, x)).plan())\n"
        "assert 'cutlass' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=_environment())


def _environment() -> dict[str, str]:
    root = Path(__file__).parents[3]
    return {**os.environ, "PYTHONPATH": f"{root}:{root / 'test'}"}


# Real shared objects -------------------------------------------------------------------------------------------------------


CASES = (("row", "row", {}), ("column", "column", {"wgmma_cluster_m": 2}))


def test_shared_objects_launch_what_was_planned(tmp_path: Path) -> None:
    """Loaded once per device; grid, block, cluster, shared memory, stream, and every address in what the kernel gets."""
    pytest.importorskip("cutlass", reason="the CuTe DSL is not installed (the cute extra)")
    runtime = None
    for number, (x_major, y_major, keys) in enumerate(CASES, start=1):
        x = products.operand(520, 136, x_major, dtype=BF16, device="cpu")
        y = products.operand(136, 264, y_major, dtype=BF16, device="cpu")
        bound = matmul.bind((x, y))
        config = {"block_sizes": [128, 64, 64], **keys}
        path = bound.export_shared_object(tmp_path / f"matmul_{number}.so", config)
        runtime = runtime or FakeRuntime(tmp_path, path, clusters=3, parameters=4)
        kernel = library.Library(path, kernel_of(bound).pointers)
        assert kernel.load(0) == 0 and kernel.load(0) == 0
        assert kernel.clusters() == 3 and runtime.loads == number
        check_launch(runtime, kernel, bound.plan(config))
    assert runtime is not None
    assert runtime.found == "the only one"
    check_sizes(runtime, tmp_path)
    check_numbers(runtime, tmp_path / "scaled_norm.so")
    check_names(runtime, tmp_path / "odd.so")


def check_names(runtime: FakeRuntime, path: Path) -> None:
    """Of several kernels in a binary, the matmul is found by its name."""
    bound = matmul.bind(
        [torch.empty(shape, dtype=BF16, device="meta") for shape in ((64, 63), (63, 64))], target="sm_90"
    )
    config = {"wgmma_copies_in": "memory"}
    assert "def prepare_a(" in bound.to_code(config)
    kinds = inspect.unwrap(bound.compile_config(config)).__globals__["_helion_matmul"].pointers
    kernel = library.Library(bound.export_shared_object(path, config), kinds)
    assert kernel.load(0) == 0 and kernel.clusters() == 3
    assert runtime.found.startswith("kernel_cutlass_kernel_")


def check_numbers(runtime: FakeRuntime, path: Path) -> None:
    """Numbers of a call stand behind descriptors and vectors among what the kernel gets, in fp32."""
    x, y, weight = (torch.empty(shape, dtype=BF16, device="meta") for shape in ((1000, 264), (264, 1000), (1000,)))
    bound = scaled_norm.bind((x, y, weight, 1e-6, 1.0), target="sm_90")
    kinds = inspect.unwrap(bound.compile_config()).__globals__["_helion_scaled_norm"].pointers
    kernel = library.Library(bound.export_shared_object(path), kinds)
    assert kernel.load(0) == 0
    numbers = iter((0.1, 2.5))
    given = [next(numbers) if kind == NUMBER else 0x7F0000000000 + 0x100 * at for at, kind in enumerate(kinds)]
    runtime.parameters = 7
    assert kernel.launch(*given, 3, 0xABC) == 0
    passed = [struct.unpack("f", each[:4])[0] for each in runtime.launches[-1].parameters[-2:]]
    assert passed == [pytest.approx(0.1), 2.5]


USED_BYTES = 64
"""Of a tensor map."""


def check_sizes(runtime: FakeRuntime, folder: Path) -> None:
    """A kernel that is given its sizes launches the same grid with the same descriptors as one that is made for them."""
    loaded, gemms = [], []
    config = {"block_sizes": [1, 128, 128, 64], "wgmma_cluster_m": 2}
    sizes = ((5, 520, 264, 136),)
    for static, (b, m, n, k) in ((False, (4, 96, 8, 200)), *((True, size) for size in sizes)):
        kernel = helion.kernel(products.bmm.fn, backend="cute", static_shapes=static)
        x, y = (torch.empty(b, *shape, dtype=BF16, device="meta") for shape in ((m, k), (k, n)))
        bound = kernel.bind((x, y), target="sm_90")
        path = bound.export_shared_object(folder / f"bmm_{static}_{m}.so", config)
        kinds = inspect.unwrap(bound.compile_config(config)).__globals__["_helion_bmm"].pointers
        loaded.append(library.Library(path, kinds))
        gemms.append(bound.plan(config).gemm)
        assert loaded[-1].load(0) == 0
    addresses = [0x7F0000000000 + 0x1230000 * at for at in range(1, 4)]

    def launched(at: int, parameters: int, *numbers: int) -> tuple[object, ...]:
        runtime.parameters = parameters
        assert loaded[at].launch(*addresses, *numbers, 1000, 0xABC) == 0
        launch = runtime.launches[-1]
        starts = [struct.pack("<Q", address) for address in addresses]
        descriptors = [each[:USED_BYTES] for each in launch.parameters if each[:8] in starts]
        assert len(descriptors) == len(starts)
        return launch.grid, launch.block, launch.cluster, launch.shared, descriptors

    for at, (b, m, n, k) in enumerate(sizes, start=1):
        numbers = {"size_m": m, "size_n": n, "size_k": k, "pitch_a": k, "pitch_b": n, "pitch_d": n, "batches": b}
        numbers |= {"batch_stride_a": m * k, "batch_stride_b": k * n, "batch_stride_d": m * n}
        given = [numbers[name] for name in gemms[0].problem.runtime]
        # Shapes stand between the descriptors where they are no constants.
        assert launched(0, 6, *given) == launched(at, 4)


def check_launch(runtime: FakeRuntime, kernel: library.Library, plan: CutePlan) -> None:
    addresses = [0x7F0000000000 + 0x1230000 * at for at in range(1, 4)]
    assert kernel.launch(*addresses, 3, 0xABC) == 0
    launch = runtime.launches[-1]
    assert launch.grid == (plan.gemm.ctas, min(3, math.prod(plan.gemm.work)), 1)
    assert launch.block == (plan.roles.warps * 32, 1, 1)
    assert (launch.cluster, launch.shared, launch.stream) == (plan.gemm.ctas, plan.shared_bytes, 0xABC)
    assert set(addresses) <= {int.from_bytes(each[:8], "little") for each in launch.parameters}
    runtime.result = 719
    assert kernel.launch(*addresses, 3, 0xABC) != 0
    runtime.result = 0


def test_plans_are_verified_unless_their_kernel_was_compiled(
    counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[Any] = []
    monkeypatch.setattr(shapes, "verify", verified.append)
    bound = helion.kernel(matmul.fn, backend="cute").bind(ARGUMENTS)
    kernel = kernel_of(bound)
    assert len(verified) == 1
    bound.to_code({"block_sizes": [64, 64, 128]})
    assert len(verified) == 2
    library.folder(kernel)
    again = helion.kernel(matmul.fn, backend="cute").bind(ARGUMENTS)
    assert kernel_of(again).key == kernel.key and len(verified) == 2


def test_the_launching_function_is_the_only_symbol_of_its_kind() -> None:
    symbol = b"_mlir_gemm__mlir_ciface_cutlass_gemm_Ptrgmem"
    found = shared_object.launching_function(b"ELF\0gemm_cuda_init\0" + symbol + b"\0" + symbol + b"\0")
    assert found == symbol.decode()
    for host in (b"ELF\0gemm_cuda_init\0", b"\0" + symbol + b"\0" + symbol + b"_other\0"):
        with pytest.raises(CompilationFailed, match=r"exported [02] functions that launch the kernel, not one"):
            shared_object.launching_function(host)
