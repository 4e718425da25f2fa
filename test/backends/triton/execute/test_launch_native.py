"""The native guard and launch by themselves: what they accept, what reaches the driver, and how the extension is built."""

from __future__ import annotations

import copy
import gc
import logging
import math
import struct
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from fake_driver import CLUSTER, COOPERATIVE, PDL, SPREAD, FakeDriver, Received
from hypothesis import given
from hypothesis import strategies as st

import helion
import helion.language as hl
from helion._shapes import WIDE, SizeClasses
from helion._support import files
from helion.backends.triton.execute import native
from helion.backends.triton.execute.native import Argument, Binary, build
from helion.runtime import stub_driver
from helion.runtime.call import signature

pytestmark = pytest.mark.cxx


@pytest.fixture(scope="module", autouse=True)
def on() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELION_NATIVE_LAUNCH", "1")
        assert native.wanted()
        yield


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    return FakeDriver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def received(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Received]]:
    """What arrives at the driver; its parameters can be read until the next launch at the latest."""
    monkeypatch.setattr(native, "DRIVER", driver.path)
    launches: list[Received] = []
    driver.on_launch = launches.append
    yield launches
    driver.result = 0
    driver.set_context(1)


# --- guards ------------------------------------------------------------------------------------------------------------


def tensors() -> dict[str, Callable[[], Any]]:
    """Arguments of a call that has two fp32 tensors of 4×6."""
    base = torch.randn(8, 12)
    return {
        "plain": lambda: torch.randn(4, 6),
        "offset": lambda: torch.randn(25)[1:].view(4, 6),
        "view": lambda: base[::2, ::2],
        "transposed": lambda: torch.randn(6, 4).t(),
        "longer": lambda: torch.randn(5, 6),
        "rank": lambda: torch.randn(4, 6, 1),
        "half": lambda: torch.randn(4, 6, dtype=torch.float16),
        "int": lambda: torch.ones(4, 6, dtype=torch.int32),
        "grad": lambda: torch.randn(4, 6, requires_grad=True),
        "not a leaf": lambda: torch.randn(4, 6, requires_grad=True) * 1,
        "parameter": lambda: torch.nn.Parameter(torch.randn(4, 6)),
        "frozen": lambda: torch.nn.Parameter(torch.randn(4, 6), requires_grad=False),
        "negated": lambda: torch.randn(4, 6, dtype=torch.complex64).conj().imag.contiguous().view(4, 6),
        "bits": lambda: torch._neg_view(torch.randn(4, 6)),
        "inference": lambda: inference(4, 6),
        "meta": lambda: torch.empty(4, 6, device="meta"),
        "zero": lambda: torch._efficientzerotensor(4, 6),
        "functional": lambda: torch._to_functional_tensor(torch.randn(4, 6)),
        "sparse": lambda: torch.eye(4, 6).to_sparse(),
        "quantized": lambda: torch.quantize_per_tensor(torch.randn(4, 6), 0.1, 0, torch.quint8),
        "subclass": lambda: torch.randn(4, 6).as_subclass(Marked),
        "none": lambda: None,
        "number": lambda: 3,
    }


class Marked(torch.Tensor):
    pass


def inference(*shape: int) -> torch.Tensor:
    with torch.inference_mode():
        return torch.randn(*shape)


KINDS = tuple(tensors())


def both_guards(
    sample: tuple[torch.Tensor, ...], sizes: list[list[int | None]], strides: list[list[int | None]]
) -> tuple[Callable[..., bool], Callable[..., bool]]:
    native_guard = native.guard(sample, sizes, strides)
    assert native_guard is not None
    theirs = signature.TensorGuards(*sample, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    return native_guard, theirs.check


def as_they_are(sample: tuple[torch.Tensor, ...]) -> tuple[Any, Any]:
    return [[*t.shape] for t in sample], [[*t.stride()] for t in sample]


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation")
@pytest.mark.parametrize("bound_for", ["plain", "view", "grad", "parameter", "frozen", "inference", "half", "bits"])
def test_guard_agrees_with_torchs_on_every_kind(bound_for: str) -> None:
    sample = (tensors()[bound_for](), torch.randn(4, 6))
    ours, theirs = both_guards(sample, *as_they_are(sample))
    accepted = []
    for kind in KINDS:
        pair = (tensors()[kind](), torch.randn(4, 6))
        expected = theirs(*pair)
        assert ours(*pair) == expected, kind
        assert ours(*pair[::-1]) == theirs(*pair[::-1]), kind
        accepted += [kind] if expected else []
    assert bound_for in accepted and len(accepted) <= 3


@pytest.mark.filterwarnings("ignore:.*nested tensors is in prototype stage")
def test_guard_turns_nested_tensors_down() -> None:  # torch's ends the process
    x = torch.randn(4, 6)
    guard = native.guard((x,), [[4, 6]], [[6, 1]])
    assert guard is not None and not guard(torch.nested.nested_tensor([torch.randn(4, 6)]))


@given(
    st.lists(st.sampled_from([None, 1, 2, 3]), min_size=1, max_size=4),
    st.lists(st.sampled_from([None, 1, 2, 3]), min_size=1, max_size=4),
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
)
def test_guard_agrees_on_sizes_that_may_vary(
    sizes: list[int | None], strides: list[int | None], shape: list[int]
) -> None:
    rank = min(len(sizes), len(strides))
    fixed, steps = [n or 2 for n in sizes[:rank]], [n or 1 for n in strides[:rank]]
    sample = (torch.empty(64).as_strided(fixed, steps),)
    ours, theirs = both_guards(sample, [sizes[:rank]], [strides[:rank]])
    for other in (sample[0], torch.empty(shape), torch.empty(64).as_strided(shape, [1] * len(shape))):
        assert ours(other) == theirs(other)


def guard_of_classes(tensors: tuple[torch.Tensor, ...]) -> Any:
    classes = SizeClasses()
    signatures = [signature.signature_of(tensor, classes) for tensor in tensors]
    sizes, strides = zip(*(each.known() for each in signatures), strict=True)
    return native.guard(tensors, sizes, strides, signature.size_table(signatures))


DIMENSION = st.sampled_from([0, 1, 2, 3, 4])


@given(st.lists(st.tuples(DIMENSION, DIMENSION, DIMENSION, DIMENSION), min_size=1, max_size=3), st.data())
def test_classes_are_those_of_the_key(layouts: list[tuple[int, ...]], data: st.DataObject) -> None:
    def tensors_of(each: list[tuple[int, ...]]) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty(128).as_strided(layout[:2], layout[2:]) for layout in each)

    def key(each: tuple[torch.Tensor, ...]) -> Any:
        return signature.arguments_key(each, [False] * len(each), False)

    first = tensors_of(layouts)
    guard = guard_of_classes(first)
    assert guard is not None and guard(*first)
    step = st.sampled_from([lambda n: n, lambda n: 2 * n, lambda n: n + (n > 1), lambda n: 2, lambda n: max(n, 3)])
    change = data.draw(st.one_of(step, st.just(None)))
    other = tensors_of(
        [tuple(data.draw(DIMENSION) if change is None else change(n) for n in layout) for layout in layouts]
    )
    assert guard(*other) == (key(other) == key(first))


def test_offsets_beyond_31_bits_are_a_class(tmp_path: Path) -> None:
    """A step of views, whose last element lies that far, and tiles beyond it."""
    assert 2**31 - 2**25 < WIDE <= 2**31 - 2**20
    memory = torch.from_file(str(tmp_path / "sparse"), shared=True, size=WIDE + 99, dtype=torch.int8)

    def view(step: int) -> torch.Tensor:
        return memory.as_strided((2,), (step,))

    narrow = guard_of_classes((view(WIDE - 1),))
    wide = guard_of_classes((view(WIDE + 5),))
    assert narrow is not None and wide is not None
    for step, fits in ((3, True), (WIDE - 1, True), (WIDE, False), (WIDE + 7, False)):
        assert (narrow(view(step)), wide(view(step))) == (fits, not fits)


def test_guard_sees_modes_and_transforms() -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    ours, theirs = both_guards((x, y), *as_they_are((x, y)))
    seen: list[tuple[bool, bool]] = []

    def look(a: torch.Tensor) -> torch.Tensor:
        seen.append((ours(a, y), theirs(a, y)))
        return a

    look(x)
    with torch.inference_mode():
        look(x)
    with torch.no_grad():
        look(x)
    with torch.autocast("cpu"):
        look(x)
    torch.vmap(look)(torch.randn(2, 4, 6))
    torch.func.grad(lambda a: look(a).sum())(x)
    look(x)
    assert [ours for ours, _ in seen] == [theirs for _, theirs in seen]
    assert [ours for ours, _ in seen] == [True, False, True, False, False, False, True]


def test_no_guard_is_made_under_a_mode_of_python() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    x = torch.randn(3)
    guard = native.guard((x,), [[3]], [[1]])
    assert guard is not None and guard(x)
    with Mode():
        assert native.guard((x,), [[3]], [[1]]) is None
        assert not guard(x)
    assert guard(x)


def test_guard_counts_its_arguments_and_wants_them_different() -> None:
    x, y = torch.randn(3), torch.randn(3)
    guard = native.guard((x, y), [[3], [3]], [[1], [1]])
    assert guard is not None
    assert guard(x, y) and guard(y, x)
    assert not guard(x, x)
    assert not guard(x) and not guard(x, y, x) and not guard()
    assert not guard(x, y=y)


def test_sharing() -> None:
    x, y = torch.randn(8), torch.randn(8)
    apart, together = native.sharing((0, 1, 2)), native.sharing((0, 1, 0))
    assert apart is not None and together is not None
    assert apart(x, y, torch.randn(8)) and not apart(x, y, x[2:]) and not apart(x, y, y.view(2, 4))
    assert together(x, y, x[2:]) and not together(x, y, torch.randn(8)) and not together(x, x, x)
    for other in (torch.empty(3).to_sparse(), 3, x.as_subclass(Marked)):
        assert not apart(x, y, other)
    assert not apart(x, y)


# --- what reaches the driver -------------------------------------------------------------------------------------------


def pointer(aligned: bool = True) -> Argument:
    return Argument(part=(torch.float32, aligned), specialized=True)


def integer(value: int, specialized: bool = True) -> Argument:
    from helion.backends.triton.execute.fast_launch import integer_class

    return Argument(part=integer_class(value, specialized), specialized=specialized)


NUMBER, FLAG, NOTHING = (Argument(part=part, specialized=True) for part in (float, bool, type(None)))


def make(
    arguments: list[Argument | None], types: tuple[str, ...] | None = None, empty: Any = (), **fields: Any
) -> Callable[..., bool] | None:
    known = {"function": 0x1234, "num_warps": 4, "num_ctas": 1, "shared": 0, "cooperative": False, "pdl": False}
    spelt = types if types is not None else tuple(map(spelling, arguments))
    stream = fields.pop("stream", lambda device: 70 + device)
    what = Binary(**{**known, **fields}, types=spelt, record=None)
    return native.launch(what, arguments, empty, stream, 7)


def spelling(argument: Argument | None) -> str:
    if argument is None or argument.part is type(None):
        return "constexpr"
    if isinstance(argument.part, tuple):
        if isinstance(argument.part[0], torch.dtype):
            return "*fp32"
        return "constexpr" if argument.part[1] else argument.part[0]
    return {float: "fp32", bool: "u1"}[argument.part]


def test_parameters_byte_by_byte(received: list[Received], driver: FakeDriver) -> None:
    x, odd = torch.randn(64), torch.randn(65)[1:]
    values = [x, 5, odd, -7, 1, 48, 2**40 + 1, -(2**40), 2**63 + 16, 0.1, True, None, -math.inf, False]
    arguments: list[Argument | None] = [
        pointer(),
        integer(5),
        pointer(False),
        integer(-7),
        integer(1),
        integer(48),
        integer(2**40 + 1),
        integer(-(2**40)),
        integer(2**63 + 16),
        NUMBER,
        FLAG,
        NOTHING,
        NUMBER,
        FLAG,
    ]
    arguments.insert(2, None)  # a tl.constexpr is no argument of the launch at all
    launch = make(arguments, shared=4096, num_warps=8)
    assert launch is not None
    seen: list[list[bytes]] = []
    driver.on_launch = lambda launched: (
        received.append(launched),
        seen.append([launched.parameter(i) for i in range(14)]),
    )
    assert launch(3, 2, 5, *values) is True
    (launched,) = received
    assert (launched.grid, launched.block) == ((3, 2, 5), (256, 1, 1))
    assert (launched.shared, launched.stream, launched.function) == (4096, 77, 0x1234)
    assert launched.attributes == ()
    expected = [
        (x.data_ptr(), "Q"),
        (5, "i"),
        (odd.data_ptr(), "Q"),
        (-7, "i"),
        (48, "i"),
        (2**40 + 1, "q"),
        (-(2**40), "q"),
        (2**63 + 16, "Q"),
        (0.1, "f"),
        (True, "?"),
        (-math.inf, "f"),
        (False, "?"),
        (0, "Q"),  # global scratch memory
        (0, "Q"),  # the profiler's
    ]
    for raw, (value, code) in zip(seen[0], expected, strict=True):
        packed = struct.pack(f"<{code}", value)
        assert raw[: len(packed)] == packed


@pytest.mark.parametrize(
    ("fields", "attributes"),
    [
        ({}, ()),
        ({"pdl": True}, ((PDL, 1, 0, 0),)),
        ({"cooperative": True}, ((COOPERATIVE, 1, 0, 0),)),
        ({"num_ctas": 2}, ((CLUSTER, 2, 1, 1), (SPREAD, 1, 0, 0))),
        (
            {"num_ctas": 8, "pdl": True, "cooperative": True},
            ((PDL, 1, 0, 0), (COOPERATIVE, 1, 0, 0), (CLUSTER, 8, 1, 1), (SPREAD, 1, 0, 0)),
        ),
    ],
)
def test_attributes_of_the_launch(received: list[Received], fields: dict[str, Any], attributes: Any) -> None:
    launch = make([pointer()], **fields)
    assert launch is not None
    for _ in range(2):
        assert launch(6, 1, 1, torch.randn(4))
        assert received[-1].attributes == attributes
        assert received[-1].grid == (6 * fields.get("num_ctas", 1), 1, 1)


@pytest.mark.parametrize("fields", [{"num_ctas": 16}, {"shared": 229 * 1024}, {"num_warps": 0}])
def test_launches_with_unknown_attributes_are_left_to_triton(received: list[Received], fields: dict[str, Any]) -> None:
    assert make([pointer()], **fields) is None


@pytest.mark.parametrize(
    "types", [("*fp32", "fp64", "i32"), ("*fp32", "fp32", "i64"), ("fp32", "fp32", "i32"), ("*fp32", "fp32")]
)
def test_types_must_be_those_that_triton_compiled_for(received: list[Received], types: tuple[str, ...]) -> None:
    arguments: list[Argument | None] = [pointer(), NUMBER, integer(5)]
    assert make(arguments, ("*fp32", "fp32", "i32")) is not None
    assert make(arguments, types) is None


def test_descriptors_and_tuples_are_left_to_triton(received: list[Received]) -> None:
    assert make([pointer()], ("tensordesc<fp32[32, 32]>",)) is None
    assert make([Argument(part=complex, specialized=True)], ("fp32",)) is None


ALIGNED, ODD = torch.randn(16), torch.randn(17)[1:]


@pytest.mark.parametrize(
    ("argument", "right", "wrong"),
    [
        (
            pointer(),
            [ALIGNED, torch.nn.Parameter(ALIGNED), torch.empty(0)],
            [ODD, 3, None, ALIGNED.as_subclass(Marked)],
        ),
        (pointer(False), [ODD], [ALIGNED, ALIGNED.data_ptr() + 4]),
        (pointer(), [ALIGNED], [torch.eye(2).to_sparse()]),
        (integer(1), [1], [2, 16, 0, True, 1.0, ALIGNED]),
        (integer(16), [16, 0, -16, 2**31 - 16], [1, 17, 2**31, -(2**31) - 16, 2**63]),
        (integer(17), [17, -1, 2**31 - 1], [1, 16, 2**31 + 1, -(2**31) - 1, True]),
        (integer(17, False), [17, 16, 1, -(2**31)], [2**31, -(2**31) - 1]),
        (integer(2**31 + 1), [2**31 + 1, -(2**31) - 1, 2**63 - 1], [2**31 + 16, 17, 2**63 + 1]),
        (integer(2**63 + 1), [2**63 + 1, 2**64 - 1], [2**63, 2**64, -(2**64), 17]),
        (NUMBER, [1.5, math.nan], [1, True, None, torch.tensor(1.0)]),
        (FLAG, [True, False], [1, 0, None]),
        (NOTHING, [None], [0, ALIGNED]),
    ],
)
def test_arguments_of_other_classes_are_transposed_down(
    received: list[Received], argument: Argument, right: list[Any], wrong: list[Any]
) -> None:
    launch = make([argument])
    assert launch is not None
    assert [launch(1, 1, 1, value) for value in right] == [True] * len(right)
    assert [launch(1, 1, 1, value) for value in wrong] == [False] * len(wrong)
    assert len(received) == len(right)


@pytest.mark.parametrize(
    "grid", [(0, 1, 1), (1, 0, 1), (1, 1, -1), (2**31, 1, 1), (2**70, 1, 1), (True, 1, 1), (1.0, 1, 1)]
)
def test_unusual_grids_are_transposed_down(received: list[Received], grid: tuple[Any, ...]) -> None:
    launch = make([pointer()])
    assert launch is not None
    assert launch(*grid, ALIGNED) is False
    assert launch(2**31 - 1, 1, 1, ALIGNED) is True
    assert len(received) == 1


def test_wrong_numbers_of_arguments_are_transposed_down(received: list[Received]) -> None:
    launch = make([pointer()])
    assert launch is not None
    assert not launch(1, 1, 1) and not launch(1, 1, 1, ALIGNED, ALIGNED) and not launch() and not launch(1, 1, 1, x=1)
    assert not received


def test_knobs_and_hooks_turn_a_launch_down(received: list[Received]) -> None:
    knobs: dict[str, Any] = {}
    hooks: list[Any] = []
    launch = make([pointer()], empty=[knobs, hooks])
    assert launch is not None
    assert launch(1, 1, 1, ALIGNED)
    knobs["debug"] = True
    assert not launch(1, 1, 1, ALIGNED)
    knobs.clear()
    hooks.append(print)
    assert not launch(1, 1, 1, ALIGNED)
    hooks.clear()
    assert launch(1, 1, 1, ALIGNED)
    assert make([pointer()], empty=[None]) is None


def test_a_thread_without_context_is_left_to_triton(received: list[Received], driver: FakeDriver) -> None:
    launch = make([pointer()])
    assert launch is not None
    driver.set_context(0)
    assert launch(1, 1, 1, ALIGNED) is False
    assert not received


def test_errors_are_raised_as_triton_does(received: list[Received], driver: FakeDriver) -> None:
    launch = make([pointer()])
    assert launch is not None
    driver.result = 2
    with pytest.raises(RuntimeError, match=r"^Triton Error \[CUDA\]: out of fake memory$"):
        launch(1, 1, 1, ALIGNED)

    def no_stream(device: int) -> int:
        raise KeyError(device)

    refused = make([pointer()], stream=no_stream)
    assert refused is not None
    with pytest.raises(KeyError, match="7"):
        refused(1, 1, 1, ALIGNED)


def test_no_driver_means_no_launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "DRIVER", str(tmp_path / "libcuda.so.1"))
    assert make([pointer()]) is None


def test_references(received: list[Received]) -> None:
    hooks: list[Any] = []
    launch = make([pointer(), integer(2**40), NUMBER], empty=[hooks])
    guard = native.guard((ALIGNED,), [[16]], [[1]])
    assert launch is not None and guard is not None
    watched: list[Any] = [ALIGNED, 2**41, 1.25, hooks]
    before = [sys.getrefcount(each) for each in watched]
    for _ in range(100):
        launch(1, 1, 1, *watched[:3])
        launch(1, 1, 1, ODD, *watched[1:3])
        guard(ALIGNED)
    assert [sys.getrefcount(each) for each in watched] == before
    assert gc.is_tracked(launch)
    del launch
    gc.collect()
    assert sys.getrefcount(hooks) < before[3]


def test_threads_share_a_launch(received: list[Received], driver: FakeDriver) -> None:
    launch = make([pointer(), integer(17)])
    assert launch is not None
    seen: list[tuple[bytes, bytes]] = []
    driver.on_launch = lambda launched: seen.append((launched.parameter(0), launched.parameter(1)[:4]))
    inputs = [(torch.randn(4), 17 + 2 * i) for i in range(8)]

    def work(at: int) -> bool:
        return all(launch(1, 1, 1, *inputs[at]) for _ in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))
    expected = {(struct.pack("<Q", x.data_ptr()), struct.pack("<i", n)) for x, n in inputs}
    assert set(seen) == expected and len(seen) == 400


# --- which binaries are launched natively -------------------------------------------------------------------------------


def compiled_as(**fields: Any) -> tuple[Any, Any]:
    run = type("CudaLauncher", (), {})()
    known = {
        "global_scratch_size": 0,
        "profile_scratch_size": 0,
        "launch_cooperative_grid": False,
        "launch_pdl": True,
    }
    for name, value in {**known, **fields}.items():
        setattr(run, name, value)
    source = types.SimpleNamespace(signature={"x": "*fp32", "n": "constexpr"})
    return types.SimpleNamespace(packed_metadata=(8, 2, 1024), src=source), run


def test_what_is_known_of_a_binary() -> None:
    found = native.binary(*compiled_as(), 99)
    assert found == Binary(
        function=99,
        num_warps=8,
        num_ctas=2,
        shared=1024,
        cooperative=False,
        pdl=True,
        types=("*fp32", "constexpr"),
        record=None,
    )


@pytest.mark.parametrize("fields", [{"global_scratch_size": 8}, {"profile_scratch_size": 8}, {"gsan_enabled": True}])
def test_binaries_with_scratch_memory_are_left_to_triton(fields: dict[str, Any]) -> None:
    assert native.binary(*compiled_as(**fields), 99) is None


@pytest.mark.parametrize("version", ["3.5.1", "3.10.0", "4.0.0"])
def test_unknown_tritons_launch_themselves(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", version)
    assert native.binary(*compiled_as(), 99) is None


@pytest.mark.parametrize("version", ["3.6.0", "3.9.0+git123"])
def test_known_tritons(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", version)
    assert native.binary(*compiled_as(), 99) is not None


def test_other_launchers_are_not_gone_around() -> None:
    compiled, run = compiled_as()
    assert native.binary(compiled, types.SimpleNamespace(**vars(run)), 99) is None
    odd = copy.copy(compiled)
    odd.packed_metadata = (8, 2)
    assert native.binary(odd, run, 99) is None
    odd = copy.copy(compiled)
    odd.src = types.SimpleNamespace(signature={"x": ("*fp32", "i32")})
    assert native.binary(odd, run, 99) is None


# --- building ----------------------------------------------------------------------------------------------------------


def adder() -> helion.Kernel:
    @helion.kernel(config=helion.Config(block_sizes=[32]))
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] + y[tile]
        return out

    return add


def native_parts(kernel: helion.Kernel) -> set[str]:
    cells = [type(cell.cell_contents).__name__ for cell in kernel.__call__.__closure__ or ()]
    return {"Guard", "Launch"}.intersection(cells)


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Nothing has been built yet, and the cache is an empty folder."""
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    build._attempted.cache_clear()
    yield tmp_path
    build._attempted.cache_clear()


def run_stubbed(kernel: helion.Kernel) -> int:
    with stub_driver() as stub:
        for _ in range(3):
            kernel(torch.randn(64), torch.randn(64))
        parts = native_parts(kernel)
    assert len(stub.launches) == 3
    return len(parts)


def test_the_knob(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_stubbed(adder()) == 2
    monkeypatch.setenv("HELION_NATIVE_LAUNCH", "0")
    assert run_stubbed(adder()) == 0
    monkeypatch.delenv("HELION_NATIVE_LAUNCH")
    assert run_stubbed(adder()) == 0


@pytest.mark.parametrize(
    ("attribute", "value", "said"),
    [
        ("COMPILERS", ("no-such-compiler",), "no C++ compiler (no-such-compiler) in PATH; install g++"),
        ("COMPILERS", ("false",), "/false failed (1)"),
        ("SOURCE", Path(__file__), "error"),
    ],
)
def test_without_a_compiler_calls_go_through_python(
    unbuilt: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    attribute: str,
    value: Any,
    said: str,
) -> None:
    monkeypatch.setattr(build, attribute, value)
    with caplog.at_level(logging.WARNING, "helion"):
        assert run_stubbed(adder()) == 0
        assert run_stubbed(adder()) == 0
    (record,) = caplog.records
    assert record.getMessage().startswith("no native launch, calls go through Python: ")
    assert said in record.getMessage()
    assert not native.wanted()


def test_other_platforms(unbuilt: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with caplog.at_level(logging.WARNING, "helion"):
        assert not native.wanted()
    assert "it needs a 64-bit CPython on Linux" in caplog.text


def test_an_extension_that_reads_tensors_wrongly_is_not_used(
    unbuilt: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = build.said_by_torch
    monkeypatch.setattr(build, "said_by_torch", lambda tensor: (*right(tensor)[:-1], 0))
    with caplog.at_level(logging.WARNING, "helion"):
        assert not native.wanted()
    assert "it reads a tensor as" in caplog.text


def test_kept_built_and_built_again_if_damaged(unbuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native.wanted()
    (kept,) = unbuilt.glob("native/*/helion_native*.so")
    assert [*kept.parent.iterdir()] == [kept]  # nothing of the build is left
    build._attempted.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(build, "build", None)
        assert native.wanted()
    # another file: this one is mapped into the process
    other = kept.with_name("other.so")
    monkeypatch.setattr(build, "path_for", lambda *args: other)
    other.write_bytes(kept.read_bytes()[:500])
    build._attempted.cache_clear()
    assert native.wanted()
    assert other.stat().st_size > 500


@pytest.mark.prove
def test_processes_and_threads_build_at_once(unbuilt: Path) -> None:
    root, compiler = build._checked_platform(), build.compiler()
    flags = build._flags(root)
    path = build.path_for(build.source(), compiler, flags)
    assert path.is_relative_to(files.cache_dir())
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: build.build(compiler, flags, path), range(2)))
        assert len(set(pool.map(lambda _: id(build.module()), range(2)))) == 1
    assert [*path.parent.iterdir()] == [path]


def test_the_key_holds_what_the_code_depends_on(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [build.path_for("source", "g++", [])]
    paths.append(build.path_for("other", "g++", []))
    paths.append(build.path_for("source", "clang++", []))
    paths.append(build.path_for("source", "g++", ["-O3"]))
    for owner, name in ((torch, "__version__"), (torch.version, "git_version"), (triton, "__version__")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, "other")
            paths.append(build.path_for("source", "g++", []))
    assert len(set(paths)) == len(paths)
