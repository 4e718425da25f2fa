"""Times of the kernels in `examples/distributed` on two GPUs, with NCCL and torch's fused operations in the same run.

    python3 benchmarks/distributed.py --out FOLDER [--seconds 200] [CASE ...]

Each case checks its results first. It runs in two processes, one for each GPU, which are started again without the case
if it stalls. `distributed.json` in the folder has a row for each variant: microseconds, the larger of both ranks.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
#: Operations that need NVLink multicast stay off.
OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
CASES = (
    "examples",
    "all_reduce",
    "rms_norm",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "all_gather_matmul",
    "lost",
)
STALL_SECONDS = 60.0


# --- the process that watches --------------------------------------------------------------------------------------------


def watch(out: pathlib.Path, cases: list[str], seconds: float) -> None:
    """Run the cases in pairs of processes until all are done or the time is up."""
    end, todo, port = time.time() + seconds, list(cases), 29510
    while todo and time.time() < end - 15:
        port += 1
        ranks = [_start(out, rank, port, todo, end) for rank in range(2)]
        state = _until_done(out, ranks, end)
        done = {case for case in todo if all((out / f"{case}.done{rank}").exists() for rank in range(2))}
        if state == "done":
            break
        current = next((case for case in todo if case not in done), None)
        print(f"{state} in {current}; see rank0.log and rank1.log", flush=True)
        todo = [case for case in todo if case not in done and case != current]
    rows = [json.loads(line) for file in sorted(out.glob("rows-*.jsonl")) for line in file.read_text().splitlines()]
    (out / "distributed.json").write_text(json.dumps(rows, indent=1))
    for row in rows:
        print(json.dumps(row), flush=True)


def _start(out: pathlib.Path, rank: int, port: int, cases: list[str], end: float) -> subprocess.Popen[bytes]:
    env = dict(os.environ, **OFF, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    env |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "bench",
        "OMP_NUM_THREADS": "4",
    }
    env |= {"HELION_WAIT_TIMEOUT": "5", "PYTHONPATH": str(ROOT), "BENCH_END": str(end)}
    log = (out / f"rank{rank}.log").open("ab")
    command = [sys.executable, __file__, "--out", str(out), "--rank", *cases]
    return subprocess.Popen(command, env=env, stdout=log, stderr=log)


def _until_done(out: pathlib.Path, ranks: list[subprocess.Popen[bytes]], end: float) -> str:
    seen, moved = "", time.time()
    while True:
        time.sleep(0.1)
        codes = [process.poll() for process in ranks]
        now = "".join(str(file.stat().st_size) for file in sorted(out.iterdir()))
        if now != seen:
            seen, moved = now, time.time()
        if all(code == 0 for code in codes):
            return "done"
        failed = any(code not in (None, 0) for code in codes)
        late = time.time() > end or time.time() - moved > STALL_SECONDS
        if failed or late:
            time.sleep(1)
            for process in ranks:
                process.kill()
                process.wait()
            return f"exit codes {codes}" if failed else "out of time" if time.time() > end else "stalled"


# --- one rank ------------------------------------------------------------------------------------------------------------


class Rank:
    """Process of one GPU: timing, and rows of results."""

    def __init__(self, out: pathlib.Path) -> None:
        import torch
        import torch.distributed._symmetric_memory

        import helion.distributed as dist

        self.torch, self.dist, self.out = torch, dist, out
        self.me = dist.rank()
        self.end = float(os.environ["BENCH_END"])
        self.rows = (out / f"rows-{self.me}-{os.getpid()}.jsonl").open("a") if self.me == 0 else None

    def randn(self, *shape: int, seed: int = 0) -> Any:
        generator = self.torch.Generator(device="cuda").manual_seed(seed)
        return (self.torch.randn(shape, generator=generator, device="cuda") / shape[0] ** 0.25).bfloat16()

    def time(self, function: Callable[[], Any], *, graph: bool = False, calls: int = 20) -> float:
        """Return the median over rounds of the microseconds of a call, the larger of both ranks."""
        torch = self.torch
        for _ in range(3):
            function()
        torch.cuda.synchronize()
        run, per = function, calls
        if graph:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                for _ in range(calls):
                    function()
            run, per = captured.replay, 1
        times = []
        for _ in range(7):
            self.dist.barrier()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(per):
                run()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / calls)
        mine = torch.tensor([statistics.median(times)], device="cuda")
        torch.distributed.all_reduce(mine, op=torch.distributed.ReduceOp.MAX)
        return float(mine)

    def row(self, case: str, what: str, variant: str, function: Callable[[], Any], **options: Any) -> None:
        if time.time() > self.end - 8:
            return
        try:
            microseconds, error = self.time(function, **options), ""
        except (RuntimeError, AssertionError) as caught:
            microseconds, error = None, f"{type(caught).__name__}: {str(caught)[:300]}"
        if self.rows is not None:
            row = {"case": case, "what": what, "variant": variant, "us": microseconds, **options}
            self.rows.write(json.dumps({**row, "error": error} if error else row) + "\n")
            self.rows.flush()

    def close(self, case: str, what: str, found: Any, expected: Any) -> None:
        """Compare a result with the expected one, and write a row about it."""
        scale = float(expected.float().square().mean().sqrt())
        error = float((found.float() - expected.float()).abs().max()) / scale
        if self.rows is not None:
            self.rows.write(
                json.dumps({"case": case, "what": what, "error_of_rms": error, "right": error < 0.05}) + "\n"
            )
            self.rows.flush()


def examples(r: Rank) -> None:
    for name in (
        "all_reduce",
        "all_reduce_rms_norm",
        "matmul_reduce_scatter",
        "matmul_all_reduce",
        "all_gather_matmul",
        "fp8_matmul_reduce_scatter",
        "fp8_all_gather_matmul",
        "two_dimensional_matmul",
        "gradients",
        "experts",
    ):
        error = __import__(name).on_rank()
        if r.rows is not None:
            r.rows.write(json.dumps({"case": "examples", "what": name, "right": True, "error": error}) + "\n")
            r.rows.flush()


def _nccl(r: Rank, x: Any) -> Callable[[], Any]:
    y = x.clone()
    return lambda: r.torch.distributed.all_reduce(y)


def _configured(kernel: Any, **config: Any) -> Any:
    import helion

    return helion.kernel(kernel.fn, config=helion.Config(**config))


def all_reduce(r: Rank) -> None:
    from all_reduce import WORDS
    from all_reduce import all_reduce as kernel

    symmetric = r.torch.distributed._symmetric_memory
    group = r.torch.distributed.group.WORLD.group_name
    for log in (12, 16, 18, 20, 25):
        count = 2**log
        x, inbox, ch = r.randn(count, seed=r.me), r.dist.empty([2, 2, count], r.torch.bfloat16), r.dist.channel([WORDS])
        expected = x.float()
        r.torch.distributed.all_reduce(expected)
        r.close("all_reduce", f"{2 * count} bytes", kernel(x, inbox, ch), expected)
        shared = symmetric.empty(count, dtype=r.torch.bfloat16, device="cuda")
        symmetric.rendezvous(shared, group)
        shot = "one_shot_all_reduce" if log <= 18 else "two_shot_all_reduce_"
        fused = functools.partial(getattr(r.torch.ops.symm_mem, shot), shared, "sum", group)
        variants: list[tuple[str, Callable[[], Any]]] = [("default", functools.partial(kernel, x, inbox, ch))]
        for size, warps in ((2048, 8), (8192, 16)) if log > 12 else ((256, 4), (1024, 4)):
            if count // size < WORDS:
                tiled = _configured(kernel, block_sizes=[size], num_warps=warps)
                variants.append((f"block {size}, {warps} warps", functools.partial(tiled, x, inbox, ch)))
        for graph in (False, True) if log <= 20 else (False,):
            for variant, call in (*variants, ("nccl", _nccl(r, x)), ("torch", fused)):
                r.row("all_reduce", f"{2 * count} bytes", variant, call, graph=graph)
        r.dist.check(ch)


def rms_norm(r: Rank) -> None:
    from all_reduce_rms_norm import WORDS
    from all_reduce_rms_norm import all_reduce_rms_norm as kernel

    torch = r.torch
    for rows in (32, 256):
        x, residual = r.randn(rows, 8192, seed=r.me), r.randn(rows, 8192, seed=5)
        bias, weight = r.randn(8192, seed=7), r.randn(8192, seed=6)
        inbox, ch = r.dist.empty([2, 2, rows, 8192], torch.bfloat16), r.dist.channel([WORDS])
        h = x.float()
        torch.distributed.all_reduce(h)
        h += residual + bias
        expected = torch.nn.functional.rms_norm(h, [8192], weight.float(), 1e-6)
        r.close("rms_norm", f"{rows} x 8192", kernel(x, residual, bias, weight, inbox, ch)[0], expected)
        y = x.clone()

        def serial(y: Any = y, residual: Any = residual, bias: Any = bias, weight: Any = weight) -> Any:
            torch.distributed.all_reduce(y)
            return torch.nn.functional.rms_norm(y + residual + bias, [8192], weight, 1e-6)

        calls = [("default", functools.partial(kernel, x, residual, bias, weight, inbox, ch))]
        for warps in (4, 8, 32):
            tiled = _configured(kernel, block_sizes=[1], num_warps=warps)
            calls.append((f"{warps} warps", functools.partial(tiled, x, residual, bias, weight, inbox, ch)))
        for graph in (False, True):
            for variant, call in (*calls, ("nccl + torch", serial)):
                r.row("rms_norm", f"{rows} x 8192", variant, call, graph=graph)
        r.dist.check(ch)


def _gemm_configs(k_tile: int = 1) -> list[tuple[str, dict[str, Any]]]:
    """Return configs of kernels with two loops of one tile shape; `k_tile` is the number of loops over K."""
    found = []
    for m, n, k, warps, stages in ((128, 256, 64, 8, 3), (128, 128, 64, 4, 4)):
        sizes = [m, n, *[k] * k_tile]
        config = {"block_sizes": sizes, "num_warps": warps, "num_stages": stages, "l2_groupings": [8, 8]}
        found.append((f"{m} x {n} x {k}", config))
    return found


def matmul_all_reduce(r: Rank) -> None:
    from matmul_all_reduce import WORDS
    from matmul_all_reduce import matmul_all_reduce as kernel

    torch = r.torch
    for rows in (64, 512, 4096):
        x, w = r.randn(rows, 4096, seed=r.me), r.randn(4096, 8192, seed=10 + r.me)
        inbox, ch = r.dist.empty([2, 2, rows, 8192], torch.bfloat16), r.dist.channel(WORDS)
        expected = x.float() @ w.float()
        torch.distributed.all_reduce(expected)
        what = f"{rows} x 4096 x 8192"
        r.close("matmul_all_reduce", what, kernel(x, w, inbox, ch), expected)

        def serial(x: Any = x, w: Any = w) -> Any:
            y = x @ w
            torch.distributed.all_reduce(y)
            return y

        calls = [("default", functools.partial(kernel, x, w, inbox, ch))]
        for name, config in _gemm_configs():
            calls.append((name, functools.partial(_configured(kernel, **config), x, w, inbox, ch)))
        for variant, call in (*calls, ("cublas + nccl", serial), ("cublas alone", functools.partial(torch.mm, x, w))):
            r.row("matmul_all_reduce", what, variant, call)
        r.dist.check(ch)


def matmul_reduce_scatter(r: Rank) -> None:
    from matmul_reduce_scatter import WORDS
    from matmul_reduce_scatter import matmul_reduce_scatter as kernel

    torch = r.torch
    group = torch.distributed.group.WORLD.group_name
    x, w = r.randn(4096, 8192, seed=r.me), r.randn(8192, 4096, seed=10 + r.me)
    inbox, ch = r.dist.empty([2, 2, 2048, 4096], torch.bfloat16), r.dist.channel(WORDS)
    y = x @ w
    expected = torch.empty([2048, 4096], dtype=y.dtype, device="cuda")
    torch.distributed.reduce_scatter_tensor(expected, y)
    what = "4096 x 8192 x 4096"
    r.close("matmul_reduce_scatter", what, kernel(x, w, inbox, ch, r.me), expected)

    def serial() -> Any:
        torch.distributed.reduce_scatter_tensor(expected, x @ w)

    fused = functools.partial(torch.ops.symm_mem.fused_matmul_reduce_scatter, x, w, "sum", 0, group)
    calls = [("default", functools.partial(kernel, x, w, inbox, ch, r.me))]
    for name, config in _gemm_configs(2):
        calls.append((name, functools.partial(_configured(kernel, **config), x, w, inbox, ch, r.me)))
    alone = functools.partial(torch.mm, x, w)
    for variant, call in (*calls, ("cublas + nccl", serial), ("torch", fused), ("cublas alone", alone)):
        r.row("matmul_reduce_scatter", what, variant, call)
    r.dist.check(ch)


def all_gather_matmul(r: Rank) -> None:
    import all_gather_matmul as example

    torch = r.torch
    group = torch.distributed.group.WORLD.group_name
    x, w = r.randn(4096, 8192, seed=r.me), r.randn(8192, 4096, seed=10 + r.me)
    inbox, ch = r.dist.empty([2, 2, 4096, 8192], torch.bfloat16), r.dist.channel([4096 // example.ROWS])
    gathered = torch.empty([8192, 8192], dtype=x.dtype, device="cuda")
    torch.distributed.all_gather_into_tensor(gathered, x)
    what = "2 x 4096 x 8192 x 4096"
    r.close("all_gather_matmul", what, example.all_gather_matmul(x, w, inbox, ch, r.me), gathered @ w)

    def serial() -> Any:
        torch.distributed.all_gather_into_tensor(gathered, x)
        return gathered @ w

    fused = functools.partial(torch.ops.symm_mem.fused_all_gather_matmul, x, [w], 0, group)
    kernels = (example.send_rows, example.matmul_of_rows)
    r.row("all_gather_matmul", what, "default", functools.partial(example.all_gather_matmul, x, w, inbox, ch, r.me))
    for m, n, k, warps, stages in ((128, 256, 64, 8, 3), (128, 128, 64, 4, 4)):
        example.send_rows = _configured(kernels[0], block_sizes=[256], num_warps=16)
        config = {"block_sizes": [m, n, k, n, k], "num_warps": warps, "num_stages": stages, "l2_groupings": [8, 8]}
        example.matmul_of_rows = _configured(kernels[1], **config)
        call = functools.partial(example.all_gather_matmul, x, w, inbox, ch, r.me)
        r.row("all_gather_matmul", what, f"{m} x {n} x {k}", call)
    example.send_rows, example.matmul_of_rows = kernels
    alone = functools.partial(torch.mm, gathered, w)
    for variant, call in (("nccl + cublas", serial), ("torch", fused), ("cublas alone", alone)):
        r.row("all_gather_matmul", what, variant, call)
    r.dist.check(ch)


def lost(r: Rank) -> None:
    """Call a kernel on one rank only: it must end with an error within the limit of a wait."""
    from all_reduce import all_reduce as kernel

    import helion

    x, inbox, ch = r.randn(4096), r.dist.empty([2, 2, 4096], r.torch.bfloat16), r.dist.channel([64])
    kernel(x, inbox, ch)
    r.torch.cuda.synchronize()
    if r.me == 0:
        begin, message = time.time(), ""
        kernel(x, inbox, ch)
        try:
            r.dist.check(ch)
        except helion.exc.PeerLost as error:
            message = str(error)
        assert r.rows is not None
        row = {"case": "lost", "right": bool(message), "seconds": time.time() - begin, "message": message}
        r.rows.write(json.dumps(row) + "\n")
        r.rows.flush()
    r.dist.barrier()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--rank", action="store_true")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    cases = [case for case in CASES if case in options.cases or not options.cases]
    if not options.rank:
        options.out.mkdir(parents=True, exist_ok=True)
        watch(options.out, cases, options.seconds)
        return
    sys.path.insert(0, str(ROOT / "examples" / "distributed"))
    import torch

    import helion.distributed as dist

    dist.run(functools.partial(_run_cases, options.out, cases))
    torch.distributed.destroy_process_group()


def _run_cases(out: pathlib.Path, cases: list[str]) -> None:
    rank = Rank(out)
    for case in cases:
        if time.time() > rank.end - 10:
            break
        globals()[case](rank)
        rank.torch.cuda.synchronize()
        (out / f"{case}.done{rank.me}").write_text("done")
        print(f"{case} done", flush=True)


if __name__ == "__main__":
    main()
