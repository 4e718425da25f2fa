"""What every test runs under: no settings from outside, one Triton cache per run, fixed random numbers, and the two
selections by marker (`gpu`, `cxx`, `browser`, `prove`)."""

from __future__ import annotations

import collections
import functools
import gc
import os
import random
import shutil
import sys
import tempfile
import zlib

import pytest
from hypothesis import HealthCheck, settings

# `make prove` sets this; everything else named HELION_* would change what the tests see.
PROVE = os.environ.get("HELION_PROVE", "0") not in ("", "0")
XDIST_WORKER = "PYTEST_XDIST_WORKER" in os.environ

# Modules and test cases are made to last: until all are there, looking for garbage among them finds none.
gc.disable()

# helion and triton are not imported yet, here or in a worker. A worker keeps the folders that its parent chose below.
KEEP = {"HELION_PROVE", "HELION_CACHE_DIR"} if XDIST_WORKER else {"HELION_PROVE"}
for name in [n for n in os.environ if n.startswith("HELION_") and n not in KEEP]:
    del os.environ[name]
for name in ("TRITON_INTERPRET", "TRITON_F32_DEFAULT", "TRITON_ALWAYS_COMPILE"):
    os.environ.pop(name, None)
os.environ["HELION_CPU_CONFIG"] = "target"  # untuned calls with CPU tensors run what a GPU would run
os.environ["HELION_COMPILE_LIMIT_SECONDS"] = os.environ["HELION_COMPILE_NOTICE_SECONDS"] = (
    "0"  # the machine may be busy
)
os.environ["HELION_VERIFY"] = "1"  # the device IR is checked after every compiler step

if XDIST_WORKER:
    # The workers share the cores; a thread pool in each of them makes the suite slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
else:
    # Every worker, and every process that a test starts, would parse all modules and rewrite all assertions again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    CACHE = tempfile.mkdtemp(prefix="helion-test-")
    os.environ["TRITON_CACHE_DIR"] = os.path.join(CACHE, "triton")
    os.environ["HELION_CACHE_DIR"] = os.path.join(CACHE, "helion")

# Programs that are Chromium, by what they are called.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

COMMON = {"deadline": None, "database": None, "print_blob": True}
settings.register_profile(
    "ci", derandomize=True, max_examples=20, suppress_health_check=[HealthCheck.too_slow], **COMMON
)
settings.register_profile("prove", max_examples=400, suppress_health_check=[HealthCheck.too_slow], **COMMON)
settings.load_profile("prove" if PROVE else "ci")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not XDIST_WORKER:
        shutil.rmtree(CACHE, ignore_errors=True)


#: Files, or tests of a file, of which the sample has one case in six, and always the first; `make prove` has all.
SAMPLED = frozenset(
    (
        "test_auto_is_total.py", "test_broadcast_by_tile.py", "test_exact_constants.py", "test_families.py",
        "test_far_loops.py", "test_fence_order.py", "test_float_reads.py", "test_kinks.py", "test_legal_configs.py",
        "test_lost_results.py", "test_order.py", "test_other_sizes.py", "test_overlaps.py", "test_padded_reshapes.py",
        "test_public_names.py", "test_renewed_operands.py", "test_rewrite_pairs.py", "test_shared_block_sizes.py",
        "gradients/test_seeds.py", "test_additions.py", "cute/test_module.py", "test_granules.py", "ops/test_values.py", "test_lanes.py", "test_rolled_rows.py", "test_spread.py",
        "test_split_k.py", "test_unseen_families.py", "test_varied_seeds.py", "test_config_independence.py",
        "test_subtile.py", "test_counts.py", "test_outer_reduction.py", "test_unfitted.py",
        "test_registry.py::test_without_a_heuristic_the_others_propose_what_they_did",
        "test_backward.py::test_autograd", "test_backward.py::test_backward", "test_backward.py::test_bfloat16",
        "test_dot_scaled.py::test_compiles_offline", "test_dot_scaled.py::test_values",
        "test_examples.py::test_binds_to_an_absent_gpu_on_meta_tensors",
        "test_small_dots.py::test_no_rows_or_columns", "test_small_dots.py::test_tiles_of_few_lanes",
        "cute/test_verify.py::test_every_plan_is_verified", "test_pointwise.py::test_binary_ops_on_a_tensor_and_a_number",
        "test_pointwise.py::test_binary_ops_on_tensors", "test_pointwise.py::test_operands_without_dimensions",
        "test_batches.py::test_all_that_is_of_one_product_has_three_coordinates",
        "test_partitions.py::test_threads_hold_the_rows_and_columns_that_the_epilogue_takes_them_for",
        "test_structure.py::test_programs_and_plans_survive_pickling", "test_matmul_heuristic.py::test_matmul_fits_everywhere",
        "test_matmul_tiled_reduction_epilogue_heuristic.py::test_tiled_epilogue_fits_everywhere",
        "test_products_first.py::test_both_kernels_fit_everywhere", "test_effects.py::test_rows_in_chunks",
        "test_order_memory.py::test_layouts_that_are_trusted_agree",
        "test_attention.py::test_every_register_is_written", "test_attention_sizes.py", "test_row_choices.py",
        "test_marked_mail.py::test_sums_are_exact",
        "test_row_kernels.py::test_norms_and_softmax_are_right_for_any_length", "test_unseen_resources.py",
        "test_offline.py::test_cuda_agrees_with_triton_and_cuobjdump", "test_offline.py::test_cuda_spills",
        "test_settle.py::test_configs_are_equal_when_their_code_is", "test_settle.py::test_loops_that_wait_for_other_threads",
        "test_corner_cases.py", "test_taken_names.py::test_any_name_works", "test_dtypes.py::test_conversions",
        "test_dtypes.py::test_promotion", "test_torch_functions.py::test_functions_in_half_precision",
        "test_values.py::test_rows_in_chunks", "test_values.py::test_reduction_of_integers",
        "test_values.py::test_index_of_an_extremum", "test_ahead.py", "test_one_element.py",
        "test_materialize.py::test_products_that_are_computed_first_give_the_same", "test_ranks.py::test_examples",
        "test_host_loops.py::test_launches_in_order", "test_backward.py::test_gradcheck",
        "test_size_classes.py::test_one_compilation_serves_the_class",
        "test_ref_mode.py::test_examples_in_small_tiles_give_their_reference",
        "test_graphs.py::test_several_kernels_and_sizes", "test_graphs.py::test_results_that_are_views",
        "test_graphs.py::test_a_model_that_is_trained", "test_graphs.py::test_branches_of_host_code_on_sizes",
        "test_graphs.py::test_numbers_that_change_from_call_to_call",
        "test_configs.py::test_a_random_config_gives_the_eager_result",
        "test_configs.py::test_dynamic_shapes_give_the_eager_result", "test_functions.py::test_unary",
        "test_functions.py::test_binary",
        "test_examples.py::test_result_equals_reference", "test_search.py::test_a_search_is_repeatable",
        "test_auto.py::test_the_faster_one_is_taken_and_both_are_explained", "test_values.py::test_rows",
        "test_torch_functions.py::test_functions", "test_pool.py::test_nobody_outlives_the_process_that_began",
        "test_graphs.py::test_a_model_with_kernels_inside", "test_seeds.py::test_one_seed_of_each_suite_compiles",
        "test_attention.py::test_auto_may_take_loaded_and_computed_operands", "test_column_numbers.py::test_the_text_compiles",
        "test_launch_native.py::test_guard_agrees_with_torchs_on_every_kind", "test_method_forms.py::test_forms",
        "test_size_buckets.py::test_the_regret_of_buckets_is_small_where_that_of_one_config_is_not",
        "test_backward.py::test_printed_text_computes_the_gradients", "test_host_tensors.py::test_forms",
        "test_examples.py::test_generated_source_is_python", "test_sizes.py::test_sizes_of_0_and_1",
        "test_rows.py::test_exchanges_at_once_give_what_exchanges_apart_do",
        "test_rows.py::test_programs_run_under_random_schedules", "test_harness.py::test_seed_and_conservative_config_are_right_and_timed",
        "test_auto.py::test_tiles_that_tunables_decide_are_the_next_backends",
    )
)  # fmt: skip
_EVERY = 6
#: Number of cases from which the sample of any other test has one in four.
_MANY, _EVERY_OF_MANY = 6, 4


@functools.cache
def _is_sampled(test: str) -> bool:
    """Return whether ``SAMPLED`` has a test, or its file, by name or with the folder in front."""
    path, _, _ = test.partition("::")
    names = ("/".join(path.split("/")[-count:]) + test[len(path) :] for count in (1, 2))
    return any(name in SAMPLED or name.partition("::")[0] in SAMPLED for name in names)


def _leave_out_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases that are not in the sample: of the tests in ``SAMPLED``, and of those with many cases.

    A case is in it by a hash of its name: a count would favor one value of a parameter that has two or four.
    """
    cases = collections.Counter(item.nodeid.partition("[")[0] for item in items)
    seen: set[str] = set()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        test, case, _ = item.nodeid.partition("[")
        every = 1 if not case else _EVERY if _is_sampled(test) else _EVERY_OF_MANY if cases[test] >= _MANY else 1
        leave = test in seen and zlib.crc32(item.nodeid.encode()) % every
        seen.add(test)
        (left_out if leave else kept).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Exempt what all modules have made from garbage collections, which would visit it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()
    # Tests make many objects that live long. By the usual numbers a sixth of the time would go into collections.
    gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """Make the garbage collections at the end of a process cheap: pytest asks for five of them.

    execnet sends SIGINT to a worker that has not ended five seconds after its last test.
    """
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out `prove` tests unless asked for, and skips `gpu`, `cxx` and `browser` tests where there is no GPU, C++
    compiler or Chromium: nothing else skips."""
    if not PROVE:
        left_out = [item for item in items if item.get_closest_marker("prove")]
        items[:] = [item for item in items if not item.get_closest_marker("prove")]
        config.hook.pytest_deselected(items=left_out)
        _leave_out_cases(config, items)
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        for item in items:
            if item.get_closest_marker("cxx"):
                item.add_marker(pytest.mark.skip(reason="needs a C++ compiler: no g++, c++ or clang++ in PATH"))
    if not any(map(shutil.which, BROWSERS)):
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason="needs Chromium; on Debian: apt-get install chromium"))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch  # 2 s; a run without GPU tests, of one file say, does without

    if not torch.cuda.is_available():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a GPU: torch.cuda.is_available() is False"))
        return
    for item in on_gpu:
        item.fixturenames.insert(0, "nothing_is_measured_unasked")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed every generator by the name of the test: its inputs are the same in each run, alone or among others."""
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    for module, function in (("numpy.random", "seed"), ("torch", "manual_seed")):
        if module in sys.modules:
            getattr(sys.modules[module], function)(seed)


@pytest.fixture
def nothing_is_measured_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU tests see the config that would run untuned; those of tuning say which configs contend."""
    from helion.runtime.tuning import chosen_before, first_call

    monkeypatch.setattr(first_call, "contenders", lambda of, config, times: [])
    monkeypatch.setattr(chosen_before, "keep_untimed", lambda *_: None)
