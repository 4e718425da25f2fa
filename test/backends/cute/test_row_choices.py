"""The choice between row kernels and the general backend: predicted times, those that were measured, and its limits."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion._testing import EXAMPLES_DIR, import_path

ROOT = EXAMPLES_DIR.parent
sys.path[:0] = [str(ROOT)]

from benchmarks import row_workloads  # noqa: E402
from benchmarks.general import row_argmax  # noqa: E402
from benchmarks.row_suites import _cells  # noqa: E402
from benchmarks.unfitted import CELLS  # noqa: E402
from benchmarks.workloads.rows import smoothed_loss_and_gradient  # noqa: E402
from helion.backends.cute.resources.rowwise.shape import row_shape_of  # noqa: E402

MEASURED = ROOT / "benchmarks/results/cute/nvidia-h200-row-kernels.jsonl"


def row_softmax(x: torch.Tensor) -> torch.Tensor:
    m, n = x.size(0), hl.specialize(x.size(1))
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile in hl.tile(m):
        out[tile, :] = torch.softmax(x[tile, :].float(), -1).to(x.dtype)
    return out


def _for_auto(m: int, n: int, target: str = "h100", **settings: Any) -> Any:
    x = torch.empty(m, n, dtype=torch.bfloat16, device="meta")
    return helion.kernel(backend="auto", **settings)(row_softmax).bind((x,), target=target)


@pytest.mark.parametrize(("m", "n"), [(2048, 50257), (2048, 131072), (64, 131072), (16, 32768), (1, 32768)])
def test_auto_takes_long_rows(m: int, n: int) -> None:
    """Also few of them: in a cluster each SM has a part of a row."""
    bound = _for_auto(m, n)
    assert bound.backend == "cute"
    candidates = {each.backend: each for each in bound.variant.specialized.analysis.backend_candidates}
    assert candidates["cute"].us < 0.85 * candidates["triton"].us


def test_auto_leaves_rows_without_a_lead_to_triton() -> None:
    """Triton reads rows of 32768 columns once as well."""
    bound = _for_auto(4096, 32768)
    assert bound.backend == "triton"
    assert re.search(r"not cute: predicted [\d.]+ µs, which replaces triton above [\d.]+ µs", bound.explain())


@pytest.mark.parametrize(("m", "n"), [(16384, 8192), (4096, 50257), (2048, 131072)])
def test_predictions_of_softmax_are_near_the_times_of_an_h200(m: int, n: int) -> None:
    """Loops over columns exponentiate each element twice, but compile to the same passes as whole rows."""
    measured: dict[str, float] = {}
    for each in map(json.loads, MEASURED.read_text().splitlines()):
        if each["kind"] == "result" and (each["m"], each["n"], each["type"]) == (m, n, "bfloat16") and "us" in each:
            measured[each["name"]] = min(each["us"], measured.get(each["name"], each["us"]))
    x, out = (torch.empty(m, n, dtype=torch.bfloat16, device="meta") for _ in range(2))
    for kernel in (row_workloads.softmax, row_workloads.softmax_loops):
        seed = helion.kernel(backend="cute")(kernel).bind((x, out), target="h200").seeds[0]
        assert abs(seed.predicted.time_us / measured[kernel.__name__] - 1) < 0.12, seed.reason


@pytest.mark.parametrize(("m", "n"), [(65536, 2048), (16384, 8192), (4096, 32768)])
def test_predictions_of_gradients_are_near_the_times_of_an_h200(m: int, n: int) -> None:
    cell = ("result", "rms_norm_backward", "bfloat16", m, n)
    names = ("kind", "name", "type", "m", "n")
    lines = [each for each in map(json.loads, MEASURED.read_text().splitlines()) if each.get("at", 0) == 0]
    times = [each["us"] for each in lines if "us" in each and tuple(each.get(name) for name in names) == cell]
    seed = _of_workload("rms_norm_backward", "bfloat16", m, n).seeds[0]
    assert abs(seed.predicted.time_us / min(times) - 1) < 0.12, seed.reason


def test_auto_leaves_what_has_not_run_to_triton() -> None:
    bound = _for_auto(4096, 131072, target="b200")
    assert bound.backend == "triton"
    assert "not cute: row kernels without wgmma run on request, with backend='cute'" in bound.explain()


def test_auto_leaves_short_rows_to_triton() -> None:
    bound = _for_auto(16384, 8192)
    assert bound.backend == "triton"
    assert "not cute: row kernels of fewer than 16385 columns run on request" in bound.explain()


def test_auto_takes_long_rows_that_compute_with_numbers_of_columns() -> None:
    logits, labels = torch.empty(4096, 128256, dtype=torch.bfloat16, device="meta"), torch.empty(4096, device="meta")
    kernel = helion.kernel(backend="auto")(smoothed_loss_and_gradient.fn)
    assert kernel.bind((logits, labels.long(), 0.1), target="h200").backend == "cute"
    assert kernel.bind((logits[:, :32003].contiguous(), labels.long(), 0.1), target="h200").backend == "cute"
    assert kernel.bind((logits[:, :16384].contiguous(), labels.long(), 0.1), target="h200").backend == "triton"


@pytest.mark.parametrize(("name", "us"), [("confidence", 40.4), ("min_p_sample", 74.2)])
def test_searches_for_positions_compute_elements_in_each_pass(name: str, us: float) -> None:
    """Triton takes 29.6 and 46.8 us on an H200, the cute backend ``us`` (benchmarks/results/nvidia-h200-variants.jsonl)."""
    cell = CELLS[name]
    args = cell.arguments("meta", False)
    seed = helion.kernel(backend="cute")(cell.kernel.fn).bind(args, target="h200").seeds[0]
    assert abs(seed.predicted.time_us / us - 1) < 0.2, seed.reason
    assert helion.kernel(backend="auto")(cell.kernel.fn).bind(args, target="h200").backend == "triton"


def test_auto_takes_rows_that_are_counted_at_launch() -> None:
    assert _for_auto(4096, 131072, static_shapes=False).backend == "cute"


def test_auto_takes_short_rows_with_logarithms_or_sums_over_rows() -> None:
    """Triton's logarithm takes 22 instructions of the 35 of an element; sums over rows are atomics or a second kernel."""
    for name, m, n in (("kl_div", 65536, 2048), ("layer_norm_backward", 16384, 8192)):
        assert _of_workload(name, "bfloat16", m, n).backend == "cute"
    assert _of_workload("kl_div", "float32", 65536, 2048).backend == "triton"
    assert _of_workload("kl_div", "bfloat16", 32, 4096).backend == "triton"
    assert _of_workload("layer_norm_backward", "bfloat16", 32, 8192).backend == "cute"
    assert _of_workload("layer_norm_backward", "bfloat16", 32, 1000).backend == "triton"


def test_auto_takes_sums_of_long_rows() -> None:
    """Rows that are reduced once need no large lead."""
    for dtype, m, n, backend in (
        ("bfloat16", 2048, 131072, "cute"),
        ("bfloat16", 4096, 32768, "triton"),
        # Without "first", which such rows have no longer, Triton takes 129.9 us and cute 130.3 to 135.0 (an H200).
        ("float32", 4096, 32768, "triton"),
        ("float32", 16384, 8192, "triton"),
    ):
        assert _of_workload("row_sum", dtype, m, n).backend == backend


def test_auto_takes_exponentials_of_quotients_by_a_number_of_the_launch() -> None:
    """The general backend divides each element in both of its loops."""
    fn = import_path(EXAMPLES_DIR / "grpo_loss.py").grpo_loss.fn
    for m, n, backend in ((16384, 8192, "cute"), (131072, 128, "triton"), (64, 8192, "triton")):
        logits = torch.empty(8, m // 8, n, dtype=torch.bfloat16, device="meta")
        numbers = [torch.empty(8, m // 8, device="meta") for _ in range(2)]
        tokens = torch.empty(8, m // 8, dtype=torch.int64, device="meta")
        arguments = (logits, tokens, *numbers, torch.empty(8, device="meta"))
        assert helion.kernel(fn, backend="auto").bind(arguments, target="h200").backend == backend


def _losses(m: int, n: int, dtype: torch.dtype) -> Any:
    fn = import_path(EXAMPLES_DIR / "grpo_loss.py").grpo_loss.fn
    numbers = [torch.empty(8, m // 8, device="meta") for _ in range(2)]
    tokens = torch.empty(8, m // 8, dtype=torch.int64, device="meta")
    arguments = (torch.empty(8, m // 8, n, dtype=dtype, device="meta"), tokens, *numbers, torch.empty(8, device="meta"))
    return helion.kernel(fn, backend="auto").bind(arguments, target="h200")


@pytest.mark.parametrize(
    ("m", "n", "layout"),
    [
        (131072, 1000, (1, 1, 8, 3)),
        (32768, 4096, (1, 2, 2, 4)),
        (8192, 16384, (1, 4, 1, 4)),
        (4096, 32768, (1, 8, 1, 2)),
    ],
)
def test_rows_of_16_bits_with_numbers_of_columns_share_an_sm(m: int, n: int, layout: tuple[int, ...]) -> None:
    """Cluster, warps and rows of a CTA, and CTAs of an SM: the fastest of those timed, or within 2 % of it."""
    bound = _losses(m, n, torch.bfloat16)
    choice = bound.plan(bound.default_config()).rows.layout.choice
    assert (choice.cluster, choice.warps, choice.rows, choice.ctas_per_sm) == layout
    assert choice.keep == "shared"


def test_auto_takes_such_rows_of_32_bits() -> None:
    """In fewer CTAs of more rows, which take less time there: 271 us in place of 301 by the general backend."""
    bound = _losses(16384, 8192, torch.float32)
    assert bound.backend == "cute"
    assert bound.plan(bound.default_config()).rows.layout.choice.rows == 2


def test_rows_that_a_loop_maps_and_reduces_at_once_are_not_held() -> None:
    """A loop stores nothing that depends on what it reduces: facts need no cluster for the memory of such rows."""
    module = import_path(EXAMPLES_DIR / "jsd.py")
    rows = [torch.empty(8192, 16384, dtype=torch.bfloat16, device="meta") for _ in range(2)]
    bound = helion.kernel(module.jsd.fn, backend="auto").bind((*rows,), target="h200")
    demand = row_shape_of(bound.variant.specialized.analysis.facts).demand
    assert (demand.held_bytes, demand.later, demand.passes) == (0, False, 1)
    layout = bound.plan(bound.default_config()).rows.layout
    assert layout.demand.held_bytes == 0 and layout.choice.cluster == 1


def test_auto_leaves_exact_exponentials_and_logarithms_of_long_rows_to_triton() -> None:
    """They take a few hundred instructions for each element, more than its loads hide."""
    module = import_path(EXAMPLES_DIR / "fused_linear_jsd.py")
    for dtype, backend in ((torch.float32, "triton"), (torch.bfloat16, "cute")):
        states, weights = (
            torch.empty(2048, 64, dtype=dtype, device="meta"),
            torch.empty(131072, 64, dtype=dtype, device="meta"),
        )
        arguments = (states, weights, states, weights)
        kernel = helion.kernel(backend="auto", ignore_warnings=module.fused_linear_jsd.settings.ignore_warnings)
        assert kernel(module.fused_linear_jsd.fn).bind(arguments, target="h200").backend == backend


def _of_workload(name: str, dtype: str, m: int, n: int) -> Any:
    work = row_workloads.WORKLOADS[name]
    shapes = {"elements": (m, n), "rows": (m, n), "vector": (n,), "columns": (n,)}
    inputs = [torch.empty(shapes[kind], dtype=getattr(torch, dtype), device="meta") for kind in work.inputs]
    sizes = {**shapes, "rows": (m,)}
    outputs = [
        torch.empty(sizes[extent], dtype=kind or getattr(torch, dtype), device="meta")
        for _, kind, extent in work.outputs
    ]
    kernel = helion.kernel(backend="auto", ignore_warnings=[helion.exc.TensorOperationInWrapper])(work.kernel)
    return kernel.bind((*inputs, *outputs), target="h200")


@pytest.mark.prove
def test_auto_never_takes_the_slower_backend_where_both_were_timed() -> None:
    """Within 4 %, the differences between runs. The last times count; suites time both backends in one run."""
    times: dict[str, dict[tuple[Any, ...], float]] = {"result": {}, "triton": {}}
    for each in map(json.loads, MEASURED.read_text().splitlines()):
        if each["kind"] not in ("suite", *times) or each.get("at", 0) != 0:
            continue
        cell = each["name"], each["type"], each["m"], each["n"]
        if "us" in each:
            times[each["kind"]][cell] = each["us"]
        elif each.get("backend") == "cute" and "triton_us" in each and all(cell in of for of in times.values()):
            times["result"][cell], times["triton"][cell] = each["auto_us"], each["triton_us"]
    both = times["result"].keys() & times["triton"].keys()
    slower = []
    for cell in sorted(both):
        if _of_workload(*cell).backend == "cute" and times["result"][cell] > 1.04 * times["triton"][cell]:
            slower.append(cell)
    assert len(both) > 90 and not slower


def test_auto_takes_searches_of_loaded_elements() -> None:
    """They compute nothing else: 79.7 us on an H200, where Triton takes 96.8 (benchmarks/results/nvidia-h200-general.json)."""
    rows = torch.empty(8192, 16384, dtype=torch.bfloat16, device="meta")
    bound = helion.kernel(backend="auto")(row_argmax.fn).bind((rows,), target="h200")
    assert bound.backend == "cute"
    assert abs(bound.seeds[0].predicted.time_us / 79.7 - 1) < 0.1


@pytest.mark.parametrize(("name", "us"), [("cross_entropy", 79.0), ("cross_entropy_ls_zloss", 80.5)])
def test_rows_with_elements_that_data_selects_are_not_reduced_ahead(name: str, us: float) -> None:
    """Rows reduced ahead take 90.9 and 95.2 us on an H200; few rows keep them."""
    cells = {key: each for key, each in _cells().items() if key[0] == name}
    for rows, ahead in ((4096, False), (64, True)):
        cell = cells.get((name, "bfloat16", rows, 32768))
        if cell is None:
            continue
        seed = helion.kernel(backend="cute")(cell.function.fn).bind(cell.args, target="h200").seeds[0]
        assert ("reduced ahead" in seed.reason) == ahead
        assert ahead or abs(seed.predicted.time_us / us - 1) < 0.1


def test_facts_and_plans_have_the_same_gathers() -> None:
    cell = _cells()["cross_entropy", "bfloat16", 4096, 32768]
    bound = helion.kernel(backend="cute")(cell.function.fn).bind(cell.args, target="h200")
    shape = row_shape_of(bound.facts)
    assert shape.demand.gathers == bound.plan().rows.layout.demand.gathers == 1


def test_many_rows_that_are_searched_are_reduced_ahead() -> None:
    """133 us on an H200 for 142 (``argmax`` in nvidia-h200-row-kernels.jsonl)."""
    x = torch.empty(4096, 50257, dtype=torch.bfloat16, device="meta")
    bound = helion.kernel(backend="cute")(row_argmax.fn).bind((x,), target="h200")
    assert "reduced ahead" in bound.seeds[0].reason
