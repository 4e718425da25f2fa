"""Names of the public API that kernels import, and what they do."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc

#: Names by the module that they are imported from.
NAMES = {
    "helion": (
        "kernel jit Kernel Config Settings RefMode OutputCodeOptions aot_kernel from_cache cdiv next_power_of_2 language "
        "exc runtime experimental autotuner"
    ),
    "helion.language": (
        "tile grid static_range jagged_tile barrier zeros full arange subscript split join load store atomic_add atomic_and "
        "atomic_or atomic_xor atomic_max atomic_min atomic_xchg atomic_cas dot dot_scaled reduce associative_scan cumsum "
        "cumprod rand randint rand4x register_block_size register_tunable specialize constexpr ConstExpr inline_triton "
        "triton_kernel inline_asm_elementwise device_print breakpoint tile_index tile_begin tile_end tile_block_size tile_id "
        "stacktensor_like StackTensor Tile ProcessGroupName make_async_remote_copy remote_barrier "
        "float4_e2m1fn_x2_to_float32 load_float4_e2m1fn_x16_to_float16 load_bfloat16_x16_to_float16"
    ),
    "helion.runtime": "default_launcher get_num_sm set_triton_allocator",
    "helion.runtime.kernel": "Kernel kernel",
    "helion.runtime.config": "Config",
    "helion.runtime.settings": "Settings RefMode _get_backend",
    "helion.runtime.triton.dist_utils": "symm_mem_sync anything_at_all",
    "helion.runtime.triton.helpers": "anything_at_all",
    "helion._compat": "use_tileir_tunables supports_tensor_descriptor supports_amd_cdna_tunables",
    "helion._testing": (
        "DEVICE HALF_DTYPE LONG_INT_TYPE EXAMPLES_DIR TestCase RefEagerTestBase RefEagerTestDisabled code_and_output "
        "run_example check_example import_path do_bench skipIfRefEager skipIfCpu skipIfRocm skipIfXPU"
    ),
    "helion.experimental": "backward aot_kernel",
    "helion.autotuner": (
        "PowerOfTwoFragment IntegerFragment EnumFragment BooleanFragment ListOf PermutationFragment BaseSearch FiniteSearch "
        "RandomSearch PatternSearch DifferentialEvolutionSearch DESurrogateHybrid LFBOPatternSearch LFBOTreeSearch "
        "LocalAutotuneCache StrictLocalAutotuneCache"
    ),
    "helion.autotuner.config_fragment": (
        "PowerOfTwoFragment IntegerFragment EnumFragment BooleanFragment ListOf PermutationFragment"
    ),
    "helion.autotuner.benchmarking": "do_bench do_bench_generic",
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module in NAMES for name in NAMES[module].split()])
def test_public_names_resolve(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is not None


def test_the_language_lists_its_names_and_not_its_modules() -> None:
    assert set(dir(hl)) >= set(NAMES["helion.language"].split())
    assert not [name for name in dir(hl) if isinstance(getattr(hl, name), types.ModuleType)]


def test_the_same_under_several_names() -> None:
    from helion._testing import do_bench
    from helion.autotuner import benchmarking, config_fragment
    from helion.runtime import config, settings

    assert config.Config is helion.Config and settings.Settings is helion.Settings
    assert config_fragment.EnumFragment is helion.autotuner.EnumFragment
    assert helion.experimental.aot_kernel is helion.aot_kernel and do_bench is benchmarking.do_bench


def test_the_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    from helion import _compat
    from helion.runtime.settings import _get_backend

    assert _compat.use_tileir_tunables() is False and _get_backend() == "triton"
    monkeypatch.setenv("HELION_BACKEND", "cute")
    assert _get_backend() == "cute"
    monkeypatch.setenv("HELION_BACKEND", "auto")
    assert _get_backend() == "triton"


# --- several GPUs ----------------------------------------------------------------------------------------------------


def test_functions_over_several_gpus_are_refused() -> None:
    from helion.runtime.triton.dist_utils import another_sync

    with pytest.raises(
        exc.SeveralGpusUnsupported,
        match=r"helion\.runtime\.triton\.dist_utils\.another_sync is not supported; allocate",
    ):
        another_sync(1, 2)
    with pytest.raises(AttributeError):
        getattr(importlib.import_module("helion.runtime.triton.helpers"), "__wrapped__")  # noqa: B009


def copied(x: torch.Tensor) -> torch.Tensor:
    for t in hl.tile(x.size(0)):
        hl.make_async_remote_copy(x, [t], 1).start()  # here
    return x


def waiting(x: torch.Tensor) -> torch.Tensor:
    for t in hl.tile(x.size(0)):
        hl.remote_barrier([0, 1])  # here
        x[t] = 0
    return x


@pytest.mark.parametrize("function", [copied, waiting], ids=lambda f: f.__name__)
def test_kernels_over_several_gpus_need_ranks(function: Any) -> None:
    with pytest.raises(exc.InvalidAPIUsage, match=r"number of ranks of hl\.\w+ is not known: .*world_size=") as caught:
        helion.kernel(function)(torch.ones(5))
    assert "# here" in str(caught.value)
    with pytest.raises(exc.SeveralGpusUnsupported, match=r"hl\.\w+ is not supported in eager mode"):
        helion.kernel(function, ref_mode=helion.RefMode.EAGER)(torch.ones(5))


# --- times -----------------------------------------------------------------------------------------------------------


def test_do_bench_summaries() -> None:
    from helion.autotuner.benchmarking import do_bench, do_bench_generic

    leaf, calls = torch.ones(3, requires_grad=True), []

    def step() -> None:
        assert leaf.grad is None or not calls
        calls.append(leaf.grad)

    times = do_bench(step, warmup=0, rep=1, return_mode="all", grad_to_none=[leaf])
    assert times and all(time >= 0 for time in times) and calls
    assert isinstance(do_bench_generic(step, warmup=0, rep=1), float)
    low, high = do_bench(step, warmup=0, rep=1, quantiles=[0.0, 1.0])
    assert low <= high and isinstance(do_bench(step, warmup=0, rep=1, quantiles=[0.5]), float)
    with pytest.raises(ValueError, match="return_mode must be one of mean, median"):
        do_bench(step, return_mode="average")


# --- searches --------------------------------------------------------------------------------------------------------


@helion.kernel
def twice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = x[t] * 2
    return out


CONFIGS = [helion.Config(block_sizes=[size]) for size in (16, 64)]
SEARCHES = (
    "RandomSearch",
    "PatternSearch",
    "DifferentialEvolutionSearch",
    "DESurrogateHybrid",
    "LFBOPatternSearch",
    "LFBOTreeSearch",
)


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_give_a_config_that_is_used(name: str) -> None:
    bound, x = helion.kernel(twice.fn).bind((torch.randn(37),)), torch.randn(37)
    few = {"count": 3} if name == "RandomSearch" else {"max_generations": 1}
    search = getattr(helion.autotuner, name)(bound, (x,), workers=1, **few)
    config = search.autotune()
    assert config == bound.config
    torch.testing.assert_close(bound(x), x * 2)


# each starts a process that compiles
@pytest.mark.prove
@pytest.mark.parametrize("listed", [True, False])
def test_a_search_on_predicted_times(listed: bool) -> None:
    x = torch.empty(1 << 16)
    bound = helion.kernel(twice.fn).bind((x,), target="h200")
    kind = helion.autotuner.FiniteSearch if listed else helion.autotuner.RandomSearch
    given = {"configs": CONFIGS} if listed else {"count": 3}
    found = kind(bound, (x,), simulated=True, workers=1, accuracy=False, **given).autotune()
    assert found == bound.config
    assert not listed or found["block_sizes"] in ([16], [64])


def test_the_finite_search_keeps_to_its_list() -> None:
    x = torch.randn(37)
    bound = helion.kernel(twice.fn).bind((x,))
    assert helion.autotuner.FiniteSearch(bound, (x,), configs=CONFIGS[1:]).autotune()["block_sizes"] == [64]
    assert helion.autotuner.FiniteSearch(bound, (x,), [{"block_sizes": [8]}]).autotune()["block_sizes"] == [8]
    with pytest.raises(exc.NoConfigFound):
        helion.autotuner.FiniteSearch(bound, (x,), [{"block_sizes": [8, 8]}]).autotune()
    with pytest.raises(exc.InvalidAPIUsage):
        helion.autotuner.PatternSearch(bound, (x,), no_such_option=1).autotune()


@pytest.mark.parametrize("cached", [True, False])
def test_searches_in_the_settings(cached: bool) -> None:
    given: list[dict[str, Any]] = []

    def searching(bound: Any, args: Any, **options: Any) -> Any:
        given.append(options)
        search = helion.autotuner.FiniteSearch(bound, args, CONFIGS, **options)
        return helion.autotuner.LocalAutotuneCache(search) if cached else search

    kernel, x = helion.kernel(twice.fn, autotuner_fn=searching), torch.randn(37)
    assert kernel.autotune((x,), effort="quick")["block_sizes"] == [16]
    assert given == [{"effort": "quick"}]
    torch.testing.assert_close(kernel(x), x * 2)


def test_configs_from_the_cache() -> None:
    kernel, x = helion.kernel(twice.fn, autotuner_fn=helion.from_cache(max_configs=3, configs=CONFIGS)), torch.randn(37)
    config = kernel.autotune((x,))
    assert config == kernel.bind((x,)).config
    torch.testing.assert_close(kernel(x), x * 2)
