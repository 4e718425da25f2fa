"""Checks and times kernels over several GPUs, with NCCL and torch's fused operations in the same run.

    python3 benchmarks/distributed.py --out FOLDER [--ranks N] [--one-gpu] [--seconds 200] [CASE ...]

There is one process for each rank, with a GPU of its own; by default all GPUs take part. With ``--one-gpu`` the processes
take turns on the first GPU, through memory mapped by CUDA IPC: cases that need no NCCL check their results, and nothing is
timed.

Each case checks its results first. If a process fails or stalls, all of them are started again without that case.
`distributed.jsonl` in the folder has a row for each check and each variant: the number of ranks, and microseconds, the
largest of all ranks. The rows are printed, too. The cases are in `distributed_cases.py`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
import traceback
import types
from collections.abc import Callable
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
#: Operations that need NVLink multicast stay off.
OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
#: Cases in order: checks, times of defaults and of other libraries, times of more configs.
CASES = (
    "examples",
    "primitives",
    "stress",
    "link",
    "all_reduce",
    "rms_norm",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "all_gather_matmul",
    "sending",
    "experts",
    "ipc",
    "lost",
    "pieces",
    "configs",
    "signal_pads",
    "compiled",
)
#: The case that ends one of its processes, in processes of its own.
LAST = "killed"
STALL_SECONDS, LAST_SECONDS = 45.0, 20.0
#: Set in the environment of ranks that share a GPU.
ONE_GPU = "BENCH_ONE_GPU"
#: The host runs ahead of the GPU by this time, so that launches are not what is timed.
AHEAD_MICROSECONDS = 6000


# --- the process that watches --------------------------------------------------------------------------------------------


def watch(out: pathlib.Path, ranks: int, cases: list[str], seconds: float) -> None:
    """Run the cases, with a process for each rank, until all are done or the time is up."""
    end, port = time.time() + seconds, 29510 + os.getpid() % 1000
    reserved = LAST_SECONDS if LAST in cases else 0.0
    todo = [case for case in cases if case != LAST]
    while todo and time.time() < end - reserved - 15:
        port += 1
        state = _together(out, ranks, port, todo, end - reserved)
        if state == "done":
            break
        done = {case for case in todo if all((out / f"{case}.done{rank}").exists() for rank in range(ranks))}
        current = next((case for case in todo if case not in done), None)
        print(f"{state} in {current}; see the logs of the ranks", flush=True)
        todo = [case for case in todo if case not in done and case != current]
    if reserved:
        print(f"{LAST}: {_together(out, ranks, port + 1, [LAST], end)}", flush=True)
    lines = [line for file in sorted(out.glob("rows-*.jsonl")) for line in file.read_text().splitlines()]
    (out / "distributed.jsonl").write_text("".join(f"{line}\n" for line in lines))
    for line in lines:
        print(line, flush=True)


def _together(out: pathlib.Path, ranks: int, port: int, cases: list[str], end: float) -> str:
    """Run cases in a process for each rank, and return how they ended."""
    processes = [_start(out, rank, ranks, port, cases, end) for rank in range(ranks)]
    seen, moved = "", time.time()
    while True:
        time.sleep(0.1)
        codes = [process.poll() for process in processes]
        now = "".join(str(file.stat().st_size) for file in sorted(out.iterdir()))
        if now != seen:
            seen, moved = now, time.time()
        if all(code == 0 for code in codes):
            return "done"
        failed = any(code not in (None, 0) for code in codes)
        late = time.time() > end or time.time() - moved > STALL_SECONDS
        if failed or late:
            time.sleep(1)
            for process in processes:
                process.kill()
                process.wait()
            return f"exit codes {codes}" if failed else "out of time" if time.time() > end else "stalled"


def _start(
    out: pathlib.Path, rank: int, ranks: int, port: int, cases: list[str], end: float
) -> subprocess.Popen[bytes]:
    env = dict(os.environ, **OFF, RANK=str(rank), LOCAL_RANK="0" if ONE_GPU in os.environ else str(rank))
    env |= {
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "bench",
        "OMP_NUM_THREADS": "4",
    }
    env |= {
        "HELION_WAIT_TIMEOUT": "20",
        "HELION_FIRST_CALL_SECONDS": "0",
        "BENCH_END": str(end),
        "PYTHONUNBUFFERED": "1",
    }
    folders = [str(ROOT), str(ROOT / "examples" / "distributed"), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    log = (out / f"rank{rank}.log").open("ab")
    command = [sys.executable, __file__, "--out", str(out), "--rank", *cases]
    return subprocess.Popen(command, env=env, stdout=log, stderr=log)


# --- one rank ------------------------------------------------------------------------------------------------------------


class Rank:
    """One rank of a case: its inputs, checks, times and rows of results.

    Without GPUs it is a simulated rank: checks run, on small tensors, and nothing is timed.
    """

    def __init__(self, out: pathlib.Path, end: float) -> None:
        import torch

        import helion.distributed as dist

        self.torch, self.dist, self.end = torch, dist, end
        self.me, self.n = dist.rank(), dist.world_size()
        self.is_simulated = not torch.distributed.is_initialized()
        self.is_timed = not self.is_simulated and ONE_GPU not in os.environ
        self.device = "cpu" if self.is_simulated else f"cuda:{torch.cuda.current_device()}"
        self.rows = (out / f"rows-{self.me}-{time.time_ns()}.jsonl").open("a") if self.me == 0 else None
        self.by_ipc, self.group, self._align = False, "0", None
        #: Microseconds in which the host had started a call, in each round of the last function that was timed.
        self.host: list[float] = []
        if not self.is_simulated:
            self.group = torch.distributed.group.WORLD.group_name
            self.symmetric(64)
            versions = {
                "torch": torch.__version__,
                "triton": importlib.metadata.version("triton"),
                "by_ipc": self.by_ipc,
            }
            self.write({"case": "start", "device": torch.cuda.get_device_name(), **versions})

    def pick(self, usual: Any, small: Any) -> Any:
        """Return the sizes on GPUs, or those of simulated ranks."""
        return small if self.is_simulated else usual

    def randn(self, *shape: int, seed: int = 0) -> Any:
        """Return a bf16 tensor that all ranks can compute; its mean is not zero."""
        generator = self.torch.Generator(device=self.device).manual_seed(seed)
        values = self.torch.randn(shape, generator=generator, device=self.device) + 0.1
        return (values / shape[0] ** 0.25).bfloat16()

    def symmetric(self, *shape: int, dtype: Any = None) -> Any:
        """Return a tensor that torch's own operations and kernels can look up on other ranks: in its symmetric memory,
        where that is not refused."""
        from torch.distributed import _symmetric_memory

        options = {"dtype": dtype or self.torch.bfloat16, "device": self.device}
        if not self.is_simulated and not self.by_ipc:
            try:
                made = _symmetric_memory.empty(*shape, **options)
                self._align = _symmetric_memory.rendezvous(made, self.group)
            except RuntimeError as error:
                self.by_ipc = True
                self.write({"case": "start", "error": str(error)[:300]})
            else:
                return made
        return self.torch.empty(*shape, **options)

    # --- results --------------------------------------------------------------------------------------------------------

    def write(self, row: dict[str, Any]) -> None:
        if self.rows is not None:
            self.rows.write(json.dumps({**row, "ranks": self.n}) + "\n")
            self.rows.flush()

    def largest(self, number: float) -> float:
        """Return the largest of the ranks' numbers."""
        if self.is_simulated:
            return number
        mine = self.torch.tensor([number], dtype=self.torch.float64)
        self.torch.distributed.all_reduce(mine, op=self.torch.distributed.ReduceOp.MAX)
        return float(mine)

    def close(self, case: str, what: str, found: Any, expected: Any, limit: float = 0.05) -> None:
        """Compare a result with the expected one on all ranks, and write a row about it."""
        scale = float(expected.float().square().mean().sqrt())
        error = float((found.float() - expected.float()).abs().max()) / scale
        worst = self.largest(error if error == error else float("inf"))
        self.write({"case": case, "what": what, "error_of_rms": worst, "right": worst < limit})

    def holds(self, case: str, what: str, right: bool, **more: Any) -> None:
        """Write a row about a check, which must hold on all ranks."""
        self.write({"case": case, "what": what, "right": self.largest(float(not right)) == 0, **more})

    # --- times ----------------------------------------------------------------------------------------------------------

    def align(self) -> None:
        """Let the streams of all ranks meet."""
        if self._align is not None:
            self._align.barrier(channel=0)
        else:
            self.torch.distributed.all_reduce(self.torch.zeros(1, device=self.device))

    def time(
        self, function: Callable[[], Any], *, graph: bool = False, calls: int = 4, rounds: int = 8, warm: int = 2
    ) -> list[float]:
        """Return the microseconds of a call, by round. The first ``warm`` rounds raise the clock and are left out."""
        torch = self.torch
        for _ in range(2):
            function()
        torch.cuda.synchronize()
        self.dist.barrier()
        run, per = function, calls
        if graph:
            calls, per, captured = 20, 1, torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured, capture_error_mode="thread_local"):
                for _ in range(calls):
                    function()
            run = captured.replay
            run()
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(warm + rounds)]
        self.host = []
        for begin, end in pairs:
            torch.cuda._sleep(AHEAD_MICROSECONDS * 1700)
            self.align()
            begin.record()
            started = time.perf_counter()
            for _ in range(per):
                run()
            self.host.append((time.perf_counter() - started) * 1e6 / calls)
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) * 1e3 / calls for begin, end in pairs[warm:]]

    def row(self, case: str, what: str, variant: str, function: Callable[[], Any], **options: Any) -> None:
        """Time a variant, and write a row about it."""
        self.rows_of(case, what, {variant: function}, **options)

    def rows_of(self, case: str, what: str, variants: dict[str, Callable[[], Any]], **options: Any) -> None:
        """Time variants in turn, in both orders, and write a row about each: the median, the largest of all ranks.

        Nothing is timed without a GPU for each rank, or with no time left.
        """
        if not self.is_timed or self.largest(float(time.time() > self.end - 8)):
            return
        times: dict[str, list[float]] = {variant: [] for variant in variants}
        errors: dict[str, str] = {}
        host: dict[str, float] = {}
        for variant in (*variants, *reversed(variants)):
            if variant not in errors:
                try:
                    times[variant] += self.time(variants[variant], **options)
                    host[variant] = statistics.median(self.host)
                except (RuntimeError, AssertionError, AttributeError) as caught:
                    errors[variant] = f"{type(caught).__name__}: {str(caught)[:300]}"
                    if "CUDA error" in errors[variant]:
                        raise
        for variant, rounds in times.items():
            row = {"case": case, "what": what, "variant": variant, "host_us": host.get(variant), **options}
            error = errors.get(variant)
            self.write(
                {**row, "us": None, "error": error} if error else {**row, "us": self.largest(statistics.median(rounds))}
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--ranks", type=int, help="ranks, each with a GPU; all GPUs by default")
    parser.add_argument("--one-gpu", action="store_true", help="all ranks take turns on the first GPU")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    known = (*CASES, LAST)
    unknown = [case for case in options.cases if case not in known]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(known)}")
    cases = [case for case in known if case in options.cases or not options.cases]
    if not options.rank:
        options.out.mkdir(parents=True, exist_ok=True)
        import torch

        if options.one_gpu:
            os.environ[ONE_GPU] = "1"
        watch(options.out, options.ranks or torch.cuda.device_count(), cases, options.seconds)
        return
    import helion.distributed as dist

    dist.run(lambda: _run_cases(options.out, cases))
    sys.stdout.flush()
    os._exit(0)  # a process group whose peer is gone may not end


def _end(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    """End this process with its error at once: its peer may never come to the end of the process group."""
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


def _run_cases(out: pathlib.Path, cases: list[str]) -> None:
    from benchmarks import distributed_cases

    sys.excepthook = _end  # after that of torch, which holds the text back until the process ends
    rank = Rank(out, float(os.environ["BENCH_END"]))
    for case in cases:
        if rank.largest(float(time.time() > rank.end - 10)):
            break
        began = time.time()
        getattr(distributed_cases, case)(rank)
        if case != LAST:
            rank.torch.cuda.synchronize()
            rank.dist.barrier()
        rank.write({"case": case, "seconds": round(time.time() - began, 1)})
        (out / f"{case}.done{rank.me}").write_text("done")
        print(f"{case} done in {time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
