"""The page of the examples: what each file computes, from its docstring, its picture, and its speed if it was measured."""

from __future__ import annotations

import ast
import json
import re
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
RESULTS = ROOT / "benchmarks" / "results"

#: Titles of the folders of examples, in the order of the page.
FOLDERS = {
    "": "Kernels",
    "attention_variants": "Forms of attention",
    "jagged": "Segments of rows of different lengths",
    "linear": "Linear attention and its states",
    "aot": "Configs in a table next to the kernel",
    "cute": "Kernels of the cute backend",
    "distributed": "Several GPUs",
}
#: Files without a kernel of their own.
HELPERS = (
    "aot/_helion_aot_row_norm_cuda_sm90.py",
    "attention_variants/comparison.py",
    "cute/common.py",
    "demo.py",
)


def summary(source: str) -> str:
    """Return the first paragraph of a module's docstring as one line."""
    doc = ast.get_docstring(ast.parse(source)) or ""
    return " ".join(doc.split("\n\n")[0].split())


def kernels(source: str) -> list[str]:
    """Return the names of the functions that ``helion.kernel`` or ``helion.aot_kernel`` decorates."""
    return [
        node.name
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
        and any(re.match(r"helion\.(aot_)?kernel\b", ast.unparse(each)) for each in node.decorator_list)
    ]


def speeds(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return for each kernel the times of torch.compile divided by its own, untuned, of all measured shapes."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        times = row["times"]
        if "seed" in times and "compile" in times:
            found[row["kernel"]].append(times["compile"]["median"] / times["seed"]["median"])
    return dict(found)


def measured(results: Path, device: str) -> dict[str, list[float]]:
    """Return the speeds of the kernels of all suites that were measured on a device."""
    rows: list[Mapping[str, Any]] = []
    for path in sorted(results.glob(f"{device}-*.json")):
        content = json.loads(path.read_text())
        rows += content["rows"] if isinstance(content, dict) and "rows" in content else []
    return speeds(rows)


def lines(folder: Path, known: Mapping[str, list[float]], drawn: Collection[str] = ()) -> list[str]:
    """Return the rows of a table: file, what it computes, its speed, and its picture if it is one of ``drawn``."""
    found = []
    for path in sorted(folder.glob("*.py")):
        name = path.relative_to(EXAMPLES).as_posix() if path.is_relative_to(EXAMPLES) else path.name
        if name in HELPERS or name.startswith("_"):
            continue
        source = path.read_text()
        ratios = [ratio for kernel in kernels(source) for ratio in known.get(kernel, ())]
        speed = f"{statistics.geometric_mean(ratios):.2f} ({len(ratios)})" if ratios else ""
        text = re.sub(r"\|", r"\\|", summary(source))
        image = f"![Tiles of {name}]({picture_path(name)})" if name in drawn else ""
        found.append(f"| `{name}` | {text} | {speed} | {image} |")
    return found


def picture_path(name: str) -> str:
    """Return the path of the picture of an example, as seen from the page."""
    return f"gallery/{name.removesuffix('.py').replace('/', '-')}.svg"


def operator_lines(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the rows of a table: operator, shape, microseconds, and the best of PyTorch's times divided by them.

    They are those of the forward pass, of both passes, and with few rows of a call on the host.
    """
    found = []
    for row in rows:
        cells = []
        for label in ("forward", "both", "host"):
            times = dict(row.get(label, {}))
            own = times.pop("helion", None)
            cells += [f"{own:.1f}", f"{min(times.values()) / own:.2f}"] if own and times else ["", ""]
        found.append(f"| `{row['name']}` | {row['shape']} | {' | '.join(cells)} |")
    return found


def operators() -> str:
    """Return the section on the operators of ``helion.ops``."""
    content = json.loads((RESULTS / "ops" / "nvidia-h200.json").read_text())
    head = [
        "| operator | shape | forward, µs | speed | with gradients, µs | speed | host, µs | speed |",
        "| :-- | :-- | --: | --: | --: | --: | --: | --: |",
    ]
    return "\n".join(
        [
            "## Operators for models",
            "",
            "`python benchmarks/ops.py` measures these on an H200, with a cold L2 and without tuning. The speed is 1 for the "
            "faster one of torch.compile and eager PyTorch. For up to 64 rows the last columns have the time of a call on the "
            "host, or of the GPU where that takes longer. Torch's own operators stay in C++ there, while a kernel's call "
            "checks its arguments in Python.",
            "",
            *head,
            *operator_lines(content["rows"]),
            "",
            first_calls(json.loads((RESULTS / "ops" / "nvidia-h200-first-calls.json").read_text())["rows"]),
            "",
            *pairs("Elementwise operations in kernels", FUSION, "pattern", "us", "unfused", "fused"),
            "",
            *pairs("Several grid loops in one launch", TOGETHER, "case", "loop_us", "apart", "together", "default"),
        ]
    )


#: Introductions of tables of two variants.
FUSION = (
    "nvidia-h200-fusion.jsonl",
    "`python benchmarks/fusion.py` compares kernels under torch.compile with `torch_compile_fusion` and without it.",
)
TOGETHER = (
    "nvidia-h200-cooperative.jsonl",
    "`python benchmarks/cooperative.py` compares one launch, by `cooperative_launch` or by default, with a launch for each"
    " grid loop, in a loop of calls.",
)


def pairs(title: str, source: tuple[str, str], name: str, times: str, without: str, *used: str) -> list[str]:
    """Return a section with the times of two variants, of the lines of a file of results that have both: of those used, the first."""
    file, text = source
    rows = [json.loads(line) for line in (RESULTS / "ops" / file).read_text().splitlines()]
    lines = ["| case | without, µs | with, µs | speed |", "| :-- | --: | --: | --: |"]
    for row in rows:
        after = next((row[times][each] for each in used if each in row[times]), None)
        if after is None or without not in row[times]:
            continue
        before = row[times][without]
        lines.append(f"| {row[name]} | {before:.1f} | {after:.1f} | {before / after:.2f} |")
    return [f"## {title}", "", f"{text} These times are of an H200.", "", *lines]


def first_calls(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the sentences on the first calls of all operators, each by its last row."""
    by_caches = {row["caches"]: row for row in rows}
    empty, filled = by_caches["empty"], by_caches["filled"]
    slowest = max(filled["calls_s"].values())
    return (
        f"First calls of {len(empty['calls_s'])} operators take {empty['seconds']:.0f} s with empty caches, in "
        f"{empty['processes']} processes at the same time. A later process takes {filled['sum_s']:.1f} s for all, and "
        f"{slowest:.1f} s of that for the first ones. `python benchmarks/ops_first_calls.py` measures both."
    )


def page(drawn: Collection[str] = ()) -> str:
    """Return the page in Markdown, with pictures of the examples that are ``drawn``."""
    known = measured(RESULTS, "nvidia-h200")
    parts = [
        "# Examples",
        "Each file of `examples/` is a program: `python examples/softmax.py` compares its kernels with PyTorch, on a GPU or "
        "without one, and prints times on a GPU. [Operators for models](guide/ops.md) are more kernels, of a page each.",
        "The speed is that on an H200 where torch.compile is 1, without tuning: the geometric mean, and the "
        "number of shapes. [Measurements](performance.md) has them all.",
        "Pictures show the tensors that a kernel accesses, in the order of the program, and the tiles of the default config. "
        "The first tile is filled: blue if it is loaded, green if it is stored, red if it is added to. Shaded is what "
        "the program of this tile walks.",
    ]
    books = ", ".join(
        f"`{path.relative_to(EXAMPLES).as_posix()}`" for path in sorted(EXAMPLES.glob("notebooks/*.ipynb"))
    )
    parts.append(f"Two notebooks need no GPU: {books}.")
    for folder, title in FOLDERS.items():
        head = ["| file | computes | speed | tiles |", "| :-- | :-- | --: | :-- |"]
        parts.append(f"## {title}\n\n" + "\n".join([*head, *lines(EXAMPLES / folder, known, drawn)]))
    return "\n\n".join([*parts, operators()]) + "\n"
