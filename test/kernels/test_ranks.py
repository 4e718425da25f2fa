"""Kernels over several GPUs on simulated ranks: values, planted faults, refusals."""

from __future__ import annotations

import importlib.util
import pathlib
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.distributed as hd
import helion.language as hl
from helion import exc
from helion._compiler.ir.effects import meets_other_gpus
from helion._compiler.passes.analysis import protocol
from helion._support import agreement

ROWS, COLUMNS = 37, 50


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[16]))
def all_reduce(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel, call: int) -> torch.Tensor:
    out = torch.empty_like(x)
    n = len(inbox)
    for tile in hl.tile(x.size(0)):
        mine = x[tile, :]
        for peer in hl.static_range(1, n):
            inbox[peer][call % 2, n - peer, tile, :] = mine
            hl.signal(ch, [tile.id], to=peer)
        acc = mine.to(torch.float32)
        for peer in hl.static_range(1, n):
            hl.wait(ch, [tile.id], sender=peer)
            acc += inbox[0][call % 2, peer, tile, :]
        out[tile, :] = acc.to(x.dtype)
    return out


@pytest.fixture
def unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bind kernels without the proofs about their messages."""
    monkeypatch.setattr(protocol, "messages_of", lambda *_: None)


def _inputs(ranks: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [(torch.randn(ROWS, COLUMNS) + 0.5).to(dtype) for _ in range(ranks)]


@pytest.mark.parametrize(
    ("ranks", "dtype"), [(1, torch.float32), (2, torch.bfloat16), (3, torch.float32), (4, torch.float16)]
)
def test_all_reduce_of_several_calls(ranks: int, dtype: torch.dtype) -> None:
    inputs = _inputs(ranks, dtype)

    def on_rank() -> list[torch.Tensor]:
        inbox, ch = hd.empty([2, ranks, ROWS, COLUMNS], dtype), hd.channel([8])
        return [all_reduce(inputs[hd.rank()] * (call + 1), inbox, ch, call) for call in range(3)]

    scaled = [sum((x * (call + 1)).double() for x in inputs) for call in range(3)]
    for results in hd.run(on_rank, ranks, seed=ranks):
        for result, expected in zip(results, scaled, strict=True):
            torch.testing.assert_close(
                result.double(), expected, rtol=1e-2, atol=2e-2 if dtype != torch.float32 else 1e-4
            )


def _one_box(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        inbox[1][tile, :] = x[tile, :]
        hl.signal(ch, [tile.id], to=1)
        hl.wait(ch, [tile.id], sender=1)
        out[tile, :] = inbox[0][tile, :]
    return out


def _signal_too_early(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        hl.signal(ch, [tile.id], to=1)
        inbox[1][tile, :] = x[tile, :]
        hl.wait(ch, [tile.id], sender=1)
        out[tile, :] = inbox[0][tile, :]
    return out


def _no_wait(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        inbox[1][tile, :] = x[tile, :]
        hl.signal(ch, [tile.id], to=1)
        out[tile, :] = inbox[0][tile, :]
    return out


def _other_word(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        inbox[1][tile, :] = x[tile, :]
        hl.signal(ch, [0], to=1)
        hl.wait(ch, [tile.id], sender=1)
        out[tile, :] = inbox[0][tile, :]
    return out


def _atomics_of_one_gpu(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        inbox[1][tile, :] = x[tile, :]
        hl.atomic_add(ch.words[1], [1, tile.id], 1, sem="release")
        hl.wait(ch, [tile.id], sender=1)
        out[tile, :] = inbox[0][tile, :]
    return out


def _waits_first(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        hl.wait(ch, [tile.id], sender=1)
        inbox[1][tile, :] = x[tile, :]
        hl.signal(ch, [tile.id], to=1)
        out[tile, :] = inbox[0][tile, :]
    return out


def _errors(function: Callable[..., Any], *, calls: int = 3, seeds: int = 3) -> list[str]:
    """Run a faulty kernel under several schedules and return its errors."""
    kernel = helion.kernel(function, static_shapes=True, config=helion.Config(block_sizes=[16]))
    inputs, found = _inputs(2), []

    def on_rank() -> None:
        inbox, ch = hd.empty([ROWS, COLUMNS]), hd.channel([8])
        for _ in range(calls):
            kernel(inputs[hd.rank()], inbox, ch)

    for seed in range(seeds):
        with pytest.raises((exc.DataRace, exc.Deadlock)) as error:
            hd.run(on_rank, 2, seed=seed)
        found.append(f"{type(error.value).__name__}: {error.value}")
    return found


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (_one_box, r"DataRace: inbox_\d\[.*is read by rank \d, .* at src.*out\[tile, :\] = .* then written by rank \d"),
        (_signal_too_early, r"DataRace: inbox_\d\[.*is written by rank .* then read by rank"),
        (_no_wait, r"DataRace: inbox_\d\["),
        (_other_word, r"DataRace: inbox|Deadlock: .*waits for \d more"),
        (_atomics_of_one_gpu, r"DataRace: inbox_\d\["),
        (_waits_first, r"Deadlock: No rank can go on \(seed \d\): rank \d, kernel '_waits_first', program .* "
                       r"waits for 1 more message of rank \d in \w+\[1, [012]\] \(src\[test_ranks.py:\d+\]: hl.wait\("),
    ],
)  # fmt: skip
def test_faults_are_found_under_every_schedule(function: Callable[..., Any], expected: str, unproven: None) -> None:
    for message in _errors(function):
        assert re.search(expected, message), message


def test_a_seed_repeats_a_run(unproven: None) -> None:
    assert _errors(_one_box, seeds=2) == _errors(_one_box, seeds=2)


EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "distributed"


def _example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_of_ranks_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", sorted(file.stem for file in EXAMPLES.glob("*.py")))
@pytest.mark.parametrize("ranks", [2, *(pytest.param(n, marks=pytest.mark.prove) for n in (3, 4, 8))])
def test_examples(name: str, ranks: int) -> None:
    assert max(hd.run(_example(name).on_rank, ranks, seed=ranks)) > 0


def test_kernels_that_meet_other_gpus_are_not_tuned() -> None:
    bound = _bound(_one_box)
    assert meets_other_gpus(bound._analysis.program)
    assert not meets_other_gpus(_bound(_no_signals)._analysis.program)
    with pytest.raises(exc.InvalidAPIUsage, match="'_one_box' waits for other GPUs.*one config, the same on all ranks"):
        bound.search((), [{"block_sizes": [8]}, {"block_sizes": [16]}], simulated=True)


def _no_signals(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] + ch.seen[0, 0]
    return out


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[8, 16]), ignore_warnings=[exc.UnacknowledgedReuse])
def gather_rows(x: torch.Tensor, rows: tuple[torch.Tensor, ...], ch: hl.Channel) -> torch.Tensor:
    """Many programs wait for the messages of one; every tile of rows has its word."""
    n = len(rows)
    out = torch.empty([n, *x.size()], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        for peer in hl.static_range(n):
            rows[peer][(n - peer) % n, tile, :] = x[tile, :]
            hl.signal(ch, [0], to=peer)
    hl.barrier()
    for tile_c in hl.tile(x.size(1)):
        for peer in hl.static_range(n):
            hl.wait(ch, [0], sender=peer, count=helion.cdiv(x.size(0), 8), keep=True)
            out[peer, :, tile_c] = rows[0][peer, :, tile_c]
    ch.seen.add_(helion.cdiv(x.size(0), 8))
    return out


def test_messages_for_many_programs() -> None:
    inputs = _inputs(3)

    def on_rank() -> torch.Tensor:
        rows, ch = hd.empty([3, ROWS, COLUMNS]), hd.channel([1])
        first = gather_rows(inputs[hd.rank()] * 2, rows, ch)
        hd.barrier()  # the rows are written again
        return torch.stack((first, gather_rows(inputs[hd.rank()], rows, ch)))

    for rank, result in enumerate(hd.run(on_rank, 3)):
        expected = torch.stack([inputs[(rank + peer) % 3] for peer in range(3)])
        torch.testing.assert_close(result, torch.stack((2 * expected, expected)), rtol=0, atol=0)


def _bound(function: Callable[..., Any], target: str = "h100", more: tuple[Any, ...] = (), **settings: Any) -> Any:
    kernel = helion.kernel(function, static_shapes=True, ignore_warnings=[exc.UnacknowledgedReuse], **settings)
    inbox, ch = hd.empty([ROWS, COLUMNS], device="meta", ranks=2), hd.channel([8], device="meta", ranks=2)
    return kernel.bind((torch.empty(ROWS, COLUMNS, device="meta"), inbox, ch, *more), target=target)


@pytest.mark.parametrize("config", [{"block_sizes": [8]}, {"block_sizes": [8], "pid_type": "persistent_blocked"}])
def test_accesses_stay_on_their_side_of_signals_and_waits(config: dict[str, Any]) -> None:
    text = _bound(_one_box).to_triton_code(helion.Config(**config))
    body = text[text.index("def _helion_") :]
    order = [
        body.index(part)
        for part in ("tl.store(inbox_1", "tl.debug_barrier()", "scope='sys'", "_wait_for_messages(", "tl.load(inbox_0")
    ]
    assert order == sorted(order)
    assert "tl.debug_barrier()" in body[order[3] : order[4]]


def _refused(function: Callable[..., Any], **settings: Any) -> str:
    with pytest.raises(exc.BaseError) as error:
        _bound(function, **settings).to_triton_code()
    return f"{type(error.value).__name__}: {error.value}"


def _one_call(x: torch.Tensor, inbox: tuple[torch.Tensor, ...], ch: hl.Channel, call: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        if call == "peer":
            hl.signal(ch, [tile.id], to=2)
        elif call == "run-time peer":
            hl.wait(ch, [tile.id], sender=tile.id)
        elif call == "rank":
            hl.wait(ch, [tile.id, 0], sender=1)
        elif call == "tile":
            hl.signal(ch, [tile.index], to=1)
        elif call == "tensor":
            hl.signal(inbox[0], [tile.id], to=1)
        elif call == "count":
            hl.wait(ch, [tile.id], sender=1, count=1.5)
        elif call == "scope":
            hl.atomic_add(out, [tile, 0], 1.0, scope="cluster")
        out[tile, :] = x[tile, :]
    return out


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("peer", "InvalidAPIUsage: .*to of hl.signal must be from 0 to 1, since the channel has 2 ranks; got 2"),
        ("run-time peer", "sender of hl.wait must be a constant from 0 to 1, got .*hl.static_range"),
        ("rank", "index of hl.wait must be 1 number, one per dimension of the channel, got 2"),
        ("tile", "index of hl.signal must be 1 number.*Use tile.id or tile.begin"),
        ("tensor", "hl.signal takes a channel of helion.distributed.channel"),
        ("count", "count of hl.wait must be an integer, got 1.5"),
        ("scope", "scope of hl.atomic_add must be one of gpu, sys, got 'cluster'"),
    ],
)  # fmt: skip
def test_wrong_calls_are_refused(call: str, message: str) -> None:
    assert re.search(message, _refused(_one_call, more=(call,)))


def test_other_backends_and_gpus_refuse_by_name() -> None:
    assert "CuteUnsupported" in _refused(_one_box, backend="cute")
    with pytest.raises(exc.BackendUnsupported, match=r"hl\.wait is not supported by the triton backend on .*NVIDIA"):
        _bound(_one_box, target="mi300x").to_triton_code()


def test_waits_need_ranks() -> None:
    kernel = helion.kernel(_one_box, static_shapes=True)
    args = (torch.ones(ROWS, COLUMNS), hd.empty([ROWS, COLUMNS]) * 2, hd.channel([8]))
    with pytest.raises(exc.BaseError, match="hl.signal must be from 0 to 0"):
        kernel(*args)
    with pytest.raises(exc.SeveralGpusUnsupported, match=r"outside of simulated ranks.*helion\.distributed\.run"):
        all_reduce_alone(torch.ones(ROWS, COLUMNS), hd.channel([8]))
    eager = helion.kernel(all_reduce_alone.fn, ref_mode=helion.RefMode.EAGER)
    with pytest.raises(exc.SeveralGpusUnsupported, match=r"hl\.signal"):
        eager(torch.ones(ROWS, COLUMNS), hd.channel([8]))


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[16]))
def all_reduce_alone(x: torch.Tensor, ch: hl.Channel) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        hl.signal(ch, [tile.id], to=0)
        hl.wait(ch, [tile.id], sender=0)
        out[tile, :] = x[tile, :]
    return out


def test_runs_do_not_nest_and_need_ranks() -> None:
    with pytest.raises(exc.InvalidAPIUsage, match="must be positive, got 0"):
        hd.run(hd.rank, 0)
    with pytest.raises(exc.InvalidAPIUsage, match="on a simulated rank"):
        hd.run(lambda: hd.run(hd.rank), 2)
    assert hd.run(lambda: (hd.rank(), hd.world_size()), 3) == [(0, 3), (1, 3), (2, 3)]
    with pytest.raises(ZeroDivisionError):
        hd.run(lambda: 1 // hd.rank(), 2)


def test_a_late_peer_is_an_error() -> None:
    ch = hd.channel([3, 2])
    hd.check(ch)
    ch.words[0][-1, 2, 1] = 36 * 2**11 + 1
    with pytest.raises(
        exc.PeerLost,
        match=r"rank 0 waited longer than HELION_WAIT_TIMEOUT in line 36 for messages of rank 0, in words \[2, 1\]",
    ):
        hd.check(ch)
    hd.reset(ch)
    hd.check(ch)


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[64]))
def incremented(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + 1
    return out


@pytest.mark.parametrize("seed", range(3))
def test_memory_of_one_rank_does_not_become_that_of_another(seed: int) -> None:
    addresses: list[set[int]] = [set(), set(), set()]

    def on_rank() -> None:
        for _ in range(6):
            result = incremented(torch.ones(256))
            addresses[hd.rank()].add(result.data_ptr())
            torch.testing.assert_close(result, torch.full([256], 2.0))
            del result

    hd.run(on_rank, 3, seed=seed)
    assert all(addresses)


class _Ranks:
    """A process group of two ranks in one process; ``rank`` is the current one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rank, store = 0, torch.distributed.HashStore()
        told = [Counter[str](), Counter[str]()]
        monkeypatch.setattr(agreement, "_TOLD", told[0])
        self._told, self._monkeypatch = told, monkeypatch
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: self.rank)
        monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)

    def go_on(self, rank: int) -> None:
        self.rank = rank
        self._monkeypatch.setattr(agreement, "_TOLD", self._told[rank])


def test_ranks_with_different_configs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = _Ranks(monkeypatch)
    for rank in (0, 1):
        ranks.go_on(rank)
        _bound(_one_box).set_config(helion.Config(block_sizes=[16]))
    ranks.go_on(0)
    _bound(_one_box).set_config(helion.Config(block_sizes=[8]))
    ranks.go_on(1)
    with pytest.raises(
        exc.InconsistantConfigsAcrossRanks,
        match=r"'_one_box' with different configs: .*\[16\].* here, and .*\[8\].* on rank 0",
    ):
        _bound(_one_box).set_config(helion.Config(block_sizes=[16]))


@pytest.mark.prove
def test_compiled_graphs_exchange_messages() -> None:
    def on_rank() -> torch.Tensor:
        inbox, ch = hd.empty([2, 2, ROWS, COLUMNS]), hd.channel([4])
        layer = torch.compile(lambda x, call: all_reduce(x * 2, inbox, ch, call).sin())
        return [layer(torch.full([ROWS, COLUMNS], hd.rank() + 0.25), call) for call in range(3)][-1]

    for result in hd.run(on_rank, 2):
        torch.testing.assert_close(result, torch.full([ROWS, COLUMNS], 3.0).sin())


def test_a_graph_that_copies_channels_is_refused() -> None:
    def on_rank() -> None:
        inbox, ch = hd.empty([2, 2, ROWS, COLUMNS]), hd.channel([4])
        layer = torch.compile(lambda x: all_reduce(x * 2, inbox, ch, 0), backend="aot_eager")
        layer(torch.ones(ROWS, COLUMNS))

    with pytest.raises(exc.NoPlaceInGraph, match="passes a copy of 'ch'.*'inductor'"):
        hd.run(on_rank, 2)


def test_ranks_count_their_own_writes() -> None:
    def on_rank() -> tuple[int, int]:
        inbox = hd.empty([8])
        hd.barrier()
        before = inbox[0]._version
        inbox[1].fill_(1)
        hd.barrier()
        return before, inbox[0]._version

    assert all(before == after for before, after in hd.run(on_rank, 2))
