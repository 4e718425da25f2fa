"""``static_shapes=False``: calls run the config that is made for sizes like theirs, and all configs are right for all sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from benchmarks import size_buckets
from helion import Config, exc
from helion._compiler.ir.hints import sizes_of_blocks, with_hints
from helion._compiler.ir.printer import print_program
from helion.runtime import stub_driver
from helion.runtime.call.size_buckets import Bucket, bucket_of
from helion.settings import Settings

HINTS = (64, 256, 4096)


def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], dim=-1)
    return out


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


def first(x: torch.Tensor, n: int, unused: torch.Tensor) -> torch.Tensor:
    """The first elements of ``x``, and the rows of a tensor that no tile goes over."""
    out = torch.zeros([n], dtype=x.dtype, device=x.device)
    for tile in hl.tile(n):
        out[tile] = x[tile] + unused.size(0)
    return out


def nothing_to_size(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(hl.specialize(x.size(0))):
        out[tile] = x[tile] + 1
    return out


def meta(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16, device="meta")


def dynamic(fn: Any, **options: Any) -> helion.Kernel:
    return helion.kernel(fn, **{"static_shapes": False, "size_hints": HINTS, **options})


# --- which sizes are near which ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        *((size, Bucket(None, 64, 64)) for size in (-3, 0, 1, 2, 63, 64)),
        *((size, Bucket(64, 256, 256)) for size in (65, 255, 256)),
        *((size, Bucket(256, None, 4096)) for size in (257, 4096, 4097, 2**40)),
    ],
)
def test_bucket_of_a_size(size: int, expected: Bucket) -> None:
    assert bucket_of(size, HINTS) == expected
    assert eval(expected.condition("size"), {"size": size})
    assert bucket_of(size, (7,)) == Bucket(None, None, 7) and not bucket_of(size, (7,)).is_limited


def test_only_sizes_of_tiles_grids_and_whole_dimensions_matter() -> None:
    x = meta(100, 300)
    assert [b.hint for b in dynamic(softmax).bind((x,)).bucket] == [256, 4096]
    hints = [b.hint for b in dynamic(product).bind((x, meta(300, 5000))).bucket]
    assert hints == [256, 4096, 4096, 4096]
    bound = dynamic(first).bind((meta(9000), 100, meta(5, 5)))
    assert [b.hint for b in bound.bucket] == [256] and dict(bound.variant.specialized.buckets.origins) == {
        "n": ("arg", 1)
    }
    for kernel in (
        dynamic(nothing_to_size),
        dynamic(softmax, size_hints=()),
        dynamic(softmax, config=Config(block_sizes=[1])),
        dynamic(softmax, static_shapes=True),
    ):
        assert kernel.bind((meta(50, 50),)).bucket == ()
    fixed = meta(100, 300)
    torch._dynamo.mark_static(fixed, 0)
    assert [b.hint for b in dynamic(softmax).bind((fixed,)).bucket] == [4096]


def test_equal_sizes_are_in_one_bucket_and_others_are_not_taken_for_them() -> None:
    kernel = dynamic(product)
    square = kernel.bind((meta(50, 50), meta(50, 50)))
    assert kernel.bind((meta(60, 20), meta(20, 30))) is square
    for m, k, n in ((60, 20, 300), (60, 300, 20), (300, 20, 20), (300, 300, 300)):
        assert kernel.bind((meta(m, k), meta(k, n))) is not square
    assert {b.hint for b in kernel.bind((meta(60, 300), meta(300, 20))).bucket} == {64, 4096}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ((64, 32), ValueError),
        ((64, 64), ValueError),
        ((0,), TypeError),
        ((True,), TypeError),
        (64, TypeError),
        ("64", TypeError),
    ],
)
def test_hints_that_are_none(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="size_hints must"):
        Settings(size_hints=value)


def test_hints_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_SIZE_HINTS", "32, 1024")
    assert Settings().size_hints == (32, 1024)
    for text in ("1024,32", "0", "many"):
        monkeypatch.setenv("HELION_SIZE_HINTS", text)
        with pytest.raises(ValueError):
            Settings()


# --- programs with other hints -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [softmax, product, first])
def test_hints_change_facts_and_no_code(fn: Any) -> None:
    args = {softmax: (meta(100, 300),), product: (meta(100, 300), meta(300, 77)), first: (meta(900), 100, meta(5, 5))}[
        fn
    ]
    bound = helion.kernel(fn, static_shapes=False, size_hints=()).bind(args, target="h200")
    program = bound._analysis.program
    names = sizes_of_blocks(program)
    other = bound._analysis.with_size_hints(dict.fromkeys(names, 2048))
    assert with_hints(program, {}) is program and with_hints(program, {"other": 3}) is program
    assert print_program(other.program) == print_program(program)
    assert {axis.extent for axis in other.facts.axes} == {2048}
    config = bound.conservative_config()
    assert other.text(other.space.normalize(config.minimize(bound._analysis.space))) == bound.to_code(config)


# --- calls ---------------------------------------------------------------------------------------------------------------

SIZES = (2, 5, 63, 64, 65, 256, 257, 1000, 4097)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_size_is_right(dtype: torch.dtype) -> None:
    kernel = dynamic(softmax)
    tolerance = {"rtol": 2e-2, "atol": 1e-3} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-7}
    for columns in SIZES:
        x = (torch.randn(3, columns) + 1).to(dtype)
        torch.testing.assert_close(kernel(x).double(), torch.softmax(x.double(), -1), **tolerance)
    # the code of one bucket is right for all
    bound = kernel.bind((torch.randn(3, 63).to(dtype),))
    for columns in SIZES:
        x = (torch.randn(3, columns) + 1).to(dtype)
        torch.testing.assert_close(bound(x).double(), torch.softmax(x.double(), -1), **tolerance)


def test_a_bucket_is_compiled_when_it_is_called_and_runs_what_it_says() -> None:
    kernel = dynamic(softmax)
    arguments = {n: (torch.empty(300, n),) for n in (10, 200, 3000)}
    with stub_driver():
        for at, args in enumerate(arguments.values()):
            assert len(kernel.variants) == at
            kernel(*args)
        bound = {n: kernel.bind(args) for n, args in arguments.items()}
        assert len(set(bound.values())) == 3 and len(kernel.variants) == 3
        for n, each in bound.items():
            assert each is kernel.variant(arguments[n])
            assert each.config == each.default_config() == each.seeds[0].config
            assert each.to_code() == each.to_code(each.config)
        assert len({each.config for each in bound.values()}) > 1
        # in turn, with sizes that were not seen, and by functions that are written for such calls
        for n in (10, 200, 3000, 26, 216, 3008, 42, 4000) * 3:
            kernel(torch.empty(300, n))
            (line,) = (line for line in kernel.calls._known if line.run is kernel.__call__)
            assert line.bound is bound[10 if n <= 64 else 200 if n <= 256 else 3000].variant
        assert len(kernel.variants) == len(kernel.calls._known) == 3
        generation = kernel.calls.generation
        for n in (10, 200, 3000) * 10:
            kernel(*arguments[n])
        assert kernel.calls.generation == generation


def test_numbers_among_the_arguments_have_buckets_too() -> None:
    kernel = dynamic(first)
    x = torch.randn(9000)
    with stub_driver():
        for n in (10, 100, 9000, 11, 101, 8999) * 3:
            kernel(x, n, x)
        assert len(kernel.variants) == 3
    for n in (10, 100, 9000):
        torch.testing.assert_close(kernel(x, n, x), x[:n] + 9000)


def test_many_sizes_stay_in_the_functions_of_their_buckets() -> None:
    """More buckets than a miss tries in turn."""
    kernel = dynamic(softmax, size_hints=tuple(range(10, 200, 10)))
    with stub_driver():
        for _ in range(3):
            for rows in range(5, 195, 10):
                kernel(torch.empty(rows, 333))
        generation = kernel.calls.generation
        lines = dict(kernel.calls._entries)
        for rows in range(6, 196, 10):
            kernel(torch.empty(rows, 333))
        assert kernel.calls.generation == generation and dict(kernel.calls._entries) == lines and len(lines) == 19
        kernel.settings.size_hints = (64,)
        kernel.reset()
        kernel(torch.empty(5, 333))
        assert len(kernel.calls._entries) == len(kernel.calls._buckets) == 1


# --- configs that somebody asks for --------------------------------------------------------------------------------------


@pytest.fixture
def three() -> Iterator[tuple[helion.Kernel, list[Any], list[torch.Tensor]]]:
    kernel = dynamic(softmax)
    tensors = [torch.randn(3, n) for n in (40, 200, 1000)]
    yield kernel, [kernel.bind((x,)) for x in tensors], tensors


def test_a_config_that_is_set_is_that_of_all_sizes(three: Any) -> None:
    kernel, bound, tensors = three
    kernel(tensors[0])
    kernel.bind((tensors[1],)).set_config(Config(block_sizes=[2], num_warps=2))
    for each, x in zip(bound, tensors, strict=True):
        torch.testing.assert_close(kernel(x), torch.softmax(x, -1))
        assert each.config["block_sizes"] == [2] and each.config["num_warps"] == 2
    later = kernel.bind((torch.randn(300, 40),))  # bound afterwards
    later.variant.ensure_config_exists((torch.randn(300, 40),))
    assert later not in bound and later.config["num_warps"] == 2


def test_a_tuned_config_is_that_of_its_sizes(three: Any) -> None:
    kernel, bound, tensors = three
    expected = [each.default_config() for each in bound]
    tuned = kernel.autotune((tensors[0],))
    assert bound[0].config == tuned and bound[1].config is None
    bound[1].set_config(Config(block_sizes=[4], num_warps=8))
    assert bound[0].config == tuned, "what is tuned stays"
    for x in tensors:
        kernel(x)
    assert [each.config["num_warps"] for each in bound] == [expected[0]["num_warps"], 8, 8]


def test_several_argument_sets_share_a_config() -> None:
    kernel = dynamic(softmax)
    sets = [(torch.randn(3, n),) for n in (40, 200)]
    config = kernel.autotune_multi(sets)
    assert all(kernel.bind(args).config["block_sizes"] == config["block_sizes"] for args in sets)
    other = (torch.randn(3, 1000),)
    kernel(*other)
    assert kernel.bind(other).config == kernel.bind(other).default_config()


def test_given_configs_are_never_replaced() -> None:
    kernel = dynamic(softmax, config=Config(block_sizes=[2], num_warps=1))
    bound = kernel.bind((torch.randn(3, 40),))
    for n in (40, 200, 5000):
        kernel(torch.randn(3, n))
        assert kernel.bind((torch.randn(3, n),)) is bound and bound.config["num_warps"] == 1
    with pytest.raises(exc.InvalidConfig):
        dynamic(softmax, config=Config(block_sizes=[2, 2])).bind((torch.randn(3, 40),)).compile_config()


# --- graphs of torch, and what is shown ----------------------------------------------------------------------------------


def test_an_operator_looks_for_its_bucket_at_each_call() -> None:
    kernel = dynamic(softmax)
    tensors = [torch.randn(3, n) for n in (40, 200, 1000)]
    operator, _ = kernel.custom_op(tensors[0])
    for x in tensors:
        torch.testing.assert_close(operator(x), torch.softmax(x, -1))
        assert kernel.bind((x,)).config == kernel.bind((x,)).default_config()
    assert len({kernel.bind((x,)) for x in tensors}) == 3


@pytest.mark.prove
def test_explain_says_which_sizes() -> None:
    kernel = dynamic(softmax)
    bound = kernel.bind((meta(3, 200),), target="h200")
    assert "sizes      x.size(0) to 64, x.size(1) from 65 to 256" in bound.explain()
    assert json.loads(bound.explain("json"))["sizes"][1] == {"size": "x.size(1)", "above": 64, "most": 256, "hint": 256}
    alone = helion.kernel(softmax).bind((meta(3, 200),), target="h200")
    assert json.loads(alone.explain("json"))["sizes"] == [] and "sizes" not in alone.explain().split("seeds")[0]


# --- what it is worth ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "is_one_enough"),
    [("softmax, columns", False), ("matmul, M", False), ("matmul, square", False), ("bmm, batches", True)],
)
def test_the_regret_of_buckets_is_small_also_where_that_of_one_config_is_not(name: str, is_one_enough: bool) -> None:
    """One config is enough where sizes decide the number of programs alone."""
    case = next(case for case in size_buckets.CASES if case.name == name)
    regrets = size_buckets.regrets(case, Settings().size_hints)
    assert len(regrets) == 13 and max(regrets) <= 1.1
    worst = max(size_buckets.regrets(case, (4096,)))
    assert worst <= 1.1 if is_one_enough else worst > 1.3


# --- on a GPU ------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("native", ["0", pytest.param("1", marks=pytest.mark.cxx)])
def test_sizes_in_turn_on_a_gpu(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_NATIVE_LAUNCH", native)
    kernel = helion.kernel(product, static_shapes=False)
    y = torch.randn(512, 700, device="cuda", dtype=torch.bfloat16)
    for m in (3, 16, 17, 100, 1000, 4097, 3, 18, 101, 1001, 4096) * 2:
        x = torch.randn(m, 512, device="cuda", dtype=torch.bfloat16) + 1
        expected = x.double() @ y.double()
        torch.testing.assert_close(kernel(x, y).double(), expected, rtol=2e-2, atol=0.5)
    assert len({tuple(each.config["block_sizes"]) for each in kernel.calls.recent_variants()}) > 1


@pytest.mark.gpu
def test_a_cuda_graph_keeps_the_bucket_that_was_captured() -> None:
    kernel = dynamic(softmax)
    x = torch.randn(100, 300, device="cuda")
    kernel(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = kernel(x)
    kernel(torch.randn(5000, 60, device="cuda"))
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(out, torch.softmax(x, -1))


@pytest.mark.gpu
def test_a_compiled_graph_with_open_sizes_looks_for_its_bucket() -> None:
    kernel = dynamic(softmax)
    compiled = torch.compile(lambda x: kernel(x) * 2, dynamic=True, fullgraph=True)
    for n in (40, 200, 1000, 41):
        x = torch.randn(30, n, device="cuda")
        torch.testing.assert_close(compiled(x), torch.softmax(x, -1) * 2)
    assert len({kernel.bind((torch.randn(30, n, device="cuda"),)) for n in (40, 200, 1000)}) == 3


def shifted_rows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile([y.size(0), y.size(1)]):
        out[tile_m, tile_n] = x[tile_m, tile_n] + y[tile_m, tile_n]
    return out


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_guards_on_sizes_that_are_fixed_or_of_one_tensor_given_twice(rows: int) -> None:
    kernel = helion.kernel(shifted_rows, static_shapes=False, size_hints=HINTS)
    with stub_driver():
        for _ in range(2):
            for columns in (24, 40, 33, 300):
                x, y = torch.zeros(rows, columns), torch.zeros(rows, columns)
                assert kernel(x, x).shape == kernel(x, y).shape == kernel(y, y).shape == (rows, columns)
