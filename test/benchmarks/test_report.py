"""docs/performance.md: what benchmarks/report.py makes of results, goals met and missed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conftest import PROVE

from benchmarks import dispatch, goals, plots, report, seeds, sweep

HEAD = {
    "device": "Test 100",
    "sms": 1,
    "torch": "2.11.0",
    "triton": "3.6.0",
    "python": "3.12.0",
    "float32_matmul_precision": "high",
    "date": "2026-01-02",
    "copy_gb_per_s": 1000,
}
HALF, SINGLE = "bfloat16", "float32"


def row(suite: str, kernel: str, case: str, dtype: str, *, failures: dict[str, str] | None = None, **given: Any) -> Any:
    """A row whose seed takes 1000 µs, at 95 % of the bandwidth of a copy, with every goal met by a little."""
    medians = {"seed": 1000.0, "seed 1": 1100.0, "conservative": 7000.0, "eager": 1500.0, "compile": 1250.0, **given}
    failures = failures or {}
    times = {
        name.replace("_", " "): {"median": value, "low": 0.99 * value, "high": 1.01 * value}
        for name, value in medians.items()
        if name not in failures
    }
    return seeds.Row(
        suite=suite,
        kernel=kernel,
        case=case,
        dtype=dtype,
        heuristic="SomeHeuristic",
        configs={"seed": "helion.Config(num_warps=4)", "conservative": "helion.Config()"},
        bytes=950_000_000,
        flops=2 * 10**11 if suite in ("epilogue", "matmul") else 0,
        times=times,
        errors={name: 1e-3 for name in times},
        failures=failures,
    )


def all_rows() -> dict[str, list[Any]]:
    dtypes = (HALF, SINGLE)
    return {
        "epilogue": [
            row("epilogue", "matmul_softmax", "M=1024 K=512 N=512", HALF),
            row("epilogue", "matmul_softmax", "M=1024 K=512 N=2048", HALF),
            row("epilogue", "matmul_softmax_tiled", "M=1024 K=512 N=2048", HALF),
        ],
        "reductions": [row("reductions", kernel, "8 rows of 8", d) for kernel in ("softmax", "jsd") for d in dtypes],
        "transfer": [row("transfer", "grpo_loss", "8 rows of 8", dtype) for dtype in dtypes],
        "matmul": [row("matmul", "matmul", f"M={n} K={n} N={n}", HALF) for n in (512, 1024)],
        "pointwise": [row("pointwise", "add", "8 by 8", HALF)],
        "general": [row("general", "linear", "8 by 8", HALF)],
        "unseen": [row("unseen", "causal_gqa", "8 by 8", HALF)],
        "workloads": [row("workloads", "congruences", "8 by 8", HALF)],
        "mechanisms": [row("mechanisms", "sample_energies", "8 by 8", HALF)],
    }


def results_of(rows: dict[str, list[Any]]) -> list[report.Results]:
    return [report.Results(suite=suite, environment=HEAD, rows=tuple(found)) for suite, found in rows.items()]


def replaced(suite: str, at: int, **given: Any) -> list[report.Results]:
    """All results, with other times in one row."""
    rows = all_rows()
    old = rows[suite][at]
    rows[suite][at] = row(suite, old.kernel, old.case, old.dtype, **given)
    return results_of(rows)


def goal_lines(results: list[report.Results], verdict: str) -> list[str]:
    """The goals with this verdict, as `suite: goal`."""
    found = []
    for line in report.render(results, []).splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 9 and cells[5].startswith(verdict) and cells[3].startswith("≥"):
            found.append(f"{cells[1]}: {cells[2]}")
    return found


# ---------------------------------------------------------------------------------------------------------------- goals


def test_all_goals_met() -> None:
    page = report.render(results_of(all_rows()), [])
    assert "Of 24 goals 24 are met, 0 missed and 0 not measured." in page
    assert len(goal_lines(results_of(all_rows()), "met")) == 24


@pytest.mark.parametrize(
    ("suite", "at", "given", "missed"),
    [
        ("epilogue", 0, {"conservative": 6700.0}, ["epilogue: whole rows: conservative config / seed, geometric mean"]),
        ("epilogue", 2, {"conservative": 999.0}, ["epilogue: conservative config / seed, every cell"]),
        ("epilogue", 0, {"compile": 1199.0}, ["epilogue: whole rows, N ≤ 512: torch.compile / seed, geometric mean"]),
        (
            "epilogue",
            2,
            {"compile": 799.0},
            ["epilogue: tiled columns, N = 2048-4096, bf16: torch.compile / fastest seed, geometric mean"],
        ),
        ("reductions", 2, {"compile": 880.0}, ["reductions: bf16: torch.compile / seed, geometric mean"]),
        ("reductions", 3, {"compile": 840.0}, ["reductions: fp32: torch.compile / seed, geometric mean"]),
        ("matmul", 1, {"eager": 400.0}, ["matmul: bf16: cuBLAS (eager) / seed, geometric mean"]),
        (
            "pointwise",
            0,
            {"seed": 1056.0},
            ["pointwise: share of the bandwidth of a copy, every kernel and dtype, large cells"],
        ),
    ],
)
def test_a_miss_is_named(suite: str, at: int, given: dict[str, float], missed: list[str]) -> None:
    every_kernel = "reductions: torch.compile / seed, every kernel and dtype"
    assert goal_lines(replaced(suite, at, **given), "**missed**") == missed + [every_kernel] * (suite == "reductions")


def test_a_miss_says_by_how_much_and_where() -> None:
    page = report.render(replaced("reductions", 3, compile=760.0), [])
    line = "| reductions | torch.compile / seed, every kernel and dtype | ≥ 0.95 | 0.76 | **missed** by 20.0 % | 4 | 1 of 4 below: jsd float32 0.76 |"
    assert line in page.splitlines()
    finding = goals.Finding(goal="", wanted=0.95, measured=0.94999, cells=1)
    assert finding.verdict == "**missed** by less than 0.1 %"


def test_the_fastest_seed_counts_for_tiled_columns() -> None:
    page = report.render(replaced("epilogue", 2, compile=790.0, seed_1=900.0), [])
    assert "| ≥ 0.8 | 0.88 | met | 1 | the first seed alone: 0.79; lowest 0.88: matmul_softmax_tiled" in page


def test_rescues() -> None:
    failure = {"conservative": "OutOfResources: shared memory"}
    rescued = results_of({"epilogue": [row("epilogue", "matmul_softmax", "N=512", HALF, failures=failure)]})
    goal = "| epilogue | the first seed runs where the conservative config does not | ≥ 100 % |"
    assert f"{goal} 100.0 % | met | 1 | 1 of 1 |" in report.render(rescued, [])
    failure = {**failure, "seed": "OutOfResources: registers"}
    lost = results_of({"epilogue": [row("epilogue", "matmul_softmax", "N=512", HALF, failures=failure)]})
    assert f"{goal} 0.0 % | **missed** by 100.0 % | 1 | 0 of 1 |" in report.render(lost, [])
    full = {"conservative": "OutOfMemoryError: CUDA out of memory"}
    memory = results_of({"epilogue": [row("epilogue", "matmul_softmax", "N=512", HALF, failures=full)]})
    assert f"{goal} 100.0 % | met | 0 | the conservative config runs in every cell |" in report.render(memory, [])


def test_what_failed_is_listed_and_missed() -> None:
    failures = {"seed": "wrong: the result is 1.0e-01 off, 2e-02 is allowed", "compile": "Error: a|b `c`"}
    results = replaced("matmul", 0, failures=failures)
    page = report.render(results, []).splitlines()
    assert (
        "| matmul | M=512 K=512 N=512 | bfloat16 | seed | `wrong: the result is 1.0e-01 off, 2e-02 is allowed` |"
        in page
    )
    assert "| matmul | M=512 K=512 N=512 | bfloat16 | compile | `Error: a\\|b 'c'` |" in page
    assert goal_lines(results, "**missed**") == ["matmul: the first seed runs and is right, every cell"]
    assert any(line.startswith("| matmul | bfloat16 | 1 of 2 | 1.25 | 1.25 |") for line in page)


def test_small_cells_and_products_have_no_share_of_bandwidth() -> None:
    share = goals.share_of(1000.0)
    assert share(row("pointwise", "add", "8 by 8", HALF)) == pytest.approx(0.95)
    assert share(row("matmul", "matmul", "N=8", HALF)) is None
    fields = {**vars(row("pointwise", "add", "8 by 8", HALF)), "bytes": goals.LARGE_BYTES - 1}
    assert share(seeds.Row(**fields)) is None
    assert goals.share_of(None)(row("pointwise", "add", "8 by 8", HALF)) is None


def test_the_fastest_copy_of_a_device_counts() -> None:
    first, second = results_of({"matmul": all_rows()["matmul"], "pointwise": all_rows()["pointwise"]})
    faster = report.Results(suite="matmul", environment={**HEAD, "copy_gb_per_s": 1900}, rows=first.rows)
    assert "| ≥ 90 % | 50.0 % | **missed** by 44.4 % | 1 | 1 of 1 below: add bfloat16 50.0 % |" in report.render(
        [faster, second], []
    )


# ----------------------------------------------------------------------------------------------------------------- page


def test_a_suite_without_results_is_not_measured() -> None:
    rows = all_rows()
    del rows["transfer"]
    page = report.render(results_of(rows), [])
    assert "Of 24 goals 19 are met, 0 missed and 5 not measured." in page
    assert "### transfer\n\nNot measured.\n" in page
    assert len(goal_lines(results_of(rows), "not measured")) == 5
    assert "## What a call costs before the kernel runs\n\nNot measured.\n" in page


def test_nothing_is_measured() -> None:
    page = report.render([], [])
    assert "Of 24 goals 0 are met, 0 missed and 24 not measured." in page
    assert "| not measured | - | - |" in page
    assert page.count("Not measured.") == len(seeds.SUITES) + 1


def test_two_devices_have_a_section_each() -> None:
    rows = all_rows()["pointwise"]
    both = [
        report.Results(suite="pointwise", environment={**HEAD, "device": name}, rows=tuple(rows)) for name in ("A", "B")
    ]
    headings = [line for line in report.render(both, []).splitlines() if line in ("## A", "## B")]
    assert headings == ["## A", "## B"]


def test_every_cell_has_a_line() -> None:
    page = report.render(results_of(all_rows()), [])
    assert "<summary>All 3 cells</summary>" in page
    assert (
        "| matmul | M=512 K=512 N=512 | bfloat16 | 1000 | 1.0 % | 1.25 | 1.25 | 1.50 | 7.00 | 950 | 200 | 1e-03 |"
        " `(num_warps=4)` |"
    ) in page.splitlines()


def test_files_come_back_as_written(tmp_path: Path) -> None:
    rows = all_rows()["pointwise"]
    seeds.write(tmp_path / "test-100-pointwise.json", HEAD, rows)
    results, dispatches = report.read(tmp_path)
    assert results == results_of({"pointwise": rows})
    assert dispatches == []
    assert report.render(results, dispatches) == report.render(*report.read(tmp_path))


def test_cells_that_are_not_timed_again_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "test-100-matmul.json"
    first, second = all_rows()["matmul"]
    seeds.write(path, {**HEAD, "backends": ["triton"]}, [first, second])
    again = row("matmul", first.kernel, first.case, first.dtype, seed=900.0)
    new = row("matmul", "matmul", "M=64 K=64 N=64", HALF)
    later = {**HEAD, "date": "2026-01-03", "backends": ["cute", "triton"]}
    head, rows = seeds.kept(json.loads(path.read_text()), later, [again, new])
    assert list(rows) == [again, second, new]
    assert head == {**later, "since": HEAD["date"], "runs": 2}
    assert f"| {HEAD['date']} to 2026-01-03 |" in report.render(
        [report.Results(suite="matmul", environment=head, rows=tuple(rows))], []
    )
    assert seeds.kept({}, HEAD, [new]) == (HEAD, [new])
    with pytest.raises(ValueError, match=r"rows of matmul cannot be kept: triton is 3\.7\.0 now and was 3\.6\.0"):
        seeds.kept(json.loads(path.read_text()), {**HEAD, "triton": "3.7.0"}, [new])


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"environment": {}}', '{"environment": {}, "rows": [{"suite": "matmul"}]}', '{"rows": []}'],
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(SystemExit, match=r"other\.json is not of benchmarks/seeds\.py or benchmarks/dispatch\.py: "):
        report.read(tmp_path)


def test_costs_of_a_call(tmp_path: Path) -> None:
    rows = [
        dispatch.Row(label=dispatch.CALL, microseconds=(2.0, 3.0, 7.0)),
        dispatch.Row(label="bound(...)", microseconds=(1.0, 1.0, 1.0)),
    ]
    head = {**HEAD, "processor": "Some CPU"}
    dispatch.write(tmp_path / "test-100-dispatch.json", head, [("driver stubbed", dispatch.with_goals(rows))])
    results, dispatches = report.read(tmp_path)
    assert results == []
    lines = report.render(results, dispatches).splitlines()
    at = lines.index("| driver stubbed, Some CPU | 2 tensors | 8 tensors | 16 tensors |")
    assert lines[at + 2 : at + 5] == [
        "| kernel(...) | 2.00 | 3.00 | 7.00 |",
        "| *its goal* | 2.10 | 4.00 | 6.50 |",
        "| bound(...) | 1.00 | 1.00 | 1.00 |",
    ]
    (goal,) = (line for line in lines if line.startswith("| dispatch | kernel(...)"))
    assert "| **missed** by 7.1 % | 3 | µs: 2.00 of 2.10, 3.00 of 4.00, 7.00 of 6.50 |" in goal


def test_the_page_is_what_the_results_say() -> None:
    remedy = "docs/performance.md differs from what benchmarks/results say; run `make report`"
    results, dispatches = report.read(seeds.RESULTS)
    cute, page = report.cute_report.read(seeds.RESULTS / "cute"), report.PAGE.read_text()
    scores: list[sweep.Score] = []
    if PROVE:  # each score takes a kernel's seeds
        scores += sweep.scores(sweep.parse(sweep.KEPT.read_text()))
    else:
        section = re.search(r"^## Seeds beside sweeps\n.*?(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
        assert section is not None
        page = page.replace(section[0], "")
    distributed = report.distributed_report.read(seeds.RESULTS)
    calls = report.first_call_report.read(seeds.RESULTS)
    rows = report.row_report.read(seeds.RESULTS / "cute")
    attention = report.attention_report.read(seeds.RESULTS)
    operators = report.ops_report.read(seeds.RESULTS / "ops")
    products = report.product_goals.read(seeds.RESULTS, cute)
    sections = (cute, distributed, calls, rows, attention, operators, products)
    unfitted = report.unfitted_report.read(seeds.RESULTS)
    pairs = report.gpus_report.read(seeds.RESULTS, [row for each in results for row in each.rows])
    axes = report.axes_report.read(seeds.RESULTS)
    made = report.render(results, dispatches, scores, "performance", *sections, unfitted, pairs, axes)
    assert made == page, remedy
    drawn = {path.stem for path in report.PAGE.with_suffix("").glob("*.svg")}
    assert drawn == {each.slug for each in results if report.has_plot(each)}, remedy


def test_another_default_is_listed() -> None:
    rows = all_rows()
    old = rows["pointwise"][0]
    configs = {**old.configs, "default": "helion.Config(num_warps=8)"}
    times = {**old.times, "default": {"median": 500.0, "low": 500.0, "high": 500.0}}
    rows["pointwise"][0] = seeds.Row(**{**vars(old), "configs": configs, "times": times})
    line = "| add | 8 by 8 | bfloat16 | 1.25 | 2.50 | default | `(num_warps=8)` |"
    assert line in report.render(results_of(rows), []).splitlines()
    assert "Another default" not in report.render(results_of(all_rows()), [])


def test_a_default_among_several_seeds_is_found_or_said_to_be_unknown() -> None:
    old = all_rows()["pointwise"][0]
    several = {**old.configs, "seed 1": "helion.Config(num_warps=2)"}
    unknown = seeds.Row(**{**vars(old), "configs": several})
    second = seeds.Row(**{**vars(old), "configs": {**several, "default": several["seed 1"]}})
    first = seeds.Row(**{**vars(old), "configs": {**several, "default": several["seed"]}})
    assert [goals.default_variant(row) for row in (old, first, second, unknown)] == ["seed", "seed", "seed 1", None]
    text = "For 1 cells with several seeds the results do not tell which of them is the default."
    assert text in report.render(results_of({"pointwise": [unknown]}), [])


# ---------------------------------------------------------------------------------------------------------------- plots


def test_plots_have_the_same_bytes_and_old_ones_go(tmp_path: Path) -> None:
    results = results_of(all_rows())
    old = tmp_path / "plots" / "gone-100-matmul.svg"
    old.parent.mkdir()
    old.write_text("")
    report.write_plots(results, old.parent)
    first = {path.name: path.read_bytes() for path in old.parent.iterdir()}
    report.write_plots(results, old.parent)
    assert {path.name: path.read_bytes() for path in old.parent.iterdir()} == first
    assert set(first) == {f"test-100-{suite}.svg" for suite in seeds.SUITES}
    text = first["test-100-reductions.svg"].decode()
    assert ">softmax<" in text
    assert ">reductions, Test 100<" in text
    assert "2026" not in text
    assert "date" not in text


def test_one_kernel_is_drawn_by_case() -> None:
    rows = all_rows()
    assert list(plots.lanes(rows["matmul"])) == ["M=512 K=512 N=512", "M=1024 K=1024 N=1024"]
    assert list(plots.lanes(rows["reductions"])) == ["softmax", "jsd"]


def test_a_suite_without_torch_compile_has_no_plot(tmp_path: Path) -> None:
    rows = [row("matmul", "matmul", "N=8", HALF, failures={"compile": "left out"})]
    results = results_of({"matmul": rows})
    report.write_plots(results, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "svg" not in report.render(results, [])


@pytest.mark.prove
def test_the_command_writes_page_and_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds.write(tmp_path / "results" / "test-100-matmul.json", HEAD, all_rows()["matmul"])
    page = tmp_path / "docs" / "speed.md"
    monkeypatch.setattr("sys.argv", ["report", "--results", str(tmp_path / "results"), "--out", str(page)])
    assert report.main() == 0
    assert "(speed/test-100-matmul.svg)" in page.read_text()
    assert (tmp_path / "docs" / "speed" / "test-100-matmul.svg").is_file()


def test_json_of_dispatch_has_goals_by_label(tmp_path: Path) -> None:
    rows = dispatch.with_goals([dispatch.Row(label=dispatch.NATIVE, microseconds=(1.0, 2.0, 3.0))])
    dispatch.write(tmp_path / "a.json", {"device": "x"}, [("stub", rows)])
    assert json.loads((tmp_path / "a.json").read_text()) == {
        "environment": {"device": "x"},
        "counts": [2, 8, 16],
        "tables": [
            {
                "title": "stub",
                "rows": [{"label": dispatch.NATIVE, "microseconds": [1.0, 2.0, 3.0]}],
                "goals": {dispatch.NATIVE: [1.5, 2.0, 3.0]},
            }
        ],
    }


def test_products_of_the_cute_backend_stand_beside_what_they_were_timed_with(tmp_path: Path) -> None:
    def row(ratio: float, case: str) -> dict[str, Any]:
        times = {"cute": 10.0, "cublas": 10.0 * ratio, "triton": 12.0}
        return {
            "case": case,
            "us": times,
            "against": "cublas",
            "ratio": ratio,
            "seed": "helion.Config(block_sizes=[64])",
        }

    (tmp_path / "gpu-times.json").write_text(json.dumps([row(0.5, "small"), row(2.0, "large")]))
    (tmp_path / "other.json").write_text("{}")
    lines = report.cute_report.sections(report.cute_report.read(tmp_path), {"gpu": ["| goal | wanted |"]})
    assert "## The cute backend, gpu" in lines and "| goal | wanted |" in lines
    assert any(line.startswith("| small | cublas | 10.0 |") and "`(block_sizes=[64])`" in line for line in lines)
    assert "Beside cublas: geometric mean 1.000, least 0.500." in lines


def test_readme_says_what_was_measured() -> None:
    readme = report.README.read_text()
    times = report.cute_report.read(report.RESULTS / "cute")
    assert report.cute_report.with_figures(readme, times) == readme
    slower = {name: [{**row, "ratio": 0.5 * row["ratio"]} for row in rows] for name, rows in times.items()}
    assert report.cute_report.with_figures(readme, slower) != readme
    text = report.cute_report.readme_figures(times)
    worst = min(row["ratio"] for rows in times.values() for row in rows if row["case"].startswith("rows "))
    assert "followed by a row reduction: " in text and f"{worst:.2f}x to " in text


def test_the_backends_of_a_suite_are_those_of_its_seeds() -> None:
    names = ["CuteRowsHeuristic", "TritonMatmulHeuristic", "", "TritonRowsHeuristic"]
    rows = [row("matmul", "matmul", f"M={at}", HALF) for at in range(len(names))]
    rows = [seeds.Row(**{**vars(each), "heuristic": name}) for each, name in zip(rows, names, strict=True)]
    assert report.backends(rows) == "triton 2, cute 1, none 1"
    result = report.Results(suite="matmul", environment=HEAD, rows=tuple(rows))
    assert any(line.endswith("| triton 2, cute 1, none 1 |") for line in report.machines([result], []))


def test_row_kernels_have_a_ledger() -> None:
    cell = dict(kind="suite", name="softmax", type="bfloat16", m=2048, n=131072, backend="cute")
    times = dict(auto_us=100.0, triton_us=120.0, compile_us=150.0, share=0.93)
    right = dict(ok=True, same=True, guards=True)
    sums = dict(
        kind="result", name="rms_norm_backward", type="bfloat16", m=16384, n=8192, us=220.0, share=0.87, **right
    )
    compiled = dict(kind="compile", name="rms_norm_backward", type="bfloat16", m=16384, n=8192, us=440.0)
    slow = {**cell, **times, "name": "jsd", "auto_us": 200.0, "share": 0.5}
    lines = [dict(kind="run", device="X"), {**cell, **times, "share": 0.1}, slow, {**cell, **times}, sums, compiled]
    page = "\n".join(report.row_report.sections({"X": lines, "other": [sums]}))
    assert "- 1 of 2 kernels and dtypes reach 0.92 of the copy; all together 0.682 (goal 0.95)." in page
    assert "1 of 2 cells reach 0.90, 1 are 1.45 times as fast" in page
    assert "1 cells are more than 5 % slower than Triton's default: jsd bfloat16 2048 x 131072 (1.67)" in page
    assert "| softmax | bfloat16 | 1 | 1 | 0.930 | 0.930: 2048 x 131072 | 1.50 | 1.20 |" in page
    assert "| rms_norm_backward | bfloat16 | 16384 x 8192 | 220.0 | 0.870 | 2.00 |" in page
    assert "other |" not in page.replace("than another |", "")


def test_row_kernels_have_a_table_of_goals() -> None:
    cell = dict(kind="suite", name="softmax", type="bfloat16", m=2048, n=131072, backend="cute", auto_us=100.0)
    cell |= dict(compile_us=140.0, share=0.93)
    odd = dict(
        kind="result", name="softmax", type="bfloat16", m=4096, n=50257, us=200.0, share=0.88, ok=True, guards=True
    )
    checks = [dict(kind="lengths", launches=7, wrong=1), dict(kind="sanitized", form="held", errors=0)]
    checks.append(dict(kind="logs", name="summed", relative=7e-6, log2_near_one=2e-7, ok=True))
    lines = [cell, {**odd, "same": True}, {**odd, "type": "float32", "same": False}]
    binaries = [dict(registers=64, plan_ms=21.0, compile_s=1.0, spill_bytes=8, target="h100", name="a", m=1, n=1)]
    binaries[0]["instructions"] = 9.0
    named = {"name": "softmax", "type": "bfloat16", "m": 1, "n": 1}
    found = {"X": [*lines, *({**named, **each} for each in checks)], report.row_report.BINARIES: binaries}
    page = "\n".join(report.row_report.sections(found))
    for row in (
        "| the same, all together | 0.95 | 0.930 | no |",
        "| torch.compile / ours, rows from 32768 columns on | 1.45 | 0 of 1, lowest 1.40 | no |",
        "| share of the copy, long rows that begin anywhere | 0.90 | 0 of 2, lowest 0.88 | no |",
        "| plan, verification and text, ms | 20 | 21.0 | no |",
        "| compilation, s | 2 | 1.0 | yes |",
        "| binaries for Hopper and Blackwell that spill | 0 | 1 of 1 | no |",
        "| cells whose results differ in four runs | 0 | 1 of 2 | no |",
        "| launches of random sizes that differ | 0 | 1 of 7 | no |",
        "| errors of compute-sanitizer in held | 0 | 0 | yes |",
        "| summed | bfloat16 | 7.0e-06 | 2.0e-07 |",
    ):
        assert row in page


def test_misses_of_row_kernels_have_a_reason() -> None:
    cell = dict(kind="suite", type="bfloat16", backend="cute", compile_us=150.0, share=0.8)
    cells = [
        {**cell, "name": "softmax", "m": 2048, "n": 131072, "auto_us": 300.0},
        {**cell, "name": "sum", "m": 131072, "n": 128, "auto_us": 300.0},
        {**cell, "name": "jsd", "m": 2048, "n": 131072, "auto_us": 300.0},
        {**cell, "name": "max", "m": 2048, "n": 131072, "auto_us": 300.0},
        {**cell, "name": "mean", "m": 131072, "n": 128, "auto_us": 300.0},
    ]
    count = dict(device="X", type="bfloat16", backend="cute", spill_bytes=0, math=2.0, cluster=4, passes=1)
    counts = [
        {**count, "name": "softmax", "m": 2048, "n": 131072, "instructions": 20.0},
        {**count, "name": "sum", "m": 131072, "n": 128, "instructions": 2.0},
        {**count, "name": "jsd", "m": 2048, "n": 131072, "instructions": 2.0},
        {**count, "name": "max", "m": 2048, "n": 131072, "instructions": 2.0, "passes": 2},
        {**count, "name": "mean", "m": 131072, "n": 128, "instructions": 2.0, "host": 1},
    ]
    page = "\n".join(report.row_report.sections({"X": cells, report.row_report.MISSES: counts}))
    assert "| softmax | bfloat16 | 2048 x 131072 | cute | 0.800 | 20.0 | 0.60 | issue of instructions, 2.0 of" in page
    assert (
        "| sum | bfloat16 | 131072 x 128 | cute | 0.800 | 2.0 | 0.00 | rows of 256 bytes: few bytes in flight" in page
    )
    assert "| jsd | bfloat16 | 2048 x 131072 | cute | 0.800 | 2.0 | 0.06 | waits of clusters of 4 CTAs" in page
    assert "| max | bfloat16 | 2048 x 131072 | cute | 0.800 | 2.0 | - | rows are read 2 times |" in page
    assert (
        "| mean | bfloat16 | 131072 x 128 | cute | 0.800 | 2.0 | 0.00 | launches of torch after the kernel's: 1" in page
    )


def test_few_rows_have_a_table() -> None:
    cell = dict(kind="few", type="bfloat16", backend="triton", name="softmax", m=1, n=4096, share=0.1)
    suite = dict(cell, kind="suite", auto_us=3.0, compile_us=4.0, share=0.99)
    cells = [dict(cell, auto_us=3.0, compile_us=4.0, cute_us=5.0), dict(cell, m=64, auto_us=6.0, compile_us=4.0)]
    page = "\n".join(report.row_report.sections({"X": [suite, *cells]}))
    assert "1 are more than 5 % slower than torch.compile or Triton's default: softmax 64 x 4096." in page
    assert "| softmax | 1 x 4096 | 3.0 | triton | - | 5.0 | 4.0 |" in page


def test_linear_cross_entropy_is_counted_in_products() -> None:
    line = dict(shape="8192x4096x128256", failed={}, forward=dict(helion=10000.0), peak_mib=dict(helion=1.0, eager=9.0))
    line |= dict(both=dict(helion=31000.0, compile=37200.0))
    parts = [dict(name="logits", us=1300.0, cublas_us=1350.0), dict(name="probabilities", us=200.0, cublas_us=None)]
    run = dict(rows=1024, of=8192, shape="8192x4096x128256", device="X", both_us=14000.0)
    page = "\n".join(
        report.row_report.sections({report.row_report.LINEAR: [line], report.row_report.PARTS: [run, *parts]})
    )
    assert "| 8192x4096x128256 | 10.00 | 31.00 | 3.10 | 833 | 1.20 | 9.0 |" in page
    assert "8 steps take 12.0 ms in bursts, 10.4 of them in products, and 14.0 ms in" in page
    assert "| probabilities | 200 | - |" in page


def test_binaries_of_row_kernels_have_a_table() -> None:
    line = dict(name="softmax", m=16384, n=8192, target="h100", registers=96, spill_bytes=0, instructions=9.0)
    lines = [
        {**line, "plan_ms": 3.0, "compile_s": 0.5},
        {**line, "target": "b200", "spill_bytes": 8, "plan_ms": 4.0, "compile_s": 0.7},
        dict(name="argmax", m=16384, n=8192, target="b200", refused="why"),
    ]
    page = "\n".join(report.row_report.sections({report.row_report.BINARIES: lines}))
    assert "take at most 4.0 ms of the processor, a compilation 0.7 s" in " ".join(page.split())
    assert "1 of 2 binaries spill, at most 8 bytes" in page
    assert "| softmax | 16384 x 8192 | 96, 0, 9.0 | 96, 8, 9.0 |" in page
    assert "| argmax | 16384 x 8192 | refused | refused |" in page
