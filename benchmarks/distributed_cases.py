"""The cases of `benchmarks/distributed.py`: functions of a rank, which all ranks call."""

from __future__ import annotations

import functools
import itertools
import os
import random
import time
from collections.abc import Callable
from typing import Any

import all_gather_matmul as tiled_gather
import all_reduce as one_shot
import all_reduce_rms_norm
import all_reduce_two_shots as two_shots
import dispatch_combine
import matmul_all_reduce as tiled_all_reduce
import matmul_few_rows as one_loop
import matmul_reduce_scatter as tiled_reduce_scatter
import overlapped_matmul as overlapped
import sending_matmul
import torch

import helion
import helion.distributed as dist
from benchmarks import distributed_kernels as kernels
from benchmarks.distributed import Rank
from helion import exc
from helion._support import symmetric

Call = Callable[[], Any]
EXAMPLES = (
    "all_reduce",
    "all_reduce_two_shots",
    "all_reduce_rms_norm",
    "matmul_reduce_scatter",
    "matmul_all_reduce",
    "all_gather_matmul",
    "matmul_few_rows",
    "overlapped_matmul",
    "sending_matmul",
    "dispatch_combine",
    "experts",
    "gradients",
    "two_dimensional_matmul",
    "fp8_matmul_reduce_scatter",
    "fp8_all_gather_matmul",
)
BF16 = torch.bfloat16


def _configured(kernel: Any, **config: Any) -> Any:
    return helion.kernel(kernel.fn, config=helion.Config(**config), ignore_warnings=kernel.settings.ignore_warnings)


def _summed(make: Call) -> Any:
    """Return the sum over all ranks of what a function makes, by NCCL."""
    made = make()
    torch.distributed.all_reduce(made)
    return made


# --- checks --------------------------------------------------------------------------------------------------------------


def examples(r: Rank) -> None:
    for name in EXAMPLES:
        error = __import__(name).on_rank()
        r.write({"case": "examples", "what": name, "right": True, "error": error})


def primitives(r: Rank) -> None:
    """Exchange data in each way several times, with new values and delays."""
    rows, columns = r.pick(200, 12), r.pick(1000, 40)
    buffers = [r.symmetric(rows, columns, dtype=torch.float32) for _ in range(2)]
    mail = dist.mailbox([rows, columns])
    ways: dict[str, Callable[[Any], Any]] = {
        "mailbox": lambda x: kernels.by_mail(x, mail),
        "remote_barrier": lambda x: kernels.pulled(x, buffers[0], r.group, r.n),
        "make_async_remote_copy": lambda x: kernels.rotated(x, buffers[1], r.me, r.n),
    }
    _repeat(r, "primitives", ways, rows, columns)
    dist.check(mail)
    dist.check()


def signal_pads(r: Rank) -> None:
    """Exchange data between synchronizations through the signal pads of torch's symmetric memory."""
    from torch.distributed import _symmetric_memory

    if r.is_simulated or r.by_ipc:
        return
    rows, columns = r.pick(200, 12), r.pick(1000, 40)
    buffer = r.symmetric(rows, columns, dtype=torch.float32)
    handle = _symmetric_memory.rendezvous(buffer, r.group)
    pads = torch.tensor(handle.signal_pad_ptrs, dtype=torch.int64, device=buffer.device)
    ways = {"symm_mem_sync": lambda x: kernels.synchronized(x, buffer, pads, r.group, r.me, r.n)}
    _repeat(r, "signal_pads", ways, rows, columns)


def _repeat(r: Rank, case: str, ways: dict[str, Callable[[Any], Any]], rows: int, columns: int) -> None:
    """Call functions of a tensor in turn, with new values and delays in each call, and compare some of their results."""
    delays, calls = random.Random(r.me), r.pick(30, 2)
    for call in range(calls):
        every = [r.randn(rows, columns, seed=100 * call + rank).float() for rank in range(r.n)]
        _delay(r, delays)
        results = {way: function(every[r.me]) for way, function in ways.items()}
        for way, found in results.items() if call in (0, 1, calls - 1) else ():
            expected = 2 * every[r.me - 1] if way == "make_async_remote_copy" else torch.stack(every).sum(0)
            r.close(case, f"{way}, call {call}", found, expected, 1e-3)


def _delay(r: Rank, delays: random.Random, longest: float = 1e-4) -> None:
    """Delay this rank's host, or its GPU, in some calls."""
    seconds = delays.random() * longest
    match delays.randrange(8):
        case 0:
            time.sleep(seconds)
        case 1 if not r.is_simulated:
            torch.cuda._sleep(int(seconds * 1.7e9))


def stress(r: Rank) -> None:
    """Sum tensors of random sizes, 10 000 times, with random delays on each rank, and in replays of a graph."""
    calls, most = r.pick(10_000, 12), r.pick(2**18, 2**11)
    inbox, ch = dist.empty([2, r.n, most], torch.float32), dist.channel([most // kernels.BLOCK])
    wrong = torch.zeros(1, dtype=torch.int32, device=r.device)
    sizes, delays = random.Random(7), random.Random(r.me)
    numbers = torch.arange(most, device=r.device, dtype=torch.float32) % 977
    steps, began = torch.zeros(1, device=r.device), time.time()
    for call in range(calls):
        count = sizes.choice((1, 300, most // 8 - 5, most // 2, most))
        steps += 1
        found = kernels.any_size(numbers[:count] * (r.me + 1) + steps, inbox, ch)
        wrong += found.ne(numbers[:count] * (r.n * (r.n + 1) // 2) + r.n * steps).any()
        _delay(r, delays)
        if call % 1000 == 999:
            print(f"{call + 1} calls, {time.time() - began:.1f} s", flush=True)
    dist.check(ch)
    r.holds("stress", f"{calls} calls", not bool(wrong), seconds=round(time.time() - began, 1))
    if not r.is_simulated:
        _replay(r, inbox, ch, numbers[: most // 2])


def _replay(r: Rank, inbox: Any, ch: Any, numbers: torch.Tensor) -> None:
    """Replay a graph of several calls whose input changes."""
    x, graph = numbers * (r.me + 1), torch.cuda.CUDAGraph()
    kernels.any_size(x, inbox, ch)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found = [kernels.any_size(x + call, inbox, ch) for call in range(3)]
    wrong = torch.zeros(1, dtype=torch.int32, device=r.device)
    for step in range(200):
        x.copy_(numbers * (r.me + 1) + step)
        graph.replay()
        for call, each in enumerate(found):
            wrong += each.ne(numbers * (r.n * (r.n + 1) // 2) + r.n * (step + call)).any()
    dist.check(ch)
    r.holds("stress", "600 calls in a graph", not bool(wrong))


def ipc(r: Rank) -> None:
    """Sum a tensor through memory that is mapped by CUDA IPC, as where torch's symmetric memory is refused."""
    if r.is_simulated:
        return
    count = 2**16
    group, device = torch.distributed.group.WORLD, torch.device(r.device)
    by_rank = symmetric._by_ipc((2, r.n, count), torch.float32, device, group)
    inbox = symmetric.as_peers([by_rank[(r.me + peer) % r.n] for peer in range(r.n)])
    ch, numbers = dist.channel([count // kernels.BLOCK]), torch.arange(count, device=r.device, dtype=torch.float32)
    for call in range(5):
        found = kernels.any_size(numbers * (r.me + 1) + call, inbox, ch)
    r.close("ipc", "all-reduce", found, numbers * (r.n * (r.n + 1) // 2) + r.n * 4, 1e-6)
    dist.check(ch)


def _brief(kernel: Any) -> Any:
    """Return a kernel whose waits give up after 3 seconds."""
    os.environ["HELION_WAIT_TIMEOUT"] = "3"
    return helion.kernel(kernel.fn, static_shapes=False, config=helion.Config(block_sizes=[kernels.BLOCK]))


def lost(r: Rank) -> None:
    """Call a kernel on one rank only: it ends with an error. After a reset the ranks work together again."""
    if r.is_simulated:
        return
    usual, kernel = os.environ["HELION_WAIT_TIMEOUT"], _brief(kernels.any_size)
    x, inbox, ch = (
        torch.ones(2**16, device=r.device),
        dist.empty([2, r.n, 2**16]),
        dist.channel([2**16 // kernels.BLOCK]),
    )
    kernel(x, inbox, ch)
    dist.barrier()
    message, began = "", time.time()
    if r.me == 0:
        kernel(x, inbox, ch)
        message = _loss(ch)
    r.holds("lost", "one rank calls", r.me != 0 or "rank 1" in message, seconds=time.time() - began, message=message)
    dist.reset(ch)
    r.close("lost", "after a reset", kernel(x, inbox, ch), r.n * x, 1e-6)
    dist.check(ch)
    memory, a, message = sending_matmul.Memory(256, 256), r.randn(256, 256), ""
    product = helion.kernel(sending_matmul.product_plus_received.fn, backend="cute")
    if r.me == 0:
        product(a, a, memory.inboxes[0], memory.sent, torch.empty_like(a))
        message = _loss(memory.sent)
    r.holds("lost", "one rank calls a matmul", r.me != 0 or "rank 1" in message, message=message)
    os.environ["HELION_WAIT_TIMEOUT"] = usual


def _loss(ch: Any) -> str:
    try:
        dist.check(ch)
    except exc.PeerLost as error:
        return str(error)
    return ""


def killed(r: Rank) -> None:
    """End the last rank between two calls: the others get an error in time."""
    kernel = _brief(kernels.any_size)
    x, inbox, ch = (
        torch.ones(2**16, device=r.device),
        dist.empty([2, r.n, 2**16]),
        dist.channel([2**16 // kernels.BLOCK]),
    )
    kernel(x, inbox, ch)
    dist.barrier()
    last = r.n - 1
    if r.me == last:
        os._exit(0)
    began = time.time()
    for _ in range(3):
        kernel(x, inbox, ch)
    message = _loss(ch)
    r.write({"case": "killed", "right": f"rank {last}" in message, "seconds": time.time() - began, "message": message})


def compiled(r: Rank) -> None:
    """Call a kernel in a function that torch.compile compiles."""
    inbox, ch = dist.empty([2, r.n, 2**12]), dist.channel([2**12 // kernels.BLOCK])

    def layer(x: torch.Tensor) -> torch.Tensor:
        return kernels.any_size(x * 2, inbox, ch).sin()

    if r.is_simulated:
        return
    x = torch.arange(2**12, device=r.device, dtype=torch.float32) / 1000
    found = [torch.compile(layer)(x * (r.me + 1)) for _ in range(3)][-1]
    r.close("compiled", "all-reduce", found, (x * r.n * (r.n + 1)).sin(), 1e-3)
    dist.check(ch)


# --- times ---------------------------------------------------------------------------------------------------------------


def link(r: Rank) -> None:
    """Time copies to the peer, in both directions at once: the bound of what follows."""
    for megabytes in r.pick((8, 32, 64), ()):
        memory = dist.empty([megabytes * 2**19], BF16)
        r.row("link", f"{megabytes} MB to the peer", "copy engine", functools.partial(memory[1].copy_, memory[0]))


def _torch_all_reduce(r: Rank, count: int) -> dict[str, Call]:
    """Return torch's own operations, on a tensor of its symmetric memory."""
    shared, shots = r.symmetric(count), ("one_shot_all_reduce", "two_shot_all_reduce_")
    return (
        {}
        if r.by_ipc
        else {
            f"torch {shot}": functools.partial(getattr(torch.ops.symm_mem, shot), shared.zero_(), "sum", r.group)
            for shot in shots
        }
    )


def all_reduce(r: Rank) -> None:
    for kilobytes in r.pick((8, 64, 512, 1024, 8192, 65536), (2,)):
        count, what = kilobytes * 512, f"{kilobytes} KB"
        every = [r.randn(count, seed=rank) for rank in range(r.n)]
        x, expected = every[r.me], torch.stack(every).float().sum(0)
        calls: dict[str, Call] = {"one shot": functools.partial(one_shot.all_reduce, x, *_one_shot_memory(r, count))}
        if kilobytes <= 1024:
            mail = dist.mailbox([count], BF16, marked=True)
            calls["marked mail"] = functools.partial(one_shot.all_reduce_by_mail, x, mail)
        if kilobytes >= r.pick(512, 0):
            part, words = count // r.n, helion.cdiv(count // r.n, two_shots.BLOCK)
            memory = [dist.empty([r.n, part], BF16) for _ in range(2)], [dist.channel([words]) for _ in range(2)]
            calls["two shots"] = functools.partial(two_shots.all_reduce, x, *memory[0], *memory[1], r.me)
        for variant, call in calls.items():
            r.close("all_reduce", f"{what}, {variant}", call(), expected)
        calls["nccl"] = functools.partial(torch.distributed.all_reduce, x.clone().zero_())
        r.rows_of("all_reduce", what, calls | _torch_all_reduce(r, count))
        if kilobytes <= 1024:
            r.rows_of("all_reduce", what, calls, graph=True)


def _one_shot_memory(r: Rank, count: int) -> tuple[Any, Any]:
    return dist.empty([2, r.n, count], BF16), dist.channel([r.pick(one_shot.WORDS, 64)])


def _rms_norm_arguments(r: Rank, rows: int) -> tuple[list[Any], Any, Call]:
    """Return the arguments of the kernel, the expected result, and a function that computes it with NCCL."""
    columns = r.pick(8192, 80)
    every = [r.randn(rows, columns, seed=rank) for rank in range(r.n)]
    residual, bias, weight = r.randn(rows, columns, seed=50), r.randn(columns, seed=51), r.randn(columns, seed=52)
    h = torch.stack(every).float().sum(0) + residual + bias
    expected = torch.nn.functional.rms_norm(h, [columns], weight.float(), 1e-6)
    inbox, ch = dist.empty([2, r.n, rows, columns], BF16), dist.channel([rows])
    y = every[r.me].clone().zero_()

    def serial() -> Any:
        torch.distributed.all_reduce(y)
        return kernels.add_rms_norm(y, residual, bias, weight)

    return [every[r.me], residual, bias, weight, inbox, ch], expected, serial


def rms_norm(r: Rank) -> None:
    for rows in r.pick((32, 256), (5,)):
        args, expected, serial = _rms_norm_arguments(r, rows)
        what, call = f"{rows} rows", functools.partial(all_reduce_rms_norm.all_reduce_rms_norm, *args)
        r.close("rms_norm", what, call()[0], expected)
        calls = {"default": call}
        if r.n > 2 and rows % r.n == 0:
            more = all_reduce_rms_norm.two_shots_memory(rows, args[0].size(1))
            calls["two shots"] = functools.partial(all_reduce_rms_norm.all_reduce_rms_norm_two_shots, *args[:4], *more)
            r.close("rms_norm", f"{what}, two shots", calls["two shots"]()[0], expected)
        for graph in (False, True):
            r.rows_of("rms_norm", what, {**calls, "nccl + one kernel": serial}, graph=graph)


#: Rows from which products and their messages overlap as wholes, and up to which single tiles are sent: in two loops, and
#: in one.
_WHOLE, _TILES, _FEW = 4096, 4096, 512
_ROWS = (64, 512, 4096, 16384)


def _products(r: Rank, rows: int, k: int, columns: int) -> tuple[Any, Any, Any]:
    """Return this rank's operands of a product, and the sum of all ranks' products."""
    k, columns = r.pick(k, 48), r.pick(columns, 32)
    pairs = [(r.randn(rows, k, seed=rank), r.randn(k, columns, seed=10 + rank)) for rank in range(r.n)]
    return *pairs[r.me], torch.stack([x @ w for x, w in pairs]).float().sum(0)


def _in_one_loop(kernel: Any, x: torch.Tensor, w: torch.Tensor, *more: int) -> dict[str, Call]:
    """Return the call of a product of few rows; none for many rows."""
    rows = x.size(0)
    if rows > _FEW:
        return {}
    return {"one loop": functools.partial(kernel, x, w, *_one_loop_memory(rows, w.size(1)), *more)}


def _one_loop_memory(rows: int, columns: int) -> tuple[Any, Any]:
    return dist.empty([2, dist.world_size(), rows, columns], BF16), dist.channel(one_loop.WORDS)


def matmul_all_reduce(r: Rank) -> None:
    for rows in r.pick(_ROWS, (32,)):
        x, w, expected = _products(r, rows, 4096, 8192)
        columns, what = w.size(1), f"{rows} x {x.size(1)} x {w.size(1)}"
        calls: dict[str, Call] = {}
        if rows <= _TILES:
            memory = dist.empty([2, r.n, rows, columns], BF16), dist.channel(tiled_all_reduce.WORDS)
            calls["tiles"] = functools.partial(tiled_all_reduce.matmul_all_reduce, x, w, *memory)
        calls |= _in_one_loop(one_loop.matmul_all_reduce, x, w)
        if rows >= r.pick(_WHOLE, 0):
            parts = [overlapped.Memory(rows // r.n, columns) for _ in range(2)]
            calls["overlapped"] = functools.partial(overlapped.matmul_all_reduce, x, w, *parts)
        for variant, call in calls.items():
            r.close("matmul_all_reduce", f"{what}, {variant}", call(), expected)
        product = functools.partial(torch.mm, x, w)
        calls |= {"cublas + nccl": functools.partial(_summed, product), "cublas alone": product}
        shared = r.symmetric(rows, columns)
        if not r.by_ipc:
            shot = torch.ops.symm_mem.one_shot_all_reduce if rows <= 512 else torch.ops.symm_mem.two_shot_all_reduce_
            calls["cublas + torch"] = lambda s=shared, x=x, w=w, f=shot: (torch.mm(x, w, out=s), f(s, "sum", r.group))  # type: ignore[misc]
        r.rows_of("matmul_all_reduce", what, calls, calls=2)


def matmul_reduce_scatter(r: Rank) -> None:
    for rows in r.pick(_ROWS, (32,)):
        x, w, total = _products(r, rows, 8192, 4096)
        part, columns, what = rows // r.n, w.size(1), f"{rows} x {x.size(1)} x {w.size(1)}"
        calls: dict[str, Call] = {}
        if rows <= _TILES:
            memory = dist.empty([2, r.n, part, columns], BF16), dist.channel(tiled_reduce_scatter.WORDS)
            calls["tiles"] = functools.partial(tiled_reduce_scatter.matmul_reduce_scatter, x, w, *memory, r.me)
        calls |= _in_one_loop(one_loop.matmul_reduce_scatter, x, w, r.me)
        if rows >= r.pick(_WHOLE, 0):
            calls["overlapped"] = functools.partial(
                overlapped.matmul_reduce_scatter, x, w, overlapped.Memory(part, columns)
            )
        for variant, call in calls.items():
            r.close("matmul_reduce_scatter", f"{what}, {variant}", call(), total.chunk(r.n)[r.me])
        out = torch.empty([part, columns], dtype=BF16, device=r.device)
        product = functools.partial(torch.mm, x, w)
        calls["cublas + nccl"] = lambda out=out, f=product: torch.distributed.reduce_scatter_tensor(out, f())  # type: ignore[misc]
        calls["torch"] = functools.partial(torch.ops.symm_mem.fused_matmul_reduce_scatter, x, w, "sum", 0, r.group)
        r.rows_of("matmul_reduce_scatter", what, {**calls, "cublas alone": product}, calls=2)


def all_gather_matmul(r: Rank) -> None:
    for rows in r.pick((4096, 1024), (20,)):
        k, columns = r.pick(8192, 48), r.pick(8192 if rows == 4096 else 14336, 32)
        shards = [r.randn(rows, k, seed=rank) for rank in range(r.n)]
        x, w, everyone = shards[r.me], r.randn(k, columns, seed=10 + r.me), torch.cat(shards)
        what, expected = f"{r.n} x {rows} rows, {k} x {columns}", everyone @ w
        memory = dist.empty([2, r.n, rows, k], BF16), dist.channel([helion.cdiv(rows, tiled_gather.ROWS)])
        calls: dict[str, Call] = {
            "blocks of rows": functools.partial(tiled_gather.all_gather_matmul, x, w, *memory, r.me),
            "overlapped": functools.partial(overlapped.all_gather_matmul, x, w, overlapped.Memory(rows, k)),
            "waiting": functools.partial(sending_matmul.all_gather_matmul, x, w, sending_matmul.Memory(rows, k)),
        }
        for variant, call in calls.items():
            r.close("all_gather_matmul", f"{what}, {variant}", call(), expected)
        gathered, product = torch.empty_like(everyone), functools.partial(torch.mm, everyone, w)
        shard = r.symmetric(rows, k).copy_(x)

        def serial(x: Any = x, w: Any = w, gathered: Any = gathered) -> Any:
            torch.distributed.all_gather_into_tensor(gathered, x)
            return gathered @ w

        calls |= {"nccl + cublas": serial, "cublas alone": product}
        calls["torch"] = functools.partial(torch.ops.symm_mem.fused_all_gather_matmul, shard, [w], 0, r.group)
        r.rows_of("all_gather_matmul", what, calls, calls=2)


def sending(r: Rank) -> None:
    """Check and time matmuls of the cute backend that send and receive tiles."""
    cases = (("matmul_all_reduce", 4096, 8192), ("matmul_reduce_scatter", 8192, 4096))
    for rows, (case, k, columns) in itertools.product(r.pick((4096, 16384), (32,)), cases):
        x, w, total = _products(r, rows, k, columns)
        is_sum, what = case == "matmul_all_reduce", f"{rows} x {x.size(1)} x {w.size(1)}"
        memory = sending_matmul.Memory(rows // r.n, w.size(1), sums=is_sum)
        call = functools.partial(getattr(sending_matmul, case), x, w, memory)
        expected = total if is_sum else total.chunk(r.n)[r.me]
        for number in range(3):
            r.close("sending", f"{case}, {what}, call {number}", call(), expected)
        r.rows_of(case, what, {"sending": call, "cublas alone": functools.partial(torch.mm, x, w)}, calls=2)
        memory.check()
        if rows == 4096 and is_sum:
            _sending_pieces(r)


def _sending_pieces(r: Rank) -> None:
    """Time the matmul of `sending_matmul` whose messages nothing waits for, and the same into own memory."""
    x, w, _ = _products(r, 4096 // r.n, 4096, 8192)
    memory, out = sending_matmul.Memory(x.size(0), w.size(1)), x.new_empty(x.size(0), w.size(1))
    sent = functools.partial(sending_matmul.send_product, x, w, memory.inboxes[0], memory.sent, 1)
    calls = {"product, sent": sent, "cublas alone": functools.partial(torch.mm, x, w)}
    for stages, columns in ((4, 32), (8, 16), (2, 64)):
        kernel = helion.kernel(
            sending_matmul.send_product.fn,
            backend="cute",
            config=_sending_config(stages, columns),
            ignore_warnings=sending_matmul.send_product.settings.ignore_warnings,
        )
        call = functools.partial(kernel, x, w, memory.inboxes[0], memory.sent, 1)
        calls[f"product, sent from {stages} buffers of {columns} columns"] = call
    for name, config in _CUTE_CONFIGS.items():
        kernel = helion.kernel(overlapped.product.fn, backend="cute", config=helion.Config(**config))
        calls[f"product, {name}"] = functools.partial(kernel, x, w, out)
    r.rows_of("pieces", f"{x.size(0)} rows, {x.size(1)} x {w.size(1)}", calls)
    x, w, _ = _products(r, 4096, 8192, 8192)
    out, calls = x.new_empty(x.size(0), w.size(1)), {"cublas alone": functools.partial(torch.mm, x, w)}
    for name, config in _CUTE_CONFIGS.items():
        kernel = helion.kernel(overlapped.product.fn, backend="cute", config=helion.Config(**config))
        calls[f"product, {name}"] = functools.partial(kernel, x, w, out)
    r.rows_of("pieces", f"{x.size(0)} rows, {x.size(1)} x {w.size(1)}", calls)


def _sending_config(stages: int, columns: int) -> helion.Config:
    return helion.Config(
        block_sizes=[64],
        wgmma_pingpong=True,
        wgmma_cluster_m=2,
        wgmma_c_stages=stages,
        wgmma_epilogue_columns=columns,
        l2_groupings=[4],
    )


#: Configs of a product of the cute backend.
_CUTE_CONFIGS: dict[str, dict[str, Any]] = {
    f"{m} x {n}{', ping-pong' if m == n else ''} in groups of {group}": {
        "block_sizes": [m, n, 64],
        "wgmma_pingpong": m == n,
        "wgmma_cluster_m": 2,
        "l2_groupings": [group],
    }
    for m, n, group in ((128, 128, 4), (128, 128, 16), (128, 256, 8), (128, 256, 16), (256, 128, 4), (256, 128, 8))
}


def experts(r: Rank) -> None:
    """Send tokens to eight experts, two of them for each token, and their results back."""
    tokens, columns = r.pick(4096, 13), r.pick(4096, 40)
    inbox, results = (dist.empty([r.n, tokens, columns], BF16) for _ in range(2))
    there, back = dist.channel([helion.cdiv(tokens, dispatch_combine.ROWS)]), dist.channel([tokens])
    gates = [dispatch_combine.routed(rank, r.n, tokens, 8 // r.n, 2) for rank in range(r.n)]
    mine = gates[r.me].roll(-r.me, 1)
    wanted = mine.ne(0).any(2).int().to(r.device)
    theirs = torch.stack([gates[(r.me + peer) % r.n][:, r.me] for peer in range(r.n)]).to(r.device)
    x = r.randn(tokens, columns, seed=r.me)
    send = functools.partial(dispatch_combine.dispatch, x, wanted, inbox, there)
    take = functools.partial(dispatch_combine.combine, wanted, results, back)
    weights = torch.arange(1, 8 // r.n + 1)
    send()
    dispatch_combine.experts(inbox[0], theirs, results[0])
    r.close("experts", "result", take(), x * (gates[r.me] * weights).sum((1, 2))[:, None].to(r.device))
    ranks = mine.ne(0).any(2).roll(r.me, 1).to(r.device)  # by rank
    counts = torch.stack([each.ne(0).any(2).sum(0) for each in gates])  # of each rank, to each rank
    order = torch.cat([ranks[:, rank].nonzero()[:, 0] for rank in range(r.n)])
    sent, taken = counts[r.me].tolist(), counts[:, r.me].tolist()
    there_rows, home = (torch.empty(sum(each), columns, dtype=BF16, device=r.device) for each in (taken, sent))

    def serial_combine() -> Any:
        torch.distributed.all_to_all_single(home, there_rows, sent, taken)
        return torch.zeros_like(x).index_add_(0, order, home)

    what = f"{tokens} x {columns}, {sum(sent) - sent[r.me]} rows to peers"
    serial = functools.partial(_all_to_all, there_rows, x, order, taken, sent)
    r.rows_of(
        "experts", what, {"dispatch": send, "dispatch, nccl": serial, "combine": take, "combine, nccl": serial_combine}
    )
    for rows, warps in ((1, 4), (2, 4), (2, 8), (4, 4), (4, 16), (8, 16)):
        tiled = _configured(dispatch_combine.combine, block_sizes=[rows], num_warps=warps)
        call = functools.partial(tiled, wanted, results, dist.channel([tokens]))
        r.row("experts", what, f"combine, {rows} rows in {warps} warps", call)


def _all_to_all(out: Any, x: Any, order: Any, taken: list[int], sent: list[int]) -> None:
    torch.distributed.all_to_all_single(out, x[order], taken, sent)


# --- times of more configs -----------------------------------------------------------------------------------------------


#: Configs of a product in one loop, by name.
_PRODUCT_CONFIGS: dict[str, dict[str, Any]] = {
    f"{m} x {n} x {k}, {warps} warps": {
        "block_sizes": [m, n, k],
        "num_warps": warps,
        "num_stages": stages,
        "l2_groupings": [8],
    }
    for m, n, k, warps, stages in (
        (64, 32, 256, 4, 4),
        (64, 32, 128, 4, 8),
        (64, 64, 128, 4, 4),
        (64, 64, 256, 4, 4),
        (64, 128, 64, 4, 4),
        (128, 64, 64, 4, 4),
        (128, 128, 64, 4, 3),
        (128, 128, 64, 8, 3),
        (128, 128, 64, 8, 6),
    )
}


def configs(r: Rank) -> None:
    """Time kernels under configs that are not their default."""
    cases = (
        ("matmul_reduce_scatter", one_loop.matmul_reduce_scatter, (8192, 4096), (r.me,)),
        ("matmul_all_reduce", one_loop.matmul_all_reduce, (4096, 8192), ()),
    )
    for rows in r.pick((512, 64), (32,)):
        for case, kernel, sizes, more in cases:
            x, w, _ = _products(r, rows, *sizes)
            memory = _one_loop_memory(rows, w.size(1))
            for name, config in _PRODUCT_CONFIGS.items():
                call = functools.partial(_configured(kernel, **config), x, w, *memory, *more)
                what = f"{rows} x {x.size(1)} x {w.size(1)}"
                r.row(case, what, f"one loop, {name}", call, calls=2)
    for kilobytes in r.pick((8, 64, 512), (2,)):
        x = r.randn(kilobytes * 512, seed=r.me)
        for size, warps in ((256, 2), (512, 4), (1024, 8), (2048, 8), (4096, 8)):
            for kernel, name, memory in _small_all_reduces(r, x.size(0)) if size <= x.size(0) else ():
                call = functools.partial(_configured(kernel, block_sizes=[size], num_warps=warps), x, *memory)
                r.row("all_reduce", f"{kilobytes} KB", f"{name}, {size} in {warps} warps", call)
    for rows in r.pick((32, 256), (5,)):
        args, _, _ = _rms_norm_arguments(r, rows)
        for warps in (8, 16, 32):
            tiled = _configured(all_reduce_rms_norm.all_reduce_rms_norm, block_sizes=[1], num_warps=warps)
            r.row("rms_norm", f"{rows} rows", f"{warps} warps", functools.partial(tiled, *args))


def _small_all_reduces(r: Rank, count: int) -> tuple[tuple[Any, str, tuple[Any, ...]], ...]:
    """Return kernels for little data, their names and their memory, for one tile size."""
    mail = dist.mailbox([count], BF16, marked=True)
    return (
        (one_shot.all_reduce_by_mail, "marked mail", (mail,)),
        (one_shot.all_reduce, "one shot", _one_shot_memory(r, count)),
    )


def pieces(r: Rank) -> None:
    """Time what `overlapped_matmul` is made of: products into own memory and into that of a peer, copies, messages."""
    for rows in r.pick((512, 1024, 2048), (32,)):
        x, w, _ = _products(r, rows, 4096, 8192)
        memory, out = overlapped.Memory(rows, w.size(1)), torch.empty([rows, w.size(1)], dtype=BF16, device=r.device)
        theirs, parts = memory.inbox[1][0], tuple(memory.inbox[0][peer] for peer in range(1, r.n))

        def messages(memory: Any = memory) -> None:
            memory.hear(memory.ready)
            overlapped.tell(memory.ready)

        calls: dict[str, Call] = {
            "product": functools.partial(overlapped.product, x, w, out),
            "product, to the peer": functools.partial(overlapped.product, x, w, theirs),
            "product plus": functools.partial(overlapped.product_plus, x, w, parts, out),
            "copy to the peer": functools.partial(theirs.copy_, out),
            "messages": messages,
            "cublas alone": functools.partial(torch.mm, x, w),
        }
        calls["product"](), calls["product, to the peer"]()
        r.close("pieces", f"{rows} rows", out, x @ w)
        r.rows_of("pieces", f"{rows} rows, {x.size(1)} x {w.size(1)}", calls)
        memory.check()
