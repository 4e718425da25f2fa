"""Calls after the first, on a stub of the driver: which code they reach, and when they must not reach what was there."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import helion
import helion.language as hl
from helion._testing import import_path
from helion.backends.stub import Launch, StubDriver
from helion.runtime import bind_times, stub_driver
from helion.runtime.call import guards, signature
from helion.runtime.dispatch import MAX_VERSIONS, MISSED

WIDTH = 64
CONFIG = helion.Config(block_sizes=[32])


@pytest.fixture(scope="module", params=["python", pytest.param("native", marks=pytest.mark.cxx)], autouse=True)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """All of it with guards and launches in Python, and with native ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELION_NATIVE_LAUNCH", "1" if request.param == "native" else "0")
        yield request.param


@pytest.fixture
def stub() -> Iterator[StubDriver]:
    with stub_driver() as entered:
        yield entered


def adder(**options: Any) -> helion.Kernel:
    @helion.kernel(config=CONFIG, **options)
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] + y[tile]
        return out

    return add


def runs_straight(kernel: helion.Kernel) -> bool:
    """Whether calls go to written code, which may still turn them down."""
    code = getattr(kernel.__call__, "__code__", None)
    return code is not None and code.co_filename.startswith("<helion dispatch")


@pytest.fixture
def no_slow_path(monkeypatch: pytest.MonkeyPatch) -> Callable[[helion.Kernel], None]:
    """Forbids a kernel to go the full way from now on."""

    def forbid(kernel: helion.Kernel) -> None:
        def refuse(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("went the full way")

        kernel.variants.__dict__["find"] = refuse

    return forbid


# --- the stub ----------------------------------------------------------------------------------------------------------


def test_launches_are_listed(stub: StubDriver) -> None:
    add = adder()
    out = add(torch.randn(100), torch.randn(100))
    add(torch.randn(100), torch.randn(100))
    assert out.shape == (100,)
    assert stub.launches == 2 * [Launch(name="_helion_add", grid=(4, 1, 1), num_args=3)]


def test_kernels_that_ran_before_are_stubbed_and_run_again_after(capsys: pytest.CaptureFixture[str]) -> None:
    add = adder()
    x, y = torch.randn(100), torch.randn(100)
    bound = add.bind((x, y))
    assert torch.equal(add(x, y), x + y)
    with stub_driver() as entered:
        add(x, y)
        bound(x, y)
        add(x, y)
        assert len(entered.launches) == 3
    assert torch.equal(add(x, y), x + y)
    assert torch.equal(bound(x, y), x + y)
    assert len(entered.launches) == 3


def test_stubs_nest(stub: StubDriver) -> None:
    add = adder()
    x, y = torch.randn(100), torch.randn(100)
    add(x, y)
    with stub_driver() as inner:
        add(x, y)
        add(x, y)
    add(x, y)
    assert len(inner.launches) == 2
    assert len(stub.launches) == 4


def test_left_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), stub_driver():
        _ = 1 / 0
    x = torch.randn(40)
    assert torch.equal(adder()(x, x), x + x)


def test_module_run_on_its_own_is_stubbed(stub: StubDriver) -> None:
    add = adder()
    x, y = torch.randn(100), torch.randn(100)
    function = add.bind((x, y)).compile_config()
    function(x, y, _launcher=helion.runtime.default_launcher)
    assert stub.launches == [Launch(name="_helion_add", grid=(4, 1, 1), num_args=3)]


def test_numbers_that_are_compiled_in_do_not_count(stub: StubDriver) -> None:
    @helion.kernel(config=CONFIG, static_shapes=False)
    def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * n
        return out

    x = torch.randn(100)
    for n in (17, 1, 16, 17, 1):
        scaled(x, n)
    counts = [launch.num_args for launch in stub.launches]
    assert counts == [counts[0], counts[0] - 1, counts[0], counts[0], counts[0] - 1]


# --- the straight line -------------------------------------------------------------------------------------------------


def test_second_call_looks_nothing_up(stub: StubDriver, no_slow_path: Any) -> None:
    add = adder()
    add(torch.randn(100), torch.randn(100))
    assert runs_straight(add)
    no_slow_path(add)
    assert add(torch.randn(100), torch.randn(100)).shape == (100,)
    assert add(x=torch.randn(100), y=torch.randn(100)).shape == (100,)
    with pytest.raises(AssertionError, match="full way"):
        add(torch.randn(101), torch.randn(101))


@pytest.mark.parametrize("count", [2, 5, 20])
def test_many_signatures_are_found_again(stub: StubDriver, no_slow_path: Any, count: int) -> None:
    add = adder()
    sizes = [32 * (i + 1) for i in range(count)]
    for n in sizes:
        add(torch.randn(n), torch.randn(n))
    no_slow_path(add)
    stub.launches.clear()
    for n in [*sizes, *sizes[::-1]]:
        add(torch.randn(n), torch.randn(n))
    assert [launch.grid[0] for launch in stub.launches] == [n // 32 for n in [*sizes, *sizes[::-1]]]


def variants() -> list[torch.Tensor]:
    """Tensors that differ in one thing each from the first."""
    base = torch.randn(64)
    return [
        base,
        torch.randn(96),
        base.double(),
        base.bfloat16(),
        torch.randn(128)[::2],
        torch.randn(65)[1:],
        base.clone().requires_grad_(),
        torch.nn.Parameter(base.clone()),
        torch.randn(1),
        base.to(torch.int32),
    ]


@settings(max_examples=8)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=12), st.booleans(), st.booleans())
def test_same_launches_as_the_slow_path(calls: list[tuple[int, int]], static: bool, inference: bool) -> None:
    x, y = variants(), variants()
    add = adder(static_shapes=static)
    with stub_driver() as entered, torch.inference_mode(inference):
        for i, j in calls:
            if x[i].shape != y[j].shape:
                continue
            for _ in range(2):
                entered.launches.clear()
                out = add(x[i], y[j])
                full = add.bind((x[i], y[j]))(x[i], y[j])
                first, second = entered.launches
                assert first is second or first == second
                assert (out.dtype, out.shape, out.stride()) == (full.dtype, full.shape, full.stride())


def test_dynamic_sizes_keep_to_their_classes(stub: StubDriver) -> None:
    @helion.kernel(config=helion.Config(block_sizes=[16, 16]), static_shapes=False)
    def copy_of(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size()):
            out[tile] = x[tile]
        return out

    for shape in ((40, 50), (48, 90), (40, 40), (1, 50), (50, 1), (48, 90), (40, 50)):
        x = torch.randn(shape)
        copy_of(x)
        assert stub.launches[-1].grid[0] == -(-shape[0] // 16) * -(-shape[1] // 16)
    keys = {copy_of.specialization_key((torch.randn(s),)) for s in ((40, 50), (40, 40), (1, 50), (50, 1))}
    assert len(copy_of.variants) == 4
    assert len(copy_of.variants._leaders) == len(keys) == 1
    compiled = {copy_of.variant((torch.randn(s),)) for s in ((40, 50), (40, 40), (1, 50), (50, 1))}
    assert len(compiled) == 2  # that of equal sizes knows them to be equal


def test_static_dimensions_of_dynamic_kernels(stub: StubDriver) -> None:
    add = adder(static_shapes=False)
    x, fixed = torch.randn(100), torch.randn(100)
    fixed._dynamo_static_indices = {0}  # what torch._dynamo.mark_static leaves
    for pair in ((x, x.clone()), (fixed, x), (x, x.clone()), (fixed, x)):
        add(*pair)
    assert len(add.variants) == 2


def test_numbers_count_by_type_and_width(stub: StubDriver) -> None:
    @helion.kernel(config=CONFIG)
    def scaled(x: torch.Tensor, n: Any, unused: Any = None) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * n
        return out

    x = torch.randn(64)
    for n in (3, 4, 3.5, True, 2**40, 3, 2.5, False, 2**41):
        scaled(x, n)
    assert len(scaled.variants) == 4
    scaled(x, 3, None)
    scaled(x, 3, "a")
    scaled(x, 3, "b")
    scaled(x, 3, torch.float32)
    assert len(scaled.variants) == 7


@pytest.mark.parametrize("values", [(3, 4, 3), (0.5, 0.25, 0.5), (0.0, -0.0, 0.0), (True, 1, True), ("a", "b", "a")])
def test_constants_count_by_value(stub: StubDriver, values: tuple[Any, ...]) -> None:
    @helion.kernel(config=CONFIG)
    def repeated(x: torch.Tensor, n: hl.constexpr) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile]
        return out

    x = torch.randn(64)
    for value in values:
        repeated(x, value)
        bound = repeated.bind((x, value))
        constant = dict(zip(bound.kernel.signature.parameters, bound.variant.specialized.sample(), strict=True))["n"]
        assert constant == value
        assert type(constant) is type(value)


def test_zeros_and_nan_are_found_again(stub: StubDriver, no_slow_path: Any) -> None:
    @helion.kernel(config=CONFIG)
    def repeated(x: torch.Tensor, n: hl.constexpr) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile]
        return out

    x = torch.randn(64)
    for value in (0.0, -0.0, float("nan")):
        repeated(x, value)
    assert len(repeated.variants) == 3
    no_slow_path(repeated)
    for value in (0.0, -0.0, float("nan"), 0.0, -float("-0.0")):
        repeated(x, value)
    with pytest.raises(AssertionError, match="full way"):
        repeated(x, -float("nan"))


def _mapped(x: torch.Tensor, f: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = f(x[tile])
    return out


def _mapped_by_constant(x: torch.Tensor, f: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = f(x[tile])
    return out


@pytest.mark.parametrize("host", [_mapped, _mapped_by_constant])
def test_functions_count_by_code(host: Callable[..., Any], stub: StubDriver, no_slow_path: Any) -> None:
    mapped = helion.kernel(host, config=CONFIG)
    x = torch.randn(64)
    functions = [lambda v: v + 1, lambda v: v * 2]
    for f in functions:
        mapped(x, f)
    assert len(mapped.variants) == 2
    no_slow_path(mapped)
    for f in functions:
        mapped(x, f)
    with pytest.raises(AssertionError, match="full way"):
        mapped(x, lambda v: v + 3)


def test_what_constant_functions_close_over_counts_by_value(stub: StubDriver, no_slow_path: Any) -> None:
    def times(scale: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda v: v * scale

    mapped = helion.kernel(_mapped_by_constant, config=CONFIG)
    x = torch.randn(64)
    mapped(x, times(2))
    no_slow_path(mapped)
    mapped(x, times(2))
    for other in (times(3), times(2.0), times(True)):
        with pytest.raises(AssertionError, match="full way"):
            mapped(x, other)


@pytest.mark.parametrize("static", [True, False])
def test_what_functions_close_over_counts_too(stub: StubDriver, no_slow_path: Any, static: bool) -> None:
    @helion.kernel(config=CONFIG, static_shapes=static)
    def mapped(x: torch.Tensor, f: Callable[..., torch.Tensor]) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = f(x[tile], tile)
        return out

    def plus(bias: torch.Tensor, scale: Any) -> Callable[..., torch.Tensor]:
        return lambda v, tile: v * scale + bias[tile]

    x, bias = torch.randn(64), torch.randn(64)
    mapped(x, plus(bias, 2))
    mapped(x, plus(bias, 3))
    no_slow_path(mapped)
    mapped(x, plus(torch.randn(64), 2))
    mapped(x, plus(torch.randn(64), 3))
    for other in (
        plus(bias, 4),
        plus(bias, 2.0),
        plus(bias.double(), 2),
        plus(torch.randn(128)[::2], 2),
        plus(x, True),
    ):
        with pytest.raises(AssertionError, match="full way"):
            mapped(x, other)
    assert {launch.num_args for launch in stub.launches} == {stub.launches[0].num_args}


def test_the_same_tensor_twice(stub: StubDriver, no_slow_path: Any) -> None:
    add = adder()
    x, y = torch.randn(64), torch.randn(64)
    add(x, x)
    add(x, y)
    no_slow_path(add)
    add(y, y)
    add(y, x)


def test_aliases_of_written_tensors_are_told_apart(stub: StubDriver) -> None:
    @helion.kernel(config=CONFIG)
    def increment(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for tile in hl.tile(x.size(0)):
            x[tile] = x[tile] + y[tile]
        return x

    both = torch.randn(128)
    pairs = ((torch.randn(64), torch.randn(64)), (both[:64], both[64:]))
    for pair in (*pairs, *pairs):
        increment(*pair)
    assert len(increment.variants) == 2
    lines = list(increment.calls._entries.values())
    assert len(lines) == 2
    for pair in pairs:
        accepted = [line.probe(*pair) is not MISSED for line in lines]
        assert accepted.count(True) == 1


class Subclass(torch.Tensor):
    pass


def test_subclasses_take_the_slow_path(stub: StubDriver) -> None:
    add = adder()
    x, y = torch.randn(64), torch.randn(64)
    add(x, y)
    line = next(iter(add.calls._entries.values()))
    assert line.probe(x.as_subclass(Subclass), y) is MISSED
    assert line.probe(x, y) is not MISSED


def test_vmapped_tensors_do_not_pass_the_guard(stub: StubDriver) -> None:
    add = adder()
    x, y = torch.randn(64), torch.randn(64)
    add(x, y)
    line = next(iter(add.calls._entries.values()))
    seen: list[bool] = []

    def inner(v: torch.Tensor) -> torch.Tensor:
        seen.append(line.probe(v, y) is MISSED)
        return v

    torch.vmap(inner)(torch.randn(3, 64))
    assert seen == [True]


def test_guards_without_torch_internals(stub: StubDriver, monkeypatch: pytest.MonkeyPatch, no_slow_path: Any) -> None:
    monkeypatch.setattr(guards, "TensorGuards", None)
    for static in (True, False):
        add = adder(static_shapes=static)
        good = [torch.randn(64), torch.randn(64)]
        add(*good)
        no_slow_path(add)
        add(*good)
        for bad in (good[0].double(), torch.randn(1), torch.randn(128)[::2], good[0].as_subclass(Subclass), 3):
            with pytest.raises(AssertionError, match="full way"):
                add(good[0], bad)


def test_parameters_with_names_of_builtins(stub: StubDriver, no_slow_path: Any) -> None:
    @helion.kernel(config=CONFIG, static_shapes=False)
    def odd(type: torch.Tensor, len: torch.Tensor, int: int, hasattr: float) -> torch.Tensor:
        for tile in hl.tile(type.size(0)):
            type[tile] = len[tile] * int + hasattr
        return type

    odd(torch.randn(64), torch.randn(64), 3, 0.5)
    no_slow_path(odd)
    odd(torch.randn(64), torch.randn(64), 4, 0.25)
    odd(torch.randn(96), torch.randn(96), 4, 0.25)
    assert [launch.grid[0] for launch in stub.launches] == [2, 2, 3]


@helion.kernel(config=CONFIG)
def talkative(x: torch.Tensor, n: int) -> torch.Tensor:
    """Two
    lines."""
    assert n > 0, f"""n is {n},
but must be positive"""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * n
    return out


def test_texts_of_several_lines_stay_as_they_are(stub: StubDriver) -> None:
    x = torch.randn(64)
    talkative(x, 3)
    assert runs_straight(talkative)
    with pytest.raises(AssertionError) as caught:
        talkative(x, -1)
    assert "n is -1,\nbut must be positive" in str(caught.value)


# --- what ends it ------------------------------------------------------------------------------------------------------

LENGTH = 64


@helion.kernel(config=CONFIG)
def up_to_length(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(LENGTH):
        out[tile] = x[tile]
    return out


def test_changed_globals(stub: StubDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(256)
    grids = []
    for length in (64, 64, 128, 128, 64, 96):
        monkeypatch.setitem(up_to_length.fn.__globals__, "LENGTH", length)
        up_to_length(x)
        grids.append(stub.launches[-1].grid[0])
    assert grids == [2, 2, 4, 4, 2, 3]


def test_global_that_alternates_for_ever(stub: StubDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(256)
    for i in range(3 * MAX_VERSIONS):
        length = 32 * (1 + i % 5)
        monkeypatch.setitem(up_to_length.fn.__globals__, "LENGTH", length)
        up_to_length(x)
        assert stub.launches[-1].grid[0] == length // 32


def test_set_config(stub: StubDriver) -> None:
    add = adder()
    x, y = torch.randn(128), torch.randn(128)
    add(x, y)
    add(x, y)
    add.bind((x, y)).set_config(helion.Config(block_sizes=[64]))
    add(x, y)
    add(x, y)
    assert [launch.grid[0] for launch in stub.launches] == [4, 4, 2, 2]


def test_reset(stub: StubDriver) -> None:
    add = adder()
    x, y = torch.randn(128), torch.randn(128)
    add(x, y)
    former = add.bind((x, y))
    add.reset()
    assert not runs_straight(add)
    add(x, y)
    assert runs_straight(add)
    assert add.bind((x, y)) is not former


@pytest.mark.parametrize("replace", [False, True])
def test_settings(stub: StubDriver, replace: bool) -> None:
    add = adder()
    x, y = torch.randn(128), torch.randn(128)
    add(x, y)
    if replace:
        changed = copy.copy(add.settings)
        changed.ref_mode = helion.RefMode.EAGER
        add.settings = changed
    else:
        add.settings.ref_mode = helion.RefMode.EAGER
    assert torch.equal(add(x, y), x + y)
    assert len(stub.launches) == 1
    add.settings.ref_mode = helion.RefMode.OFF
    add(x, y)
    assert len(stub.launches) == 2


def test_wrong_calls_raise_the_same_before_and_after(stub: StubDriver) -> None:
    add = adder()
    x, y = torch.randn(64), torch.randn(64)

    def errors() -> list[str]:
        messages = []
        for args, kwargs in (((x,), {}), ((x, y, y), {}), ((), {}), ((), {"y": y})):
            with pytest.raises(TypeError) as caught:
                add(*args, **kwargs)
            messages.append(str(caught.value))
        with pytest.raises(TypeError, match="unexpected keyword (argument )?'z'"):
            add(x, y, z=y)
        return messages

    before = errors()
    add(x, y)
    assert runs_straight(add)
    assert errors() == before


def test_key_function_runs_once_per_call(stub: StubDriver) -> None:
    calls: list[int] = []

    def key(*args: Any) -> int:
        calls.append(1)
        return 0

    add = adder(key=key)
    for expected in (1, 2, 3):
        add(torch.randn(64), torch.randn(64))
        assert len(calls) == expected
    assert len(stub.launches) == 3


def test_binds_are_counted(stub: StubDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bind_times, "ENABLED", True)
    monkeypatch.setattr(bind_times, "_TIMES", {})
    add = adder()
    for _ in range(3):
        add(torch.randn(64), torch.randn(64))
    add.bind((torch.randn(64), torch.randn(64)))
    assert bind_times.counts() == {"add": 4}
    assert "add" in bind_times.table()


def test_threads(stub: StubDriver) -> None:
    add = adder()
    sizes = (32, 64, 96, 128)
    interval = sys.getswitchinterval()
    barrier = threading.Barrier(4)

    def work(seed: int) -> None:
        barrier.wait()
        for i in range(150):
            n = sizes[(i * (seed + 1)) % len(sizes)]
            assert add(torch.randn(n), torch.randn(n)).shape == (n,)
            if seed == 0 and i % 40 == 39:
                add.calls.forget()

    for n in sizes:
        add(torch.randn(n), torch.randn(n))
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(work, seed) for seed in range(4)]:
                done.result()
    finally:
        sys.setswitchinterval(interval)
    assert len(stub.launches) == 604
    assert {launch.grid[0] for launch in stub.launches} == {1, 2, 3, 4}


def test_torch_compile_takes_a_call_into_its_graph(stub: StubDriver) -> None:
    add = adder()
    graphs: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return add(x + 1, y) * 2

    compiled = torch.compile(twice, backend=backend)
    x, y = torch.randn(64), torch.randn(64)
    for _ in range(3):
        assert compiled(x, y).shape == (64,)
    assert len(graphs) == 1
    assert len(stub.launches) == 3
    with stub_driver():
        pass
    add.reset()


# --- keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("static", [True, False])
def test_keys_of_concrete_and_other_tensors_agree(static: bool) -> None:
    tensors = [torch.randn(4, 1, 5), torch.randn(0), torch.randn(8, 8).t(), torch.tensor(1.0), torch.ones(3).bool()]
    others = [t.as_subclass(Subclass) for t in tensors]
    at = [False] * len(tensors)
    concrete = signature.arguments_key(tensors, at, static)
    safe = signature.arguments_key(others, at, static)
    assert concrete == safe
    assert hash(concrete) == hash(safe)
    assert isinstance(concrete, tuple)


@pytest.mark.parametrize("value", [1, 2**31, -(2**31), 1.5, 1e30, float("nan"), True, None, "a", torch.float16])
@pytest.mark.parametrize("constant", [False, True])
def test_keys_of_numbers_agree(value: Any, constant: bool) -> None:
    fast, _ = signature.arguments_key([value], [constant], True)
    assert fast == signature.Keys(True).of(value, constant)


def test_shared_memory_is_part_of_the_key() -> None:
    base = torch.randn(8)
    at = [False, False]
    apart = signature.arguments_key([torch.randn(4), torch.randn(4)], at, True)
    shared = signature.arguments_key([base[:4], base[4:]], at, True)
    assert apart != shared
    assert shared[-1] == (0, 0)


def test_source_of_written_code_can_be_read(stub: StubDriver, tmp_path: Path) -> None:
    @helion.kernel(config=CONFIG)
    def checked(x: torch.Tensor, n: int) -> torch.Tensor:
        assert n > 0, "n must be positive"
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * n
        return out

    x = torch.randn(64)
    checked(x, 3)
    with pytest.raises(AssertionError, match="n must be positive") as caught:
        checked(x, -1)
    assert any("assert n > 0" in str(entry.statement) for entry in caught.traceback)


@pytest.mark.cxx
def test_benchmark_prints_a_table() -> None:
    benchmark = import_path(Path(__file__).resolve().parents[2] / "benchmarks" / "dispatch.py")
    (title, rows), *_ = benchmark.measure(rounds=1, calls=2)
    lines = benchmark.text_of(title, rows).splitlines()
    assert lines[0].split()[-6:] == ["2", "tensors", "8", "tensors", "16", "tensors"]
    assert [len(row.microseconds) for row in rows] == [3] * 8
    assert [row.label for row in rows[:4]] == ["kernel(...)", "  its goal", "kernel(...), native", "  its goal"]


def test_a_profile_names_the_kernel(stub: StubDriver) -> None:
    add, x = adder(), torch.randn(WIDTH)
    add(x, x)
    with torch.profiler.profile() as seen:
        for _ in range(MAX_VERSIONS + 1):
            add(x, x)
    assert {event.key: event.count for event in seen.key_averages()}["helion::add"] == MAX_VERSIONS + 1
    assert runs_straight(add) and len(stub.launches) == MAX_VERSIONS + 2


FACTORS = [2.0, 3.0]


def test_calls_do_not_compare_values_in_lists_of_the_kernel() -> None:
    @helion.kernel(config=CONFIG)
    def scaled(x):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            parts = [x[tile] * factor for factor in FACTORS]
            out[tile] = parts[0] + parts[1]
        return out

    x = torch.randn(WIDTH)
    torch.testing.assert_close(scaled(x), 5 * x)
    found = scaled.bind((x,)).variant.analysis.traced.guards
    assert [each.owner for each in found if each.kind == "item" and isinstance(each.owner, list)] == [FACTORS, FACTORS]
