"""Protocols between ranks that are refused when a kernel is bound: planted faults, and protocols that pass."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import helion
import helion.distributed as hd
import helion.language as hl
from helion import exc

ROWS, COLUMNS = 37, 50
#: A kernel that sends tiles to one peer: the statements of its first loop, and those of a second one.
HEAD = """
import torch
import helion
import helion.distributed as hd
import helion.language as hl

def exchange(x, inbox, ch, other):
    n = len(inbox)
    out = torch.empty_like(x)
    block = hl.register_block_size(x.size(0))
    for tile in hl.tile(x.size(0), block_size=block):
        half = ch.seen[n - 1, tile.id] % 2
"""
SECOND = """
    hl.barrier()
    for again in hl.tile(x.size(0)SIZE):
        half = ch.seen[n - 1, again.id] % 2
"""
SAME = ", block_size=block"
SEND = "inbox[1][half, tile, :] = x[tile, :]"
SIGNAL = "hl.signal(ch, [tile.id], to=1)"
WAIT = "hl.wait(ch, [tile.id], sender=n - 1)"
LOAD = "out[tile, :] = inbox[0][half, tile, :]"
ACKNOWLEDGED = ("hl.signal(other, [tile.id], to=n - 1)", "hl.wait(other, [tile.id], sender=1)")
RIGHT = (SEND, SIGNAL, WAIT, LOAD)


def _bound(
    folder: Path,
    first: tuple[str, ...],
    second: tuple[str, ...] = (),
    *,
    ranks: int = 2,
    again: str = SAME,
    **settings: Any,
) -> Any:
    lines = HEAD + "".join(f"        {line}\n" for line in first)
    if second:
        lines += SECOND.replace("SIZE", again) + "".join(
            f"        {line.replace('tile', 'again')}\n" for line in second
        )
    file = folder / "exchange_of_ranks.py"
    file.write_text(lines + "    return out\n")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = helion.kernel(module.exchange, **settings)
    inbox = hd.empty([2, ROWS, COLUMNS], device="meta", ranks=ranks)
    channels = [hd.channel([40], device="meta", ranks=ranks) for _ in range(2)]
    bound = kernel.bind((torch.empty(ROWS, COLUMNS, device="meta"), inbox, *channels), target="h100")
    assert bound._analysis is not None
    return bound


def _with(place: int, line: str) -> tuple[str, ...]:
    return (*RIGHT[:place], *filter(None, [line]), *RIGHT[place + 1 :])


@pytest.mark.parametrize("static_shapes", [True, pytest.param(False, marks=pytest.mark.prove)])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (RIGHT, ()),
        ((SEND, SIGNAL), (WAIT, LOAD)),
        ((SEND, SIGNAL), (WAIT.replace("tile.id", "tile.id + 0"), LOAD)),
        ((SEND, SIGNAL, SIGNAL, WAIT, WAIT, LOAD), ()),
        ((SEND, SIGNAL), ("out[tile, :] = x[tile, :]",)),
        ((SEND, SIGNAL, "if tile.id > 0:", "    hl.wait(ch, [tile.id - 1], sender=n - 1)", LOAD), ()),
        # an acknowledgment in the same call: one part suffices
        (
            (SEND.replace("half", "0"), SIGNAL, WAIT, LOAD.replace("half", "0"), "hl.signal(other, [tile.id], to=n - 1)"),
            ("hl.wait(other, [tile.id], sender=1)", "out[tile, :] = out[tile, :] + 1"),
        ),
        # a message before the store: the peer has ended its previous call
        (
            (*ACKNOWLEDGED, SEND.replace("half", "0"), SIGNAL, WAIT, LOAD.replace("half", "0")),
            (),
        ),
    ],
)  # fmt: skip
def test_right_protocols_pass(
    first: tuple[str, ...], second: tuple[str, ...], static_shapes: bool, tmp_path: Path
) -> None:
    _bound(tmp_path, first, second, static_shapes=static_shapes)


FAULTS: dict[str, tuple[tuple[str, ...], tuple[str, ...], str]] = {
    "another peer": (_with(1, "hl.signal(ch, [tile.id], to=0)"), (), r"UnmatchedMessage: hl\.wait for peer 1 .*to=1, .*is to=0"),
    "next word": (_with(1, "hl.signal(ch, [tile.id + 1], to=1)"), (), "UnmatchedMessage: hl.wait on 'ch'.*those of other tiles"),
    "one word": (_with(1, "hl.signal(ch, [0], to=1)"), (), "UnmatchedMessage: .*word 0, the other a word for each tile"),
    "word for each": (_with(2, "hl.wait(ch, [3], sender=1)"), (), "UnmatchedMessage: .*word 3, the other a word for each tile"),
    "words": (("hl.signal(ch, [1], to=1)", "hl.wait(ch, [2], sender=1)"), (), "UnmatchedMessage: .*words 1 and 2 differ"),
    "too many": (_with(2, "hl.wait(ch, [tile.id], sender=1, count=2)"), (), "UnmatchedMessage: hl.wait with count=2 .*sends 1 in each"),
    "too few": ((SEND, SIGNAL, SIGNAL, WAIT, LOAD), (), "UnmatchedMessage: hl.wait with count=1.* sends 2 in each call, of which 1"),
    "unawaited": ((*RIGHT, "hl.signal(ch, [tile.id + 1], to=1)"), (), "UnmatchedMessage: hl.signal on 'ch' .*other tiles"),
    "wait first": ((WAIT, SEND, SIGNAL, LOAD), (), r"MessageOrder: .*sent at exchange_of_ranks.py:\d+ \(hl.signal.* follows the wait"),
    "wait in an earlier loop": ((WAIT, LOAD), (SEND, SIGNAL), "MessageOrder: .*follows the wait"),
    "all programs of the loop": ((SEND, "hl.signal(ch, [0], to=1)", "hl.wait(ch, [0], sender=1, count=tile.count, keep=True)", LOAD), (),
                                 "MessageOrder: .*by all programs of the loop that waits"),
    "signal too early": ((SIGNAL, SEND, WAIT, LOAD), (), r"UnorderedTransfer: .*no hl.signal to that peer follows the store, read at \S+:\d+"),
    "output after the signal": ((SIGNAL, SEND, WAIT), ("out[tile, :] = x[tile, :]",), "UncoveredOutput: .*no hl.signal to that peer follows"),
    "no wait": (_with(2, ""), (), r"UnorderedTransfer: .*the load at .* does not wait for the hl.signal at \S+:\d+"),
    "no signal": (_with(1, ""), (), "UnorderedTransfer: .*no hl.signal"),
    "another channel": (_with(2, "hl.wait(other, [tile.id], sender=1)"), (), "UnorderedTransfer: .*does not wait for"),
    "load first": ((SEND, SIGNAL, LOAD, WAIT), (), "UnorderedTransfer: .*does not wait for"),
    "all rows": (_with(3, "out[tile, :] = inbox[0][half, :, :].sum(0)[None, :]"), (), "UnorderedTransfer: .*other tiles than"),
    "one part": (tuple(line.replace("half", "0") for line in RIGHT), (), "UnacknowledgedReuse: .*1 part of a peer's 'inbox'.*2 parts"),
    "one part over two loops": (tuple(line.replace("half", "0") for line in RIGHT[:2]), tuple(line.replace("half", "0") for line in RIGHT[2:]),
                                "UnacknowledgedReuse: .*1 part"),
    "two messages": ((SEND, SIGNAL, SIGNAL, WAIT.replace(")", ", count=2)"), LOAD), (), "UnacknowledgedReuse: .*1 part"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("static_shapes", [True, pytest.param(False, marks=pytest.mark.prove)])
def test_faults_are_refused_with_both_lines(fault: str, static_shapes: bool, tmp_path: Path) -> None:
    first, second, expected = FAULTS[fault]
    with pytest.raises(exc.BaseError) as error:
        _bound(tmp_path, first, second, static_shapes=static_shapes)
    text = f"{type(error.value).__name__}: {error.value.message}"
    assert re.match(expected, text), text
    assert error.value.location is not None and error.value.location.file.endswith("exchange_of_ranks.py")


@pytest.mark.parametrize(("again", "sizes"), [("", [8, 16]), (", block_size=16", [8])])
def test_tiles_of_two_loops_need_one_size(again: str, sizes: list[int], tmp_path: Path) -> None:
    bound = _bound(tmp_path, (SEND, SIGNAL), (WAIT, LOAD), again=again)
    with pytest.raises(
        exc.UnmatchedMessage, match=r"tiles of their loops have 8 and \d+ elements.*register_block_size"
    ):
        bound.to_triton_code(helion.Config(block_sizes=sizes))
    bound.to_triton_code(helion.Config(block_sizes=[int(again[-2:]) if again else 8] * len(sizes)))


def test_one_word_counts_all_tiles_of_a_config(tmp_path: Path) -> None:
    all_tiles = "hl.wait(ch, [0], sender=1, count=5, keep=True)"
    bound = _bound(tmp_path, (SEND, "hl.signal(ch, [0], to=1)"), (all_tiles, LOAD))
    bound.to_triton_code(helion.Config(block_sizes=[8]))
    with pytest.raises(exc.UnmatchedMessage, match=r"count=5 .* sends 3 in each call, of which 5 are waited for"):
        bound.to_triton_code(helion.Config(block_sizes=[16]))


@pytest.mark.parametrize(("ranks", "parts"), [(2, 2), (3, 3), (8, 8)])
def test_a_ring_needs_a_part_for_each_rank(ranks: int, parts: int, tmp_path: Path) -> None:
    """A rank that sends to the next one alone knows of it only through all the others."""
    if parts == 2:
        _bound(tmp_path, RIGHT, ranks=ranks)
        return
    with pytest.raises(exc.UnacknowledgedReuse, match=f"2 parts of a peer's 'inbox'.*{parts} parts used in turn"):
        _bound(tmp_path, RIGHT, ranks=ranks)


def test_host_code_may_order_calls(tmp_path: Path) -> None:
    _bound(tmp_path, FAULTS["one part"][0], ignore_warnings=[exc.UnacknowledgedReuse])


def test_channels_have_a_word_for_each_tile(tmp_path: Path) -> None:
    bound = _bound(tmp_path, RIGHT)
    bound.to_triton_code(helion.Config(block_sizes=[1]))
    small = helion.kernel(_copies)
    args = (torch.empty(ROWS, device="meta"), hd.channel([8], device="meta", ranks=2))
    with pytest.raises(exc.ChannelTooSmall, match=r"channel 'ch' has 8 words, and 'tile' has 10 tiles of 4"):
        small.bind(args, target="h100").to_triton_code(helion.Config(block_sizes=[4]))
    assert "_wait_for_messages" in small.bind(args, target="h100").to_triton_code(helion.Config(block_sizes=[8]))


def _copies(x: torch.Tensor, ch: hl.Channel) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        hl.signal(ch, [tile.id], to=1)
        hl.wait(ch, [tile.id], sender=1)
        out[tile] = x[tile]
    return out


def _local_outputs(x: torch.Tensor, outs: tuple[torch.Tensor, ...], ch: hl.Channel) -> None:
    for tile in hl.tile(x.size(0)):
        hl.signal(ch, [tile.id], to=1)
        hl.wait(ch, [tile.id], sender=1)
        for number in hl.static_range(2):
            outs[number][tile] = x[tile]
        outs[0][tile] = outs[0][tile] + 1


def test_other_tuples_of_tensors_are_not_those_of_peers() -> None:
    """As many local tensors as ranks are no memory of peers."""
    outs = tuple(torch.empty(ROWS, device="meta") for _ in range(2))
    args = (torch.empty(ROWS, device="meta"), outs, hd.channel([64], device="meta", ranks=2))
    helion.kernel(_local_outputs).bind(args, target="h100").to_triton_code()
    with pytest.raises(exc.UnorderedTransfer):
        helion.kernel(_local_outputs).bind((args[0], hd.empty([ROWS], device="meta", ranks=2), args[2]), target="h100")
