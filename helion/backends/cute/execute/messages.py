"""Messages of a GEMM on CPU tensors, between simulated ranks: its tiles wait before, and signal after the evaluation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from ...._support import ranks as _ranks
from ..plan.epilogue import Await, Word
from ..plan.records import GemmProblem
from ..plan.refusal import Refusal


def _tiles(problem: GemmProblem) -> Iterator[tuple[int, int]]:
    rows, columns = problem.epilogue.tile
    return itertools.product(range(-(-problem.m // rows)), range(-(-problem.n // columns)))


def _place(word: Word, tile: tuple[int, int]) -> int:
    return word.first + sum(number * step for number, step in zip(tile, word.steps, strict=True))


def await_messages(problem: GemmProblem, words: Sequence[torch.Tensor]) -> None:
    """Wait for the messages of all tiles, and count them. Raises ``Refusal`` for one that nothing can send."""
    pairs = [words[at : at + 2] for at in range(0, 2 * len(problem.epilogue.waits), 2)]
    for tile in _tiles(problem):
        for wait, (own, seen) in zip(problem.epilogue.waits, pairs, strict=True):
            _await(wait, tile, own.view(-1), seen.view(-1))


def _await(wait: Await, tile: tuple[int, int], own: torch.Tensor, seen: torch.Tensor) -> None:
    at, counted = _place(wait.word, tile), _place(wait.seen, tile)
    wanted, here = int(seen[counted]) + wait.count, _ranks.current()

    def missing() -> int:
        return wanted - int(own[at])

    def waiting(members: Sequence[int], rank: int) -> str:
        sender = _ranks.sender_of(wait.note, rank, members)
        return f"waits for {missing()} more messages of {sender} in {wait.word.name}[{at}]"

    if here is not None:
        world, task = here
        members = world.sharing.get(own.untyped_storage().data_ptr(), range(world.size))
        world.pause(task, lambda: _ranks.reached(int(own[at]), wanted), partial(waiting, members, task.rank))
        for known in (task.clock, world.ranks[task.rank].clock):
            world.acquire(task.rank, own.data_ptr() + 4 * at, known, wanted)
    elif not _ranks.reached(int(own[at]), wanted):
        raise Refusal(
            f"{wait.word.name}[{at}] lacks {missing()} messages of another rank; run all ranks by helion.distributed.run"
        )
    if not wait.keep:
        seen[counted] = wanted


def signal_peers(problem: GemmProblem, words: Sequence[torch.Tensor]) -> None:
    """Signal to peers that all tiles are complete."""
    here = _ranks.current()
    for tile in _tiles(problem):
        for signal, tensor in zip(problem.epilogue.signals, words[2 * len(problem.epilogue.waits) :], strict=True):
            at, flat = _place(signal.word, tile), tensor.view(-1)
            flat[at] += 1
            if here is not None:
                world, task = here
                world.progress += 1
                clock = world.ranks[task.rank].clock
                world.release(tensor.data_ptr() + 4 * at, int(flat[at]), -1, clock)
