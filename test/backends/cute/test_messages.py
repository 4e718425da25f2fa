"""Matmuls that send tiles to peers and wait for theirs: values on simulated ranks, planted faults, code, refusals."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import helion
import helion.distributed as hd
import helion.language as hl
from helion import exc
from helion._testing import import_path
from helion.backends.cute.execute.messages import await_messages
from helion.backends.cute.plan.refusal import Refusal
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles import messages as m
from helion.backends.cute.roles.edits import Rewrite, edit_role
from helion.backends.cute.verify.state import Fault
from helion.backends.cute.verify.verify import verify

EXAMPLE: Any = import_path(Path(__file__).parents[3] / "examples" / "distributed" / "sending_matmul.py")
BF16 = torch.bfloat16
HALF_TILE = {"block_sizes": [64], "wgmma_ab_stages": 2}


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def peers(*shape: int, ranks: int = 2) -> tuple[torch.Tensor, ...]:
    return hd.empty(shape, BF16, device="meta", ranks=ranks)


def words(*shape: int, ranks: int = 2) -> hl.Channel:
    return hd.channel(shape, device="meta", ranks=ranks)


def sums_arguments(rows: int, columns: int, ranks: int = 2) -> tuple[Any, ...]:
    tiles = -(-rows // 128), -(-columns // 128)
    memory = (peers(ranks, rows, columns, ranks=ranks) for _ in range(2))
    inbox, sums = memory
    counted, done = words(*tiles, ranks=ranks), words(1, ranks=ranks)
    return (meta(rows, 136), meta(136, columns), inbox, counted, sums, done, 0)


# --- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "sizes"), [pytest.param(2, (200, 264, 136), marks=pytest.mark.prove), (3, (72, 136, 40))]
)
def test_sums_of_all_ranks(ranks: int, sizes: tuple[int, int, int]) -> None:
    hd.run(lambda: EXAMPLE.on_rank(*sizes, 2), ranks, seed=ranks)


@helion.kernel(backend="cute", ignore_warnings=[exc.UnacknowledgedReuse])
def sent_by_rows(x: torch.Tensor, w: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> None:
    """Send a product stored transposed, with one word for a row of tiles."""
    for tile_n, tile_m in hl.tile([w.size(1), x.size(0)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        inbox[1][tile_m, tile_n] = torch.relu(acc).to(x.dtype)
        hl.signal(ch, [tile_m.id + 1], to=1)


@helion.kernel(config=helion.Config(block_sizes=[128, 64]))
def received_by_rows(inbox: tuple[torch.Tensor, ...], ch: hl.Channel, count: int) -> torch.Tensor:
    out = torch.empty_like(inbox[0])
    for tile_m in hl.tile(out.size(0)):
        hl.wait(ch, [tile_m.id + 1], sender=1, count=count)
        for tile_n in hl.tile(out.size(1)):
            out[tile_m, tile_n] = inbox[0][tile_m, tile_n]
    return out


def test_another_backend_waits_for_what_a_matmul_sends() -> None:
    """The interpreter of the other kernel sees the order of both: it reports no race."""
    kernel = helion.kernel(
        sent_by_rows.fn,
        backend="cute",
        ignore_warnings=[exc.UnacknowledgedReuse],
        config=helion.Config(block_sizes=[64, 128, 64]),
    )
    a = [(torch.randn(150, 48, generator=torch.Generator().manual_seed(seed)) + 0.3).bfloat16() for seed in range(2)]
    w = (torch.randn(48, 200, generator=torch.Generator().manual_seed(9)) + 0.1).bfloat16()

    def on_rank() -> torch.Tensor:
        me = hd.rank()
        inbox, ch = hd.empty([150, 200], BF16), hd.channel([3])
        kernel(a[me], w, inbox, ch)
        return received_by_rows(inbox, ch, 4)

    for me, found in enumerate(hd.run(on_rank, 2)):
        expected = torch.relu(a[1 - me].double() @ w.double())
        torch.testing.assert_close(found.double(), expected, atol=0.2, rtol=0.02)


@helion.kernel(ignore_warnings=[exc.UnacknowledgedReuse])
def send_rows(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> None:
    for tile in hl.tile(x.size(0), block_size=64):
        inbox[1][tile, :] = x[tile, :]
        hl.signal(ch, [tile.id], to=1)


@helion.kernel(backend="cute")
def product_of_received(w: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> torch.Tensor:
    rows, k = inbox[0].size()
    out = torch.empty([rows, w.size(1)], dtype=w.dtype, device=w.device)
    for tile_m, tile_n in hl.tile([rows, w.size(1)], block_size=[64, None]):
        hl.wait(ch, [tile_m.id], sender=1, keep=True)
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, inbox[0][tile_m, tile_k], w[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(w.dtype)
    return out


def test_operands_that_a_peer_sends() -> None:
    generators = [torch.Generator().manual_seed(seed) for seed in range(3)]
    a, w = [torch.randn(150, 72, generator=each) + 0.25 for each in generators[:2]], torch.randn(72, 40) + 0.1
    a, w = [each.bfloat16() for each in a], w.bfloat16()

    def on_rank() -> list[torch.Tensor]:
        inbox, ch = hd.empty([150, 72], BF16), hd.channel([3])
        found = []
        for call in range(2):
            send_rows(a[hd.rank()] * (call + 1), inbox, ch)
            found.append(product_of_received(w, inbox, ch))
            ch.seen[1] += 1
            hd.barrier()
        return found

    for me, results in enumerate(hd.run(on_rank, 2)):
        for call, found in enumerate(results):
            expected = (a[1 - me] * (call + 1)).double() @ w.double()
            torch.testing.assert_close(found.double(), expected, atol=0.3, rtol=0.02)


def test_a_cluster_waits_for_the_operands_of_all_its_tiles() -> None:
    bound = product_of_received.bind((meta(136, 264), peers(300, 136), words(5)), target="h200")
    code = bound.to_cute_code(
        helion.Config(block_sizes=[128, 64], wgmma_cluster_m=2, wgmma_cluster_n=2, wgmma_ab_stages=2)
    )
    load = code.partition("# load")[2].partition("# store")[0]
    for number in range(2):  # 5 tiles along M, in clusters of 2
        assert f"if (tile_m - place[1] + {number}) < 5:" in load
        assert f"wanted = words_1[5 + (tile_m - place[1] + {number}) * 1] + 1" in load
    assert load.count("wanted = ") == 2, "a word for a row of tiles"
    program = bound.plan(helion.Config(block_sizes=[64, 64], wgmma_ab_stages=2)).roles
    with pytest.raises(Fault, match="a of tile 0 is loaded after the messages of tile None"):
        verify(edit_role(program, "load", without(m.AwaitMessages)))


def test_a_wait_without_a_message_is_a_deadlock() -> None:
    def on_rank() -> None:
        memory = EXAMPLE.Memory(128, 64)
        out = torch.empty(128, 64, dtype=BF16)
        EXAMPLE.product_plus_received(
            torch.ones(128, 64).bfloat16(), torch.ones(64, 64).bfloat16(), memory.inboxes[0], memory.sent, out
        )

    with pytest.raises(exc.Deadlock, match=r"rank 0 waits for 1 more messages of rank 1 in .*; .*rank 1 waits for"):
        hd.run(on_rank, 2)


def test_a_wait_outside_of_simulated_ranks_ends() -> None:
    ch = hl.Channel(
        tuple(torch.zeros(3, 1, 1, dtype=torch.int32) for _ in range(2)), torch.zeros(2, 1, 1, dtype=torch.int32)
    )
    kernel = EXAMPLE.product_plus_received
    boxes = peers(2, 128, 64)
    bound = kernel.bind((meta(128, 64), meta(64, 64), boxes, words(1, 1), meta(128, 64)), target="h200")
    launched: Any = bound.plan().gemm.problem
    with pytest.raises(
        Refusal, match=r"ch.words\[0\]\[1\] lacks 1 messages of another rank; run all ranks by helion.distributed"
    ):
        await_messages(launched, (ch.words[0], ch.seen))


# --- the program of warps -----------------------------------------------------------------------------------------------


def roles(**config: Any) -> g.KernelProgram:
    kernel = EXAMPLE.send_sums
    bound = kernel.bind(sums_arguments(300, 264), target="h200")
    program: g.KernelProgram = bound.plan(helion.Config(**{**HALF_TILE, **config})).roles
    return program


def without(kind: type[g.Step]) -> Rewrite:
    return lambda step: () if isinstance(step, kind) else (step,)


def without_gate(step: g.Step) -> tuple[g.Step, ...]:
    is_ours = isinstance(step, g.Gate) and any(isinstance(inner, m.SignalPeers) for inner in step.body)
    return step.body if is_ours and isinstance(step, g.Gate) else (step,)


def moved(kind: type[g.Step], to: int) -> Rewrite:
    """Return a rewrite that puts a step of the tile loop, or the gate of one, at another place."""

    def rewrite(step: g.Step) -> tuple[g.Step, ...]:
        if not isinstance(step, g.TileLoop):
            return (step,)
        mine = [each for each in step.body if isinstance(each, kind) or kind in map(type, getattr(each, "body", ()))]
        rest = [each for each in step.body if each not in mine]
        return (dataclasses.replace(step, body=(*rest[:to], *mine, *rest[to:])),)

    return rewrite


def without_last_barrier(step: g.Step) -> tuple[g.Step, ...]:
    if not isinstance(step, g.TileLoop):
        return (step,)
    at = max(number for number, each in enumerate(step.body) if isinstance(each, g.BarrierSync))
    return (dataclasses.replace(step, body=(*step.body[:at], *step.body[at + 1 :])),)


FAULTS: dict[str, tuple[str, Rewrite, str]] = {
    "no wait": ("load_residual", without(m.AwaitMessages), "is loaded after the messages of tile None"),
    "wait after the loads": ("load_residual", moved(m.AwaitMessages, 1), "is loaded after the messages of tile None"),
    "stores in flight": ("store", without(m.StoresComplete), "is signalled while stores of tiles"),
    "no barrier": ("store", without_last_barrier, "is signalled while stores of tiles"),
    "signal before the stores": ("store", moved(m.SignalPeers, 0), "is signalled while stores of tiles"),
    "no signal": ("store", without(m.SignalPeers), "are signalled 0 times"),
    "signals of all warps": ("store", without_gate, r"are signalled \d+ times"),
}


@pytest.mark.parametrize("pingpong", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, pingpong: bool) -> None:
    role, rewrite, message = FAULTS[fault]
    program = roles(wgmma_pingpong=pingpong)
    verify(program)
    for name in [each.name for each in program.roles if each.name.startswith(role)]:
        program = edit_role(program, name, rewrite)
    with pytest.raises(Fault, match=message):
        verify(program)


def test_tiles_outside_of_the_matrix_have_no_messages() -> None:
    bound = EXAMPLE.send_sums.bind(sums_arguments(300, 264, ranks=3), target="h200")
    config = helion.Config(**HALF_TILE, wgmma_cluster_m=2)
    code = bound.to_cute_code(config)
    assert code.count("if tile_m < 3:\n") == 2, "3 tiles along M and 3 along N, in clusters of 2 by 1"
    assert "red.release.sys.global.add.u32" in code and code.count("ld.acquire.sys.global.u32") == 4
    assert "words_1[9 + tile_m * 3 + tile_n * 1] + 1" in code and "words_3[18 + tile_m * 3 + tile_n * 1] + 1" in code
    assert re.search(r"cp_async_bulk_wait_group\(0\)\n\s+epilogue_barrier.arrive_and_wait\(\)\n\s+if warp == 4:", code)
    assert 'fence_proxy("async")' in code
    even = EXAMPLE.send_sums.bind(sums_arguments(256, 256), target="h200").to_cute_code(config)
    assert "if tile_m <" not in even


def test_a_tile_for_several_ranks_is_staged_once() -> None:
    """Sums in bf16 and the same in fp32: the former are stored to all ranks from one buffer."""
    bound = EXAMPLE.send_sums.bind(sums_arguments(256, 256, ranks=4), target="h200")
    plan = bound.plan(helion.Config(**HALF_TILE, wgmma_pingpong=True))
    verify(plan.roles)
    code = bound.to_cute_code(helion.Config(**HALF_TILE, wgmma_pingpong=True))
    assert code.count("stage_copy, stage_registers") == 1, "the code of both warpgroups writes a sub-tile once"
    assert code.count("cute.group_modes(shared_d, 0, 2)") == 4, "and stores it to four ranks"
    late = edit_role(plan.roles, "store_0", lambda step: (step, g.WriteStage(1)) if step == g.TmaStore(0) else (step,))
    with pytest.raises(Fault, match="overwrites a buffer that is being stored"):
        verify(late)


def test_auto_takes_messages() -> None:
    kernel = helion.kernel(product_of_received.fn, backend="auto")
    bound = kernel.bind((meta(4096, 4096), peers(4096, 4096), words(64)), target="h200")
    assert bound.backend == "cute"


# --- refusals -----------------------------------------------------------------------------------------------------------

HEAD = """
import torch
import helion
import helion.language as hl

@helion.kernel(backend="cute", static_shapes=STATIC, ignore_warnings=[helion.exc.UnacknowledgedReuse])
def multiply(x, w, inbox, bias, ch, done, peer: hl.constexpr):
    n = len(inbox)
    out = torch.empty([x.size(0), w.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), w.size(1)], block_size=[128, 64]):
        BEFORE
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
"""
ADD = "acc = acc + inbox[0][1, tile_m, tile_n]"
WAIT = "hl.wait(ch, [tile_m.id, tile_n.id], sender=1)"
SIGNAL = "hl.signal(done, [0, 0], to=1)"
STORE = "out[tile_m, tile_n] = acc.to(x.dtype)"
REFUSED: dict[str, tuple[list[str], str]] = {
    "matrix after a wait for operands": (
        [f"BEFORE {WAIT}", ADD, STORE],
        "inbox.* is loaded after a wait before the loop",
    ),
    "waits for operands and for matrices": (
        [f"BEFORE {WAIT}", WAIT, ADD, STORE],
        "waits before the loop over K and after",
    ),
    "signal before a wait": ([STORE, SIGNAL, WAIT, ADD, "bias[0] = 0"], "a signal before a wait of the same tile"),
    "vector after a wait": ([WAIT, ADD, "acc = acc + bias[tile_n]", STORE], "bias is loaded after a wait"),
    "nothing after a wait": ([ADD, WAIT, STORE], "a wait that no load of a matrix follows is not implemented"),
    "stored and loaded": (
        [STORE, WAIT, "acc = acc + out[tile_m, tile_n]", "inbox[1][0, tile_m, tile_n] = acc.to(x.dtype)", SIGNAL],
        "out is loaded after a wait, and stored to as well",
    ),
    "condition": ([STORE, "if tile_m.begin == 0:", f"    {SIGNAL}"], "messages in a loop, under a condition"),
    "begin of a tile": (
        [STORE, SIGNAL.replace("[0, 0]", "[tile_m.begin, 0]")],
        "words of done.*constants and of tile.id",
    ),
    "part that a counter selects": (
        ["part = ch.seen[1, tile_m.id, tile_n.id] % 2", WAIT, "acc = acc + inbox[0][part, tile_m, tile_n]", STORE],
        "is read by more than waits; a place that it selects",
    ),
}


def bind(lines: list[str], tmp_path: Path, *, target: str = "h200", static: bool = True, **config: Any) -> Any:
    before = [line.removeprefix("BEFORE ") for line in lines if line.startswith("BEFORE ")]
    text = HEAD.replace("BEFORE", "\n        ".join(before)).replace("STATIC", str(static))
    text += "".join(f"        {line}\n" for line in lines if not line.startswith("BEFORE ")) + "    return out\n"
    path = tmp_path / "multiply.py"
    path.write_text(text)
    arguments = (meta(300, 136), meta(136, 264), peers(2, 300, 264), meta(264), words(300, 300), words(300, 300), 1)
    return import_path(path).multiply.bind(arguments, target=target)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_matmul_cannot_order_is_refused(name: str, tmp_path: Path) -> None:
    lines, message = REFUSED[name]
    with pytest.raises(exc.CuteUnsupported, match=message):
        bind(lines, tmp_path)


@pytest.mark.parametrize("k", [104, 479])
def test_operands_that_kernels_before_would_copy_are_refused(k: int) -> None:
    """A kernel that copies them would read what a peer has not sent yet."""
    arguments = (meta(k, 264), peers(300, k), words(5))
    if k % 8:
        with pytest.raises(exc.CuteUnsupported, match="messages are implemented without .* and copied operands"):
            product_of_received.bind(arguments, target="h200")
    else:
        assert product_of_received.bind(arguments, target="h200").backend == "cute"


def test_messages_are_for_hopper_and_whole_k(tmp_path: Path) -> None:
    with pytest.raises(exc.CuteUnsupported, match="messages to and from peers are implemented for wgmma"):
        bind([STORE, SIGNAL], tmp_path, target="b200")
    bound = bind([STORE, SIGNAL], tmp_path)
    with pytest.raises(exc.InvalidConfig, match="one CTA has all of K; k_splits and grid_splits are 1"):
        bound.plan(helion.Config(block_sizes=[64], wgmma_k_splits=2))


def test_a_peer_that_a_host_loop_counts_is_refused(tmp_path: Path) -> None:
    example: Any = import_path(Path(__file__).parents[3] / "examples" / "distributed" / "matmul_reduce_scatter.py")
    kernel = helion.kernel(example.matmul_reduce_scatter.fn, backend="cute")
    arguments = (meta(256, 64), meta(64, 128), peers(2, 2, 128, 128), words(256, 1024), 0)
    with pytest.raises(exc.CuteUnsupported, match="messages in a loop, under a condition, or of several grids"):
        kernel.bind(arguments, target="h200")


def test_other_shapes_of_kernels_have_no_messages() -> None:
    example: Any = import_path(Path(__file__).parents[3] / "examples" / "distributed" / "all_reduce_rms_norm.py")
    kernel = helion.kernel(example.all_reduce_rms_norm.fn, backend="cute")
    vectors = [meta(32768) for _ in range(2)]
    arguments = (meta(4, 32768), meta(4, 32768), *vectors, peers(2, 2, 4, 32768), words(4))
    with pytest.raises(exc.CuteUnsupported):
        kernel.bind(arguments, target="h200")


@helion.kernel(backend="cute")
def mailed(x: torch.Tensor, w: torch.Tensor, mail: hl.Mailbox) -> torch.Tensor:
    out = torch.empty([x.size(0), w.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), w.size(1)]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        mail.send(1, [tile_m, tile_n], acc)
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize("marked", [False, True])
def test_mail_is_refused(marked: bool) -> None:
    def on_rank() -> None:
        mail = hd.mailbox([64, 64], BF16, marked=marked)
        mailed.bind((meta(64, 64).new_zeros(64, 64), meta(64, 64), mail), target="h200")

    with pytest.raises(
        exc.Base, match=r"marked mail|read by more than waits|atomic|messages|not tiled|whole tiles|effect"
    ):
        hd.run(on_rank, 2)


def test_misaligned_memory_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy for the launch would hide what the kernel stores from the peer that it then signals to."""

    def on_rank() -> None:
        memory = EXAMPLE.Memory(128, 64)
        x = torch.ones(128 * 64 + 1).bfloat16()[1:].view(128, 64)
        EXAMPLE.send_product(x, torch.ones(64, 64).bfloat16(), memory.inboxes[0], memory.sent, 1)

    with pytest.raises(exc.CuteError, match="x, of shape .* begins 2 bytes after a multiple of 16"):
        hd.run(on_rank, 2)
