"""Times of attention beside torch's libraries on a GPU: forward, hooks, ragged sizes, backward and decoding.

    python benchmarks/attention.py --out FILE [--seconds N] [--at-once N] [--device cpu] [JOB ...]

A job is a kind of cells, such as ``forward:128:causal``. Each has its own process, which compiles its kernels side by side
with the others and then takes the GPU in turn. FILE has a line of JSON for the device, then one for each variant of a cell:
microseconds of the GPU with a cold L2, and the error of one group of heads against fp64. In decoding, ``clean`` has those after
L2 was filled by reads: otherwise a kernel that reads waits for the lines that L2 writes back. Other variants are the backends of
torch's ``scaled_dot_product_attention``, and compiled FlexAttention for hooks. ``--device cpu`` plans the first cell of each
job, without a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "attention_variants")]

import helion  # noqa: E402
from benchmarks.timing import FLUSH_BYTES, REPETITIONS, GraphTimer, reason  # noqa: E402
from benchmarks.turns import in_turn, turn  # noqa: E402
from examples.attention import attention  # noqa: E402
from examples.attention_variants.latent import latent_decode  # noqa: E402
from examples.flex_attention import causal as causal_scores  # noqa: E402
from examples.flex_attention import flex_attention, unchanged  # noqa: E402
from helion import ops  # noqa: E402
from helion.ops.kernels.attention import attention_kernel  # noqa: E402
from helion.ops.kernels.varlen import varlen_attention_kernel  # noqa: E402

WINDOW, CAP, DOCUMENTS = 1024, 30.0, 8
#: Limit of the relative error of a group of heads in bf16.
ERROR = 8e-3
#: The share of the time after which turns begin, though some processes still compile.
PREPARED = 0.65
#: Cycles that the GPU waits for the host to launch a call of autograd.
QUEUED_CYCLES = 2_000_000
#: Queries of heads that share no keys for which the gradients are derived as well, since each size compiles four kernels.
DERIVED = 4096


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One attention in bf16: ``queries[batch, heads, m, dims]``, with keys and values of ``groups`` heads of ``n`` rows.

    Values have ``values`` dimensions. If the cell is ``latent``, they are the first dimensions of the keys.
    """

    dims: int
    causal: bool = False
    batch: int
    heads: int
    groups: int
    m: int
    n: int
    hook: str = ""
    values: int = 0
    """0: as many as ``dims``."""
    latent: bool = False

    @property
    def reads_most(self) -> bool:
        """Whether most of the time goes to reading keys and values, as in decoding."""
        return self.n >= 8 * self.m

    def tensors(self, device: str) -> list[torch.Tensor]:
        """Return queries, keys and values."""
        shapes = [(self.batch, *shape, self.dims) for shape in ((self.heads, self.m), *[(self.groups, self.n)] * 2)]
        shapes[2] = (*shapes[2][:-1], self.values or self.dims)
        if device == "meta":
            made = [torch.empty(shape, dtype=torch.bfloat16, device=device) for shape in shapes]
        else:
            generator = torch.Generator(device).manual_seed(self.m + self.n)
            made = [torch.randn(shape, generator=generator, device=device).bfloat16() for shape in shapes]
        return [*made[:2], made[1][..., : self.values]] if self.latent else made


def cell(dims: int, causal: bool, batch: int, heads: int, groups: int, m: int, n: int = 0, **more: Any) -> Cell:
    return Cell(dims=dims, causal=causal, batch=batch, heads=heads, groups=groups, m=m, n=n or m, **more)


def jobs() -> dict[str, list[Cell]]:
    """Return the cells by job, those that take longest to compile first."""
    found: dict[str, list[Cell]] = {}
    for dims, mask in ((dims, mask) for dims in (128, 64, 256) for mask in ("causal", "full")):
        heads, causal = 2048 // dims, mask == "causal"
        lengths = (1024, 4096, 16384)
        found[f"backward:{dims}:{mask}"] = [
            cell(dims, causal, 16384 // m, heads, groups, m)
            for groups, m in ((heads, 1024), (heads, 4096), (heads, 16384), (heads // 4, 4096), (heads // 8, 16384))
            if dims < 256 or (groups, m) != (heads // 8, 16384)
        ]
        found[f"forward:{dims}:{mask}"] = [cell(dims, causal, 16384 // m, heads, heads, m) for m in lengths]
        found[f"grouped:{dims}:{mask}"] = [
            cell(dims, causal, 16384 // m, heads, groups, m) for groups, m in ((heads // 4, 4096), (heads // 8, 16384))
        ]
        if dims <= 128:
            found[f"ragged:{dims}:{mask}"] = [
                *(cell(dims, causal, 1, heads, heads, m) for m in (577, 1000, 4097)),
                cell(dims, causal, 64, 16, 16, 577),
                cell(dims, causal, 1, 4, 4, 4096),
            ]
            if not causal:
                found[f"ragged:{dims}:{mask}"].append(
                    cell(dims, causal, 64, 12, 12, 197) if dims == 64 else cell(dims, causal, 32, 16, 16, 256)
                )
    for dims in (128, 64):
        for hook in HOOKS:
            sizes = ((4, 4096), (1, 16384)) if hook != "bias" else ((4, 4096), (16, 1024))
            masked = hook in ("window", "documents")
            found[f"hooks:{dims}:{hook}"] = [
                cell(dims, masked, 1 if hook == "documents" else batch, 2048 // dims, 2048 // dims, m, hook=hook)
                for batch, m in sizes
            ]
    for m in (1, 4, 16):
        shapes = (16, 32, 8, 4096), (1, 32, 8, 16384), (1, 32, 8, 65536), (1, 32, 8, 131072)
        found[f"decode:128:{m}"] = [cell(128, False, batch, h, groups, m, n) for batch, h, groups, n in shapes]
    found["wide:192:causal"] = [
        cell(192, True, 16384 // m, 16, groups, m, values=128) for groups, m in ((16, 1024), (16, 4096), (16, 16384))
    ]
    found["latent:576:512"] = [
        cell(576, False, batch, 1, 1, 128, n, values=512, latent=True)
        for batch, n in ((16, 4096), (4, 16384), (1, 65536))
    ]
    found["decode:64:1"] = [cell(64, False, 16, 32, 32, 1, 4096), cell(64, False, 1, 64, 8, 1, 131072)]
    return found


# Formulas of scores -----------------------------------------------------------------------------------------------------


def softcap(score: torch.Tensor, b: Any, h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return CAP * torch.tanh(score / CAP)


def window(score: torch.Tensor, b: Any, h: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return torch.where((q >= k) & (q - k < WINDOW), score, float("-inf"))


def biased(bias: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Return a formula that adds `bias[H, M, N]`."""
    return lambda score, b, h, q, k: score + bias[h, q, k]


def sloped(slopes: torch.Tensor) -> Callable[..., torch.Tensor]:
    """Return a formula that adds a slope for each head times the distance."""
    return lambda score, b, h, q, k: score + slopes[h] * (k - q)


HOOKS = ("softcap", "window", "bias", "documents")


def inputs_of(cell: Cell, device: str) -> list[torch.Tensor]:
    """Return the tensors that the formula of a cell reads; for documents the begin of that of each position."""
    if cell.hook == "bias":
        made = torch.empty(cell.heads, cell.m, cell.n, device=device, dtype=torch.bfloat16)
        return [made if device == "meta" else made.normal_()]
    if cell.hook == "slopes":
        return [torch.full([cell.heads], 0.01, device=device)]
    if cell.hook == "documents":
        length = cell.m // DOCUMENTS
        return [torch.arange(cell.m, device=device, dtype=torch.int32) // length * length]
    return []


def formula_of(cell: Cell, given: list[torch.Tensor]) -> Callable[..., torch.Tensor]:
    if cell.hook in ("bias", "slopes"):
        return (biased if cell.hook == "bias" else sloped)(*given)
    named = {"softcap": softcap, "window": window, "": causal_scores if cell.causal else unchanged}
    return named[cell.hook]


def exact(cell: Cell, given: list[torch.Tensor], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return the attention of the first head, of `[1, 1, M, D]` and `[1, 1, N, D]`, in the type of these."""
    scores = (q @ k.mT) * cell.dims**-0.5
    rows, columns = torch.arange(cell.m, device=q.device)[:, None], torch.arange(cell.n, device=q.device)
    if cell.hook == "softcap":
        scores = CAP * torch.tanh(scores / CAP)
    if cell.hook in ("bias", "slopes"):
        scores = formula_of(cell, [each.to(q.dtype) for each in given])(scores, 0, 0, rows, columns)
    if cell.causal:
        seen = columns <= rows
        if cell.hook == "window":
            seen = seen & (rows - columns < WINDOW)
        if cell.hook == "documents":
            seen = seen & (columns >= given[0][:, None])
        scores = scores.masked_fill(~seen, float("-inf"))
    return torch.softmax(scores, -1) @ v


# Variants ---------------------------------------------------------------------------------------------------------------


def ours(cell: Cell, tensors: list[torch.Tensor], given: list[torch.Tensor]) -> tuple[helion.Kernel, tuple[Any, ...]]:
    """Return the kernel of a forward cell, and the arguments of its call."""
    if cell.hook == "documents":
        rows = [x[0].transpose(0, 1) for x in tensors]
        begins = given[0]
        ends = torch.arange(1, cell.m + 1, device=begins.device, dtype=torch.int32)
        return varlen_attention_kernel, (*rows, None, begins, ends, 1, None, 0.0)
    if cell.latent:
        return latent_decode, (tensors[0][:, 0], tensors[1][:, 0], cell.values)
    if cell.values:
        return attention_kernel, (*(x.flatten(0, 1) for x in tensors), None, 1, None, cell.causal, 0, 0.0)
    if cell.heads == cell.groups and not cell.hook and cell.m == cell.n:
        return attention, (*tensors, cell.causal)
    return flex_attention, (*tensors, formula_of(cell, given))


def call_ours(cell: Cell, kernel: helion.Kernel, arguments: tuple[Any, ...]) -> torch.Tensor:
    found = kernel(*arguments)
    if cell.latent:
        return found[:, None]
    if cell.values:
        return found[0].unflatten(0, (cell.batch, cell.heads))
    return found[0].transpose(0, 1)[None] if cell.hook == "documents" else found


def libraries(cell: Cell, tensors: list[torch.Tensor]) -> dict[str, Callable[[], torch.Tensor]]:
    """Return torch's attention by backend."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    named = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    if cell.values:
        named["math"] = SDPBackend.MATH

    def attend(backend: Any) -> torch.Tensor:
        with sdpa_kernel(backend):
            q, k, v = tensors
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=cell.causal, enable_gqa=cell.heads != cell.groups
            )

    return {name: functools.partial(attend, backend) for name, backend in named.items()}


def flex(cell: Cell, tensors: list[torch.Tensor], given: list[torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Return compiled FlexAttention."""
    from torch.nn.attention import flex_attention as torch_flex

    mask = None
    if cell.causal:
        masks = {
            "window": lambda b, h, q, k: (q >= k) & (q - k < WINDOW),
            "documents": lambda b, h, q, k: (q >= k) & (k >= given[0][q]),
        }
        mask = torch_flex.create_block_mask(masks[cell.hook], None, None, cell.m, cell.n)
    score = formula_of(cell, given) if cell.hook in ("bias", "slopes", "softcap") else None
    compiled: Any = torch.compile(torch_flex.flex_attention, dynamic=False)
    return lambda: compiled(*tensors, score_mod=score, block_mask=mask)


def chosen(bound: Any, backend: str) -> str:
    """Return the backend that runs, and its config."""
    config = bound.default_config()
    names = ("kv_stages", "pingpong", "key_splits", "tile_scheduler", "bias_stages")
    keys = ("block_sizes", *(f"wgmma_{name}" for name in names), "num_warps")
    return f"{backend} " + ", ".join(f"{key}={config[key]}" for key in keys if key in config)


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A forward cell whose kernels are compiled."""

    cell: Cell
    tensors: list[torch.Tensor]
    given: list[torch.Tensor]
    functions: dict[str, Callable[[], Any]]
    failures: dict[str, str]
    configs: dict[str, str]


def ready(cell: Cell) -> Ready:
    """Launch each variant of a forward cell once, which compiles it; where ``auto`` takes another backend, that of CuTe too."""
    tensors, given = cell.tensors("cuda"), inputs_of(cell, "cuda")
    kernel, arguments = ours(cell, tensors, given)
    kernels = {"helion": kernel}
    if kernel.bind(arguments).backend != "cute":
        kernels["cute"] = helion.kernel(kernel.fn, backend="cute", static_shapes=kernel.settings.static_shapes)
    functions: dict[str, Callable[[], Any]] = {
        name: functools.partial(call_ours, cell, each, arguments) for name, each in kernels.items()
    }
    others = {"flex": flex(cell, tensors, given)} if cell.hook else libraries(cell, tensors)
    failures = {}
    for name, function in {**functions, **others}.items():
        try:
            function()
        except Exception as failure:  # of a library that does not take the cell: it belongs into the table
            if name in functions:
                raise
            failures[name] = reason(failure)
    functions |= {name: function for name, function in others.items() if name not in failures}
    bounds = {name: each.bind(arguments) for name, each in kernels.items()}
    configs = {name: chosen(bound, bound.backend) for name, bound in bounds.items()}
    return Ready(cell=cell, tensors=tensors, given=given, functions=functions, failures=failures, configs=configs)


def error_of(cell: Cell, result: torch.Tensor, wanted: torch.Tensor) -> float:
    first = result[:1, : wanted.size(1)].double()
    return float((first - wanted).norm() / wanted.norm())


def forward(cells: list[Cell]) -> Iterator[dict[str, Any]]:
    """Time the forward of cells beside torch's."""
    made = [ready(each) for each in cells]
    with turn():
        for each in made:
            cell, tensors = each.cell, each.tensors
            functions = {**each.functions}
            yield from ({"variant": name, **asdict(cell), "why": why} for name, why in each.failures.items())
            wanted = exact(cell, each.given, *(x[:1, :1].double() for x in tensors))
            if cell.reads_most:
                moved = tensors[1].numel() // (2 if cell.latent else 1)
                half = torch.empty(moved, dtype=torch.bfloat16, device="cuda")
                functions["copy"] = functools.partial(half.copy_, torch.empty_like(half))
                functions["read"] = torch.zeros(moved, device="cuda").sum
            yield from results(cell, functions, wanted, each.configs)


def results(
    cell: Cell, functions: Mapping[str, Callable[[], Any]], wanted: torch.Tensor, configs: Mapping[str, str]
) -> Iterator[dict[str, Any]]:
    """Yield a line for each variant of a forward cell."""
    errors = {
        name: error_of(cell, each(), wanted) if name not in ("copy", "read") else 0.0
        for name, each in functions.items()
    }
    times, failures = GraphTimer().time(functions)
    clean = GraphTimer(clean=True).time(functions)[0] if cell.reads_most else {}
    for name in functions:
        found: dict[str, Any] = {"us": round(times[name].median, 2)} if name in times else {"why": failures[name]}
        if name in clean:
            found["clean"] = round(clean[name].median, 2)
        more = {"config": configs[name]} if name in configs else {}
        error = float(f"{errors[name]:.3g}")
        yield {"variant": name, **asdict(cell), **found, "error": error, "right": error < ERROR, **more}


# Gradients --------------------------------------------------------------------------------------------------------------


def in_turns(functions: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Return medians of microseconds of calls that the host launches while the GPU waits; L2 is overwritten before each."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for repetition in range(REPETITIONS + 2):
        for name, function in functions.items():
            flush.zero_()
            torch.cuda._sleep(QUEUED_CYCLES)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            function()
            end.record()
            torch.cuda.synchronize()
            if repetition >= 2:
                samples[name].append(begin.elapsed_time(end) * 1e3)
    return {name: statistics.median(times) for name, times in samples.items()}


def backward(cells: list[Cell]) -> Iterator[dict[str, Any]]:
    """Time gradients of the user's loop and of the operator beside torch's; each has done its forward."""
    made = [_gradients(each) for each in cells]
    with turn():
        for each, (functions, failures, wanted) in zip(cells, made, strict=True):
            yield from ({"variant": name, **asdict(each), "why": why} for name, why in failures.items())
            errors = {}
            for name, function in functions.items():
                parts = function()
                errors[name] = max(error_of(each, part, other) for part, other in zip(parts, wanted(), strict=True))
            for name, us in in_turns(functions).items():
                error = float(f"{errors[name]:.3g}")
                yield {"variant": name, **asdict(each), "us": round(us, 2), "error": error, "right": error < ERROR}


def _gradients(cell: Cell) -> tuple[dict[str, Callable[[], Any]], dict[str, str], Callable[[], Any]]:
    """Return calls that compute gradients, the failures of others, and what computes those of the first group in fp64."""
    tensors = [x.requires_grad_() for x in cell.tensors("cuda")]
    upstream = torch.randn(tensors[0].shape, device="cuda").bfloat16()
    forwards = libraries(cell, tensors)
    forwards["operator"] = lambda: ops.attention(*tensors, causal=cell.causal)
    if cell.heads == cell.groups and cell.m == DERIVED:
        forwards["derived"] = lambda: attention.differentiable()(*tensors, cell.causal)
    calls: dict[str, Callable[[], Any]] = {}
    failures: dict[str, str] = {}
    for name, run in forwards.items():
        try:
            call = functools.partial(torch.autograd.grad, run(), tensors, upstream, retain_graph=True)
            call()
            calls[name] = call
        except Exception as error:  # of a library that does not take the cell
            failures[name] = reason(error)
    torch.cuda.synchronize()

    def wanted() -> tuple[torch.Tensor, ...]:
        shared = cell.heads // cell.groups
        few = [x[:1, :at].detach().double().requires_grad_() for x, at in zip(tensors, (shared, 1, 1), strict=True)]
        for at in range(shared):  # one after another, for want of memory
            exact(cell, [], few[0][:, at : at + 1], *few[1:]).backward(upstream[:1, at : at + 1].double())
        return tuple(x.grad for x in few if x.grad is not None)

    return calls, failures, functools.cache(wanted)


# The parent -------------------------------------------------------------------------------------------------------------


def lines_of(job: str, device: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of a job; without a GPU, the plan of its first cell."""
    cells = jobs()[job]
    if device == "cpu":
        yield {"job": job, **asdict(cells[0]), "config": planned(cells[0])}
        return
    measure = backward if job.startswith("backward") else forward
    for line in measure(cells):
        yield {"job": job, **line}


def planned(cell: Cell) -> str:
    """Return the default config of a forward cell on an H200."""
    kernel, arguments = ours(cell, cell.tensors("meta"), inputs_of(cell, "meta"))
    backend = kernel.bind(arguments, target="h200").backend_on_gpu
    fixed = helion.kernel(kernel.fn, backend=backend, static_shapes=kernel.settings.static_shapes)
    return chosen(fixed.bind(arguments, target="h200"), backend)


def environment() -> dict[str, Any]:
    import triton

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "device": device,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "date": datetime.date.today().isoformat(),
        "script": "benchmarks/attention.py",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--turn", type=float, default=30.0, help="seconds between two lines of a process with the GPU")
    parser.add_argument("--at-once", type=int, default=40)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("jobs", nargs="*", help="all, if none is named")
    options = parser.parse_args()
    if options.child:
        for line in lines_of(options.jobs[0], options.device):
            print(json.dumps(line), flush=True)
        return
    names = [name for name in jobs() if not options.jobs or any(name.startswith(each) for each in options.jobs)]
    command = [sys.executable, str(Path(__file__).resolve()), "--child", "--device", options.device]
    with open(options.out or os.devnull, "w") as file:
        print(json.dumps(environment()), file=file, flush=True)
        found = in_turn(
            {name: [*command, name] for name in names},
            at_once=options.at_once,
            turn_seconds=options.turn,
            seconds=options.seconds,
            together_seconds=options.seconds * PREPARED if options.at_once >= len(names) else 0.0,
        )
        for name, line in found:
            text = json.dumps({"job": name, **line})
            print(text, flush=True)
            print(text, file=file, flush=True)


if __name__ == "__main__":
    main()
