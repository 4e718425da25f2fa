"""Kernels with shapes and dtypes that the table of seeds and the benchmarks share.

Tensors of a cell are of device ``meta``; ``inputs`` makes random ones of the same shapes on a device.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

import helion
from benchmarks.general import KERNELS, SUMMED
from benchmarks.holdout import HOLDOUT
from benchmarks.mechanisms import MECHANISMS
from benchmarks.unfitted import CELLS as UNFITTED
from benchmarks.unfitted.cell import UserKernel
from benchmarks.unseen.table import ALL as UNSEEN
from benchmarks.unseen.table import Maker, Unseen
from benchmarks.workloads.table import WORKLOADS
from helion._testing import EXAMPLES_DIR, as_meta, import_path, map_tensors
from helion.settings import Settings

#: Shows kernels of the other files and has none of its own.
NO_EXAMPLES = ("demo",)
DTYPES = (torch.bfloat16, torch.float32)

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

#: M, K, N, dtype of plain products: squares, layers of language models, few rows, sizes that nothing divides.
PRODUCTS = (
    (1024, 1024, 1024, torch.bfloat16),
    (2048, 2048, 2048, torch.bfloat16),
    (4096, 4096, 4096, torch.bfloat16),
    (8192, 8192, 8192, torch.bfloat16),
    (8192, 4096, 14336, torch.bfloat16),
    (8192, 14336, 4096, torch.bfloat16),
    (512, 4096, 4096, torch.bfloat16),
    (128, 8192, 8192, torch.bfloat16),
    (16, 4096, 4096, torch.bfloat16),
    (1, 8192, 8192, torch.bfloat16),
    (131072, 512, 512, torch.bfloat16),
    (256, 65536, 256, torch.bfloat16),
    (4097, 1000, 4097, torch.bfloat16),
    (4096, 4096, 4096, torch.float16),
    (2048, 2048, 2048, torch.float32),
    (4096, 4096, 4096, torch.float32),
)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One kernel with arguments, of ``meta`` tensors alone.

    ``high`` is what integer tensors stay below; ``logarithms`` asks for rows that are log-probabilities. ``summed`` is
    the dimension over which every second matrix is multiplied, None where there are no products. ``baseline`` is the same
    computation in eager PyTorch, without autograd; None where nothing is compared. ``library`` is the fastest call of a
    library for it, where that is another. ``made`` makes the arguments on a device, where they are not just random.
    """

    suite: str
    kernel: str
    case: str
    dtype: str
    function: helion.Kernel
    args: tuple[Any, ...]
    baseline: Callable[..., Any] | None = None
    high: int = 2
    logarithms: bool = False
    summed: int | None = None
    library: Callable[..., Any] | None = None
    made: Callable[[str, int], tuple[Any, ...]] | None = None

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


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def example_cells() -> Iterator[Cell]:
    """Every case of every example, at the sizes that its own run has."""
    for path in sorted(EXAMPLES_DIR.glob("*.py")):
        if path.stem in NO_EXAMPLES:
            continue
        for case, kernel, args in _example(path.stem).cases():
            args = as_meta(args)
            yield Cell(suite="examples", kernel=kernel.name, case=case, dtype=_dtypes(args), function=kernel, args=args)


def epilogue_cells() -> Iterator[Cell]:
    """Products that a reduction over their columns follows; each whole-row kernel beside its form with tiled columns."""
    for name, m, k, n, dtype in EPILOGUES:
        per_column = {"matmul_layernorm": 2, "matmul_rms_norm": 1}.get(name, 0)
        args: tuple[torch.Tensor, ...] = (_tensor(m, k, dtype=dtype), _tensor(k, n, dtype=dtype))
        args += _vectors(per_column, n, dtype)
        for file in (name, f"{name}_tiled"):
            if (EXAMPLES_DIR / f"{file}.py").is_file():
                yield Cell(
                    suite="epilogue",
                    kernel=file,
                    case=f"M={m} K={k} N={n}",
                    dtype=_dtypes(args),
                    function=getattr(_example(file), file),
                    args=args,
                    baseline=_example(file).reference,
                    summed=0,
                )


def _row(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return (_tensor(m, n, dtype=dtype),)


def _two_rows(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return *_row(m, n, dtype), *_row(m, n, dtype)


def _vectors(count: int, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Each a tensor of its own: one that is given twice is read once."""
    return tuple(_tensor(n, dtype=dtype) for _ in range(count))


def _row_and(vectors: int, rows: int = 1) -> Callable[[int, int, torch.dtype], tuple[Any, ...]]:
    def arguments(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
        return *(row for _ in range(rows) for row in _row(m, n, dtype)), *_vectors(vectors, n, dtype)

    return arguments


def _labelled(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return *_row(m, n, dtype), _tensor(m, dtype=torch.int64)


def _scores(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return _tensor(16, m // 16, n, dtype=dtype), _tensor(m // 16, n, dtype=torch.bool), 0.125


def _tokens(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    length = m // 8
    return (
        _tensor(8, length, n, dtype=dtype),
        _tensor(8, length, dtype=torch.int64),
        _tensor(8, length, dtype=torch.float32),
        _tensor(8, length, dtype=torch.float32),
        _tensor(8, dtype=torch.float32),
    )


def _states(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(_tensor(rows, 512, dtype=dtype) for rows in (m, n, m, n))


def _kl_div(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.nn.functional.kl_div(x.to(wide), target.to(wide), reduction="none").sum() / x.size(0)


def _jsd(student: torch.Tensor, teacher: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The example's losses and gradient, the gradient written out, as a compiler can fuse it."""
    wide = torch.promote_types(student.dtype, torch.float32)
    log_q, log_p = student.to(wide), teacher.to(wide)
    log_mix = torch.logaddexp(log_p, log_q) - math.log(2)
    from_q = 0.5 * log_q.exp() * (log_q - log_mix)
    return (0.5 * log_p.exp() * (log_p - log_mix) + from_q).sum(-1), from_q.to(student.dtype)


def _grpo_loss(
    logits: torch.Tensor, tokens: torch.Tensor, old: torch.Tensor, anchor: torch.Tensor, advantages: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The example's losses and gradient, the gradient written out, as a compiler can fuse it."""
    beta, clip = 0.04, 0.2
    values = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    log_p = values.gather(-1, tokens[:, :, None]).squeeze(-1)
    ratio, drift = torch.exp(log_p - old), anchor - log_p
    free, clipped = ratio * advantages[:, None], ratio.clamp(1 - clip, 1 + clip) * advantages[:, None]
    losses = beta * (torch.exp(drift) - drift - 1) - torch.minimum(free, clipped)
    slope = beta * (1 - torch.exp(drift)) - torch.where(free <= clipped, free, 0.0)
    hit = torch.arange(logits.size(-1), device=logits.device) == tokens[:, :, None]
    return losses, (slope[:, :, None] * (hit.to(values.dtype) - values.exp())).to(logits.dtype)


#: Suite, file, kernel, and the arguments for a number of rows, their length and a dtype.
RowKernel: TypeAlias = tuple[str, str, str, Callable[[int, int, torch.dtype], tuple[Any, ...]]]
ROW_KERNELS: tuple[RowKernel, ...] = (
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
    ("transfer", "fused_linear_jsd", "fused_linear_jsd_tiled", _states),
)


def _dynamic_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _example("dynamic_quant").reference(x.to(torch.promote_types(x.dtype, torch.float32)))


def _matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ y


#: References that use autograd, or that a low precision makes meaningless, written out.
BASELINES: dict[str, Callable[..., Any]] = {
    "jsd": _jsd,
    "grpo_loss": _grpo_loss,
    "kl_div": _kl_div,
    "dynamic_quant": _dynamic_quant,
}
LOGARITHMS = ("jsd", "kl_div")
#: Kernels, rows and columns of the cells with few rows.
FEW_ROW_KERNELS = (
    *("rms_norm", "layer_norm", "softmax", "row_sum", "cross_entropy"),
    *("fused_add_rms_norm", "gated_rms_norm", "dynamic_quant"),
)
FEW_ROWS = (1, 64, 16)
FEW_ROWS_EXTENTS = (4096, 32768, 1000)


def row_cells() -> Iterator[Cell]:
    """The reductions over rows of every length."""
    for kernel in ROW_KERNELS:
        for n in EXTENTS:
            m = max(MIN_ROWS, min(MAX_ROWS, ELEMENTS // n // 128 * 128))
            for dtype in DTYPES:
                yield _row_cell(kernel, m, n, dtype)


def few_row_cells() -> Iterator[Cell]:
    """The reductions over fewer rows than a GPU has SMs."""
    kernels = [kernel for kernel in ROW_KERNELS if kernel[2] in FEW_ROW_KERNELS]
    for m, n in itertools.product(FEW_ROWS, FEW_ROWS_EXTENTS):
        for kernel in kernels:
            yield _row_cell(kernel, m, n, torch.bfloat16)


def _row_cell(kernel: RowKernel, m: int, n: int, dtype: torch.dtype) -> Cell:
    suite, file, name, arguments = kernel
    return Cell(
        suite=suite,
        kernel=name,
        case=f"{m} rows of {n}",
        dtype=_name(dtype),
        function=getattr(_example(file), name),
        args=arguments(m, n, dtype),
        baseline=BASELINES.get(name, _example(file).reference),
        high=n,
        logarithms=name in LOGARITHMS,
        summed=1 if file == "fused_linear_jsd" else None,
    )


def matmul_cells() -> Iterator[Cell]:
    for m, k, n, dtype in PRODUCTS:
        yield Cell(
            suite="matmul",
            kernel="matmul",
            case=f"M={m} K={k} N={n}",
            dtype=_name(dtype),
            function=_example("matmul").matmul,
            args=(_tensor(m, k, dtype=dtype), _tensor(k, n, dtype=dtype)),
            baseline=_matmul,
            summed=0,
        )


#: File and kernel, and its arguments for M, N and a dtype.
POINTWISE: tuple[tuple[str, str, Callable[[int, int, torch.dtype], tuple[Any, ...]]], ...] = (
    ("add", "add", _two_rows),
    ("add", "add", lambda m, n, dtype: (_tensor(m, n, dtype=dtype), _tensor(n, dtype=dtype))),
    ("exp", "exp", _row),
    ("swiglu", "swiglu", _two_rows),
    ("geglu", "geglu", _two_rows),
)


def pointwise_cells() -> Iterator[Cell]:
    for position, (file, name, arguments) in enumerate(POINTWISE):
        for m, n in ((8192, 8192), (4097, 1000), (131072, 128), (1024, 131072)):
            for dtype in DTYPES:
                yield Cell(
                    suite="pointwise",
                    kernel=name,
                    case=f"{m} by {n}" + (" plus a row" if position == 1 else ""),
                    dtype=_name(dtype),
                    function=getattr(_example(file), name),
                    args=arguments(m, n, dtype),
                    baseline=_example(file).reference,
                )


def general_cells() -> Iterator[Cell]:
    """Kernels that are no examples."""
    for kernel, baseline, dtype, shapes in KERNELS:
        rows = [shape for shape in shapes if len(shape) > 1]
        yield Cell(
            suite="general",
            kernel=kernel.name,
            case=" and ".join(dict.fromkeys(" by ".join(map(str, shape)) for shape in rows)),
            dtype=_name(dtype),
            function=kernel,
            args=tuple(_tensor(*shape, dtype=dtype) for shape in shapes),
            baseline=baseline,
            summed=SUMMED.get(kernel.name),
        )


def unseen_cells() -> Iterator[Cell]:
    """Families of kernels that no rule was made for."""
    return _made_cells("unseen", UNSEEN)


def workload_cells() -> Iterator[Cell]:
    """Steps of whole workloads, which came after all rules."""
    return _made_cells("workloads", WORKLOADS)


def mechanism_cells() -> Iterator[Cell]:
    """Kernels whose time one physical mechanism decides."""
    return _made_cells("mechanisms", MECHANISMS)


def holdout_cells() -> Iterator[Cell]:
    """Kernels that predicted times are judged by and were not fitted to."""
    return _made_cells("holdout", HOLDOUT)


def unfitted_cells() -> list[Cell]:
    """Kernels as users write them, which no rule was fitted to; all by Triton, also those that another backend takes."""
    return [_unfitted(name, cell) for name, cell in UNFITTED.items()]


def _unfitted(name: str, cell: UserKernel) -> Cell:
    def made(device: str, seed: int) -> tuple[Any, ...]:
        torch.manual_seed(seed)
        return cell.arguments(device, False)

    args = made("meta", 0)
    first = next(arg for arg in args if isinstance(arg, torch.Tensor))
    return Cell(
        suite="unfitted",
        kernel=name,
        case=" by ".join(map(str, first.shape)),
        dtype=_dtypes(args),
        function=helion.kernel(
            cell.kernel.fn, settings=Settings(**{**cell.kernel.settings.to_dict(), "backend": "triton"})
        ),
        args=args,
        baseline=cell.reference,
        made=made,
    )


def _made_cells(suite: str, kernels: Sequence[Unseen]) -> Iterator[Cell]:
    for one in kernels:
        for dtype, shape in one.shapes:

            def made(device: str, seed: int, one=one, dtype=dtype, shape=shape) -> tuple[Any, ...]:  # type: ignore[no-untyped-def]
                return one.arguments(Maker(device, seed), dtype, *shape)

            yield Cell(
                suite=suite,
                kernel=one.kernel.name,
                case=" by ".join(map(str, shape)),
                dtype=_name(dtype),
                function=one.kernel,
                args=made("meta", 0),
                baseline=one.reference,
                library=one.library,
                made=made,
            )


def _common_cells() -> list[Cell]:
    return [*epilogue_cells(), *row_cells(), *matmul_cells(), *pointwise_cells()]


def table_cells() -> list[Cell]:
    """All of the table of seeds, in its order; no two have the same key."""
    return [*example_cells(), *_common_cells()]


def timed_cells() -> list[Cell]:
    """All that is timed on a GPU. Nothing is made on it: examples, which make their arguments there, have no baseline."""
    cells = (*_common_cells(), *general_cells(), *unseen_cells(), *workload_cells(), *mechanism_cells())
    return [cell for cell in cells if cell.baseline is not None]


def swept_cells() -> list[Cell]:
    """All whose configs are timed."""
    return [*timed_cells(), *holdout_cells()]


def inputs(cell: Cell, device: str, seed: int = 0) -> tuple[Any, ...]:
    """Random arguments: normal numbers with mean 1/4, integers below ``cell.high``, log-probabilities where asked for.

    Matrices that are multiplied are scaled down by the root of their common extent, so that results are of order 1.
    """
    if cell.made is not None:
        return cell.made(device, seed)
    generator = torch.Generator(device).manual_seed(seed)
    made = 0

    def make(like: torch.Tensor) -> torch.Tensor:
        nonlocal made
        made += 1
        shape = tuple(like.shape)
        if like.dtype == torch.bool:
            return torch.rand(shape, generator=generator, device=device) < 0.3
        if not like.is_floating_point():
            return torch.randint(0, cell.high, shape, generator=generator, device=device, dtype=like.dtype)
        values = torch.randn(shape, generator=generator, device=device)
        if cell.logarithms:
            values = torch.log_softmax(values * 2, dim=-1)
            return (values.exp() if cell.kernel == "kl_div" and made == 2 else values).to(like.dtype)
        if cell.summed is not None and values.dim() > 1 and made % 2 == 0:
            return (values / shape[cell.summed] ** 0.5).to(like.dtype)
        return (values + 0.25).to(like.dtype)

    return map_tensors(cell.args, make)
