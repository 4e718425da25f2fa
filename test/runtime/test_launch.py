"""The launcher on a driver that is not there: Triton's own launch code down to the C function, which is a fake here.

The fake "device" reads and writes the memory that the pointers of a launch name, so results show whether the right
pointers arrived in the right order.
"""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from fake_driver import FakeDriver, Received
from triton import knobs as triton_knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver as nvidia
from triton.compiler import CompiledKernel
from triton.runtime.errors import OutOfResources

import helion
import helion.language as hl
from helion import exc, pipeline
from helion.backends import stub
from helion.backends.triton.execute import fast_launch, launcher, native
from helion.backends.triton.toolchain import offline
from helion.backends.triton.toolchain.descriptors import MiscompiledError
from helion.runtime.dispatch import dispatchable

N = 300


@pytest.fixture(scope="module", params=["python", pytest.param("native", marks=pytest.mark.cxx)], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """All of it through Python and through the native launch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELION_NATIVE_LAUNCH", "1" if request.param == "native" else "0")
        yield request.param


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("driver"))


class Device:
    """A driver for Triton whose launch adds: the first pointers are summed into the last one."""

    def __init__(self) -> None:
        self.launches: list[dict[str, Any]] = []
        self.loaded: list[str] = []
        self.stream = 77
        self.utils = types.SimpleNamespace(
            load_binary=self.load,
            get_device_properties=lambda device: {"max_shared_mem": 2**17},
            build_signature_metadata=lambda signature: bytes(len(signature)),
        )
        if hasattr(nvidia, "PyKernelArg"):  # one launch function for all kernels
            self.utils.launch = self.launch
        self.launcher_cls = nvidia.CudaLauncher
        self.compiled: list[CompiledKernel] = []
        self.native_launches = 0

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return self.stream

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_device_capability(self, device: int) -> tuple[int, int]:
        return (9, 0)

    def load(self, name: str, binary: bytes, shared: int, device: int) -> tuple[int, int, int, int, int]:
        self.loaded.append(name)
        return (1, len(self.loaded), 16, 0, 1024)

    def launch(self, *args: Any) -> None:
        x, y, z, stream, function, _, _, _, metadata, enter, leave, _, _, _, _, values = args
        self.run((x, y, z), stream, function, metadata, enter, leave, values)

    def launch_of_one(self, *args: Any) -> None:
        x, y, z, stream, function, _, _, _, _, _, metadata, enter, leave, *values = args
        self.run((x, y, z), stream, function, metadata, enter, leave, values)

    def launch_natively(self, received: Received) -> None:
        signature = [t for t in self.compiled[received.function - 1].src.signature.values() if t != "constexpr"]
        slots = [int.from_bytes(received.parameter(i), "little") for i in range(len(signature) + 2)]
        assert slots[-2:] == [0, 0]  # scratch memory
        self.native_launches += 1
        self.run(received.grid, received.stream, received.function, None, None, None, slots[:-2])

    def run(self, grid: Any, stream: int, function: int, metadata: Any, enter: Any, leave: Any, values: Any) -> None:
        if enter is not None:
            enter(metadata)
        self.launches.append({"grid": grid, "stream": stream, "function": function, "values": tuple(values)})
        pointers = [v if isinstance(v, int) and v > 2**20 else getattr(v, "data_ptr", lambda: None)() for v in values]
        arrays = [memory(p) for p in pointers if p is not None]
        arrays[-1].copy_(torch.stack(arrays[:-1]).sum(0))
        if leave is not None:
            leave(metadata)


def memory(pointer: int) -> torch.Tensor:
    return torch.frombuffer((ctypes.c_char * (4 * N)).from_address(pointer), dtype=torch.float32)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver) -> Iterator[Device]:
    fake = Device()
    monkeypatch.setattr(native, "DRIVER", driver.path)
    driver.on_launch = fake.launch_natively
    monkeypatch.setattr(triton.runtime.driver, "_active", fake)
    if hasattr(nvidia, "PyKernelArg"):
        for name in ("ARG_CONSTEXPR", "ARG_KERNEL", "ARG_TUPLE"):
            monkeypatch.setattr(nvidia, name, name)
        monkeypatch.setattr(nvidia, "PyKernelArg", lambda **fields: tuple(fields.values()))
    else:
        module = types.SimpleNamespace(launch=fake.launch_of_one)
        monkeypatch.setattr(nvidia, "compile_module_from_src", lambda **_: module)
        monkeypatch.setattr(nvidia, "library_dirs", list)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: fake.stream, raising=False)
    monkeypatch.setattr(stub, "on_gpu", lambda value: isinstance(value, torch.Tensor))
    monkeypatch.setattr(launcher.interpreter, "interpret", ordinary)
    load = CompiledKernel._init_handles
    monkeypatch.setattr(CompiledKernel, "_init_handles", lambda self: (fake.compiled.append(self), load(self))[1])
    yield fake
    for kernel in fake.compiled:
        kernel.module = None  # or else it would ask the real driver to unload it


def ordinary(kernel: Any, grid: tuple[int, ...], args: Any, options: Any) -> None:
    """What ``default_launcher`` does on a GPU."""
    kernel[grid](*args, **options)


def adder(**options: Any) -> helion.Kernel:
    @helion.kernel(config=helion.Config(block_sizes=[64]), **options)
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] + y[tile]
        return out

    return add


def sample(offset: int = 0) -> torch.Tensor:
    return torch.randn(N + offset)[offset:]


def check(kernel: Callable[..., torch.Tensor], *args: torch.Tensor) -> None:
    torch.testing.assert_close(kernel(*args), sum(args[1:], args[0]), rtol=0, atol=0)


def runs_straight(kernel: helion.Kernel) -> bool:
    return kernel.__call__.__code__.co_filename.startswith("<helion dispatch")


def test_first_call_and_straight_line(device: Device, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    add = adder()
    check(add, sample(), sample())
    assert runs_straight(add)
    monkeypatch.setattr(triton.JITFunction, "run", None)  # nobody may call it from here on
    for _ in range(3):
        check(add, sample(), sample())
    assert {launch["grid"] for launch in device.launches} == {(5, 1, 1)}
    assert {launch["function"] for launch in device.launches} == {1}
    assert device.loaded == ["_helion_add"]
    assert device.native_launches == (3 if way == "native" else 0)


def test_a_later_process_runs_what_was_kept(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("HELION_VERIFY")
    check(adder(), sample(), sample())
    monkeypatch.setattr(pipeline, "_analyse_with", None)  # nobody may call it from here on
    later, x, y, u = adder(), sample(), sample(), sample(1)
    for pair in ((x, y), (u, y), (x, u)):
        check(later, *pair)
    assert runs_straight(later)
    with pytest.raises(TypeError):
        check(adder(static_shapes=False), sample(), sample())


def test_alignment_has_binaries_of_its_own_and_clones_nothing(device: Device) -> None:
    add = adder()
    x, y, u = sample(), sample(), sample(1)
    assert u.data_ptr() % 16 == 4
    for pair in ((x, y), (u, y), (x, u), (x, y), (u, y), (u, u)):
        check(add, *pair)
    functions = [launch["function"] for launch in device.launches]
    assert functions == [1, 2, 3, 1, 2, 4]


def test_unaligned_first(device: Device) -> None:
    add = adder()
    for pair in ((sample(1), sample()), (sample(2), sample()), (sample(), sample()), (sample(3), sample())):
        check(add, *pair)
    assert [launch["function"] for launch in device.launches] == [1, 1, 2, 1]


def test_stream_is_read_at_every_call(device: Device) -> None:
    add = adder()
    for stream in (77, 78, 79):
        device.stream = stream
        check(add, sample(), sample())
    assert [launch["stream"] for launch in device.launches] == [77, 78, 79]


def test_hooks(device: Device) -> None:
    add = adder()
    check(add, sample(), sample())
    seen: list[str] = []

    def enter(metadata: Any) -> None:
        seen.append(metadata.get()["name"])

    triton_knobs.runtime.launch_enter_hook.add(enter)
    try:
        check(add, sample(), sample())
    finally:
        triton_knobs.runtime.launch_enter_hook.remove(enter)
    check(add, sample(), sample())
    assert seen == ["_helion_add"]
    assert len(device.launches) == 3


def test_pre_run_hooks(device: Device) -> None:
    add = adder()
    x, y = sample(), sample()
    check(add, x, y)
    calls: list[int] = []
    kernel = inspect.unwrap(add.bind((x, y)).compile_config()).__globals__["_helion_add"]
    kernel.add_pre_run_hook(lambda *args, **options: calls.append(len(args)))
    check(add, x, y)
    assert calls == [3]


def test_debug_knob_compiles_again(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    add = adder()
    check(add, sample(), sample())
    monkeypatch.setattr(triton_knobs.runtime, "debug", True)
    check(add, sample(), sample())
    assert [launch["function"] for launch in device.launches] == [1, 2]


def test_changed_global_raises_tritons_error(device: Device) -> None:
    add = adder()
    x, y = sample(), sample()
    check(add, x, y)
    module = inspect.unwrap(add.bind((x, y)).compile_config()).__globals__
    former = module["_BLOCK_SIZE_0"]
    module["_BLOCK_SIZE_0"] = triton.language.constexpr(128)
    with pytest.raises(RuntimeError, match="Global variable _BLOCK_SIZE_0 has changed"):
        add(x, y)
    module["_BLOCK_SIZE_0"] = triton.language.constexpr(former.value)
    check(add, x, y)


def test_explicit_launcher_overrides(device: Device) -> None:
    add = adder()
    x, y = sample(), sample()
    check(add, x, y)
    calls: list[Any] = []
    add.bind((x, y)).compile_config()(x, y, _launcher=lambda kernel, grid, *args, **options: calls.append(grid))
    assert calls == [(5,)]
    assert len(device.launches) == 1


def test_two_bound_kernels_share_text_but_no_launcher(device: Device) -> None:
    first, second = adder(), adder()
    args = (sample(), sample())
    functions = [inspect.unwrap(kernel.bind(args).compile_config()) for kernel in (first, second)]
    launchers = [function.__kwdefaults__["_launcher"] for function in functions]
    assert launchers[0] is not launchers[1]
    assert all(isinstance(each.inner, fast_launch.FastLauncher) for each in launchers)


def test_skipped_by_the_environment(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_SKIP_FAST_LAUNCHER", "1")
    add = adder()
    function = inspect.unwrap(add.bind((sample(), sample())).compile_config())
    assert not isinstance(function.__kwdefaults__["_launcher"].inner, fast_launch.FastLauncher)
    runs = count_runs(monkeypatch)
    for _ in range(3):
        check(add, sample(), sample())
    assert len(runs) == 3


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    runs: list[Any] = []
    run = triton.JITFunction.run

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs["warmup"]:
            runs.append(self)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(triton.JITFunction, "run", counted)
    return runs


def test_unknown_triton_falls_back_for_good(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_launch, "_entry", lambda *args: None)
    runs = count_runs(monkeypatch)
    add = adder()
    x, y = sample(), sample()
    for _ in range(3):
        check(add, x, y)
    assert len(runs) == 3
    assert inspect.unwrap(add.bind((x, y)).compile_config()).__kwdefaults__["_launcher"].inner.dead


def test_a_binary_that_fails_its_check_is_not_launched(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(compiled: CompiledKernel, ptxas: str) -> None:
        raise MiscompiledError(f"ptxas {ptxas} of {compiled.name} is wrong")

    monkeypatch.setattr(offline, "check_descriptors", wrong)
    add = adder()
    for _ in range(2):
        with pytest.raises(exc.TritonError, match="is wrong"):
            add(sample(), sample())
    assert not device.launches


def test_portable_way_of_launching(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_launch, "_direct", lambda run: None)
    add = adder()
    for offset in (0, 0, 1, 0):
        check(add, sample(offset), sample())
    assert runs_straight(add)
    assert len(device.launches) == 4


def test_another_device_takes_its_own_binary(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    current = [0]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[0], raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(device, "get_current_device", lambda: current[0])
    add = adder()
    for current[0] in (0, 0, 1, 1, 0):
        check(add, sample(), sample())
    assert [launch["function"] for launch in device.launches] == [1, 1, 2, 2, 1]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, ("i32", True, False)),
        (16, ("i32", False, True)),
        (17, ("i32", False, False)),
        (0, ("i32", False, True)),
        (2**31, ("i64", False, True)),
        (-(2**31), ("i32", False, True)),
        (2**63, ("u64", False, True)),
        (2**64, None),
    ],
)
def test_integer_classes(value: int, expected: Any) -> None:
    assert fast_launch.integer_class(value) == expected


KERNEL_WITH_NUMBER = """
import torch, helion, helion.language as hl

@helion.kernel(config=helion.Config(block_sizes=[64]), static_shapes=False)
def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * n
    return out
"""


def test_classes_of_integers_have_binaries(device: Device, tmp_path: Path) -> None:
    scaled = import_text(KERNEL_WITH_NUMBER, tmp_path).scaled
    x = sample()
    for n in (17, 18, 16, 32, 1, 17, 16, 1):
        scaled(x, n)
    assert [launch["function"] for launch in device.launches] == [1, 1, 2, 2, 3, 1, 2, 3]
    numbers = [[v for v in launch["values"] if isinstance(v, int) and v < 99][:1] for launch in device.launches]
    # 1 is compiled in; a launch function of Triton's is given it all the same
    assert [each or [1] for each in numbers] == [[17], [18], [16], [32], [1], [17], [16], [1]]


def import_text(text: str, folder: Path) -> Any:
    path = folder / "kernels_of_test.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("kernels_of_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_empty_grid_launches_nothing(device: Device) -> None:
    add = adder(static_shapes=False)
    for n in (N, 0, N, 0):
        x = torch.randn(n)
        if n:
            check(add, x, torch.randn(n))
        else:
            assert add(x, torch.randn(0)).shape == (0,)
    assert len(device.launches) == 2


def test_entries_keep_no_tensor(device: Device) -> None:
    add = adder()
    x, y = sample(), sample()
    add(x, y)
    function = inspect.unwrap(add.bind((x, y)).compile_config())
    site = function.__kwdefaults__["_launcher"].inner.site(function.__globals__["_helion_add"])
    assert site.last[1] == (None, None, None)
    assert dispatchable((x,))


def softmax_of_product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    out = torch.empty([m, y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m in hl.tile(m):
        acc = hl.zeros([tile_m, y.size(1)])
        for tile_k in hl.tile(k):
            # what is more than a sum of products cannot be computed by a kernel in front
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :]).clamp(min=-1e30)
        out[tile_m, :] = torch.softmax(acc, dim=-1)
    return out


def test_whole_rows_that_certainly_do_not_fit_are_not_compiled(device: Device) -> None:
    args = torch.randn(64, 64, dtype=torch.bfloat16), torch.randn(64, 8192, dtype=torch.bfloat16)
    for _ in range(2):
        with pytest.raises(exc.NoFeasibleConfig, match=r"262272 bytes .* has 232448; the kernel holds .* r0, 8192 el"):
            helion.kernel(softmax_of_product)(*args)
    assert not device.compiled and not device.loaded


def test_whole_rows_that_turn_out_not_to_fit(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.compiler.compiler, "max_shared_mem", lambda device: 1000)
    kernel = helion.kernel(softmax_of_product, disable_autotuner_heuristics=True)  # there is one config to try
    args = torch.randn(64, 64, dtype=torch.bfloat16), torch.randn(64, 64, dtype=torch.bfloat16)
    with pytest.raises(
        exc.NoFeasibleConfig,
        match=r"needs \d+ bytes of shared memory, .* has 1000; .* r0, 64 elements, at once: loop over it",
    ) as caught:
        kernel(*args)
    assert len(device.compiled) == 1 and not device.launches
    assert isinstance(caught.value.__cause__, exc.TritonError)
    assert isinstance(caught.value.__cause__.__cause__, OutOfResources)
