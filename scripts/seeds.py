"""The table of seeds: what the heuristics choose for kernels and shapes nobody tuned. Needs no GPU.

    python scripts/seeds.py            writes test/seeds/seeds.tsv
    python scripts/seeds.py --check    prints how the file differs from what it would write, and exits with 1 if it does

One line a kernel, case, dtype and target, tab-separated: facts (`"` where they are those of the line above), the
heuristic of the first seed, its config without keys at their defaults, predicted registers a thread and shared memory
a block in bytes. Where there is no seed the heuristic is `none` and the config says why; where the target cannot run
the kernel, `refused`. The lines cover every case of every example, matrix products with reduction epilogues, and
reductions over rows of 128 to 131072.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helion import exc  # noqa: E402
from helion._testing import EXAMPLES_DIR, as_meta, import_path, map_tensors  # noqa: E402

if TYPE_CHECKING:
    import helion
    from helion.runtime.bound import BoundKernel

TABLE = ROOT / "test" / "seeds" / "seeds.tsv"
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
COLUMNS = ("suite", "kernel", "case", "dtype", "target", "facts", "heuristic", "config", "registers", "shared")
DTYPES = (torch.bfloat16, torch.float32)
#: Shows kernels of the other files and has none of its own.
NO_EXAMPLES = ("demo",)

#: Row lengths of the reductions, and the elements that a tensor has as long as it keeps 2048 to 131072 rows.
EXTENTS = (128, 1000, 2048, 4096, 8192, 16384, 32768, 131072)
ELEMENTS, MIN_ROWS, MAX_ROWS = 2**27, 2048, 131072

#: Kernel, M, K, N, dtype: the shapes for which results of this kind of kernel on H100 are published.
EPILOGUES = (
    ("matmul_layernorm", 131072, 512, 512, torch.bfloat16),
    ("matmul_layernorm", 131072, 512, 512, torch.float32),
    ("matmul_layernorm", 131072, 512, 2048, torch.bfloat16),
    ("matmul_layernorm", 131072, 512, 4096, torch.bfloat16),
    ("matmul_layernorm", 131072, 4096, 2048, torch.bfloat16),
    ("matmul_layernorm", 512, 512, 512, torch.bfloat16),
    ("matmul_layernorm", 1024, 1024, 1024, torch.bfloat16),
    ("matmul_layernorm", 1024, 1024, 1024, torch.float32),
    ("matmul_layernorm", 2048, 2048, 2048, torch.float32),
    ("matmul_rms_norm", 1024, 1024, 1024, torch.bfloat16),
    ("matmul_rms_norm", 131072, 512, 4096, torch.bfloat16),
    ("matmul_rms_norm", 131072, 8192, 2048, torch.bfloat16),
    ("matmul_softmax", 1024, 1024, 1024, torch.float32),
    ("matmul_softmax", 131072, 512, 2048, torch.float32),
    ("matmul_softmax", 131072, 2048, 2048, torch.bfloat16),
    ("matmul_l2_normalize", 2048, 2048, 2048, torch.bfloat16),
    ("matmul_l2_normalize", 131072, 512, 4096, torch.bfloat16),
    ("matmul_l2_normalize", 131072, 6144, 1024, torch.bfloat16),
    ("matmul_logsumexp", 1024, 1024, 1024, torch.bfloat16),
    ("matmul_logsumexp", 131072, 512, 4096, torch.bfloat16),
    ("matmul_logsumexp", 131072, 3072, 2048, torch.bfloat16),
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One kernel with arguments: tensors of ``meta``, or (examples) any that bind to an absent GPU."""

    suite: str
    kernel: str
    case: str
    dtype: str
    function: helion.Kernel
    args: tuple[Any, ...]

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.suite, self.kernel, self.case, self.dtype


def _example(file: str) -> Any:
    return import_path(EXAMPLES_DIR / f"{file}.py")


def _tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _dtypes(args: tuple[Any, ...]) -> str:
    """The dtypes of the tensors in ``args`` in order, each once."""
    found: dict[str, None] = {}
    map_tensors(args, lambda t: (found.setdefault(str(t.dtype).removeprefix("torch.")), t)[1])
    return "+".join(found)


def example_cells() -> Iterator[Cell]:
    """Every case of every example."""
    for path in sorted(EXAMPLES_DIR.glob("*.py")):
        if path.stem in NO_EXAMPLES:
            continue
        for case, kernel, args in _example(path.stem).cases():
            args = as_meta(args)
            yield Cell(suite="examples", kernel=kernel.name, case=case, dtype=_dtypes(args), function=kernel, args=args)


def epilogue_cells() -> Iterator[Cell]:
    for name, m, k, n, dtype in EPILOGUES:
        per_column = {"matmul_layernorm": 2, "matmul_rms_norm": 1}.get(name, 0)
        args: tuple[torch.Tensor, ...] = (_tensor(m, k, dtype=dtype), _tensor(k, n, dtype=dtype))
        args += (_tensor(n, dtype=dtype),) * per_column
        yield Cell(
            suite="epilogue",
            kernel=name,
            case=f"M={m} K={k} N={n}",
            dtype=_dtypes(args),
            function=getattr(_example(name), name),
            args=args,
        )


def _row(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return (_tensor(m, n, dtype=dtype),)


def _two_rows(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return _row(m, n, dtype) * 2


def _row_and(vectors: int, rows: int = 1) -> Callable[[int, int, torch.dtype], tuple[Any, ...]]:
    return lambda m, n, dtype: _row(m, n, dtype) * rows + (_tensor(n, dtype=dtype),) * vectors


def _labelled(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return *_row(m, n, dtype), _tensor(m, dtype=torch.int64)


def _scores(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return _tensor(16, m // 16, n, dtype=dtype), _tensor(m // 16, n, dtype=torch.bool), 0.125


def _tokens(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    length = m // 8
    known = _tensor(8, length, dtype=torch.float32)
    return (
        _tensor(8, length, n, dtype=dtype),
        _tensor(8, length, dtype=torch.int64),
        known,
        known,
        _tensor(8, dtype=torch.float32),
    )


def _states(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return (_tensor(m, 512, dtype=dtype), _tensor(n, 512, dtype=dtype)) * 2


#: Suite, file, kernel, and the arguments for a number of rows, their length and a dtype.
ROW_KERNELS: tuple[tuple[str, str, str, Callable[[int, int, torch.dtype], tuple[Any, ...]]], ...] = (
    ("reductions", "rms_norm", "rms_norm", _row_and(1)),
    ("reductions", "layer_norm", "layer_norm", _row_and(2)),
    ("reductions", "softmax", "softmax", _row),
    ("reductions", "softmax", "softmax_two_pass", _row),
    ("reductions", "sum", "row_sum", _row),
    ("reductions", "long_sum", "long_sum", _row),
    ("reductions", "cross_entropy", "cross_entropy", _labelled),
    ("reductions", "kl_div", "kl_div", _two_rows),
    ("reductions", "jsd", "jsd", _two_rows),
    ("reductions", "welford", "welford", _row_and(2)),
    ("transfer", "fused_add_rms_norm", "fused_add_rms_norm", _row_and(1, rows=2)),
    ("transfer", "fused_add_layer_norm", "fused_add_layer_norm", _row_and(2, rows=2)),
    ("transfer", "gated_rms_norm", "gated_rms_norm", _row_and(1, rows=2)),
    ("transfer", "scaled_masked_softmax", "scaled_masked_softmax", _scores),
    ("transfer", "cross_entropy_ls_zloss", "cross_entropy_ls_zloss", _labelled),
    ("transfer", "dynamic_quant", "dynamic_quant", _row),
    ("transfer", "grpo_loss", "grpo_loss", _tokens),
    ("transfer", "fused_linear_jsd", "fused_linear_jsd", _states),
)


def row_cells() -> Iterator[Cell]:
    """The reductions over rows of every length."""
    for suite, file, name, arguments in ROW_KERNELS:
        for n in EXTENTS:
            m = max(MIN_ROWS, min(MAX_ROWS, ELEMENTS // n // 128 * 128))
            for dtype in DTYPES:
                args = arguments(m, n, dtype)
                yield Cell(
                    suite=suite,
                    kernel=name,
                    case=f"{m} rows of {n}",
                    dtype=str(dtype).removeprefix("torch."),
                    function=getattr(_example(file), name),
                    args=args,
                )


def cells() -> list[Cell]:
    """All of the table, in its order; no two have the same key."""
    return [*example_cells(), *epilogue_cells(), *row_cells()]


def bind(cell: Cell, target: str) -> BoundKernel:
    return cell.function.bind(cell.args, target=target)


def config_text(bound: BoundKernel, config: Any) -> str:
    """The config without keys at their defaults, on one line without tabs."""
    return " ".join(f"{key}={value!r}" for key, value in bound.short_config(config).items()).replace(", ", ",")


def line(cell: Cell, target: str) -> tuple[str, ...]:
    """The columns of one line, with the facts written out."""
    start = (*cell.key, target)
    try:
        bound = bind(cell, target)
        facts, seeds = bound.facts.summary(), bound.seeds
    except exc.BackendUnsupported as refusal:
        return *start, "", "refused", refusal.message, "", ""
    if not seeds:
        return *start, facts, "none", "; ".join(f"{name}: {reason}" for name, reason in bound.declined), "", ""
    first = seeds[0]
    predicted = first.predicted
    numbers = str(predicted.registers_per_thread), str(predicted.shared_bytes)
    return *start, facts, first.heuristic, config_text(bound, first.config), *numbers


def text(chosen: Iterable[Cell]) -> str:
    """The lines of ``chosen`` for every target, without the head of the table."""
    lines = []
    for cell in chosen:
        shown = None
        for target in TARGETS:
            columns = list(line(cell, target))
            facts = columns[COLUMNS.index("facts")]
            if facts == shown:
                columns[COLUMNS.index("facts")] = '"'
            shown = facts
            lines.append("\t".join(columns))
    return "".join(f"{one}\n" for one in lines)


def table() -> str:
    return "\t".join(COLUMNS) + "\n" + text(cells())


def main() -> None:
    parser = argparse.ArgumentParser(description="write or check the table of seeds")
    parser.add_argument("--check", action="store_true", help="compare with the file and leave it as it is")
    arguments = parser.parse_args()
    made = table()
    if not arguments.check:
        TABLE.write_text(made)
        print(f"{TABLE.relative_to(ROOT)}: {made.count(chr(10)) - 1} lines, {len(made)} bytes")
        return
    kept = TABLE.read_text()
    if kept != made:
        changes = difflib.unified_diff(kept.splitlines(), made.splitlines(), "kept", "made", lineterm="", n=0)
        print(*changes, sep="\n")
        raise SystemExit("the seeds have changed: run `make seeds` and look at the diff")
    print(f"{TABLE.relative_to(ROOT)} is what the heuristics choose")


if __name__ == "__main__":
    main()
