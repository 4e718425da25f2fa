"""Marked mail: elements that carry the number of their message, so that no signal follows them."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch

import helion
import helion.distributed as hd
import helion.language as hl
from helion import exc
from helion._compiler.frontend.hl import remote
from helion._compiler.passes.analysis import protocol
from helion.backends.triton.toolchain.offline import compile_offline
from helion.backends.triton.toolchain.signature import offline_signature

ROWS, COLUMNS = 37, 50


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[16, 32]))
def all_reduce(x: torch.Tensor, mail: hl.Mailbox) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        total = x[tile_m, tile_n]
        for peer in hl.static_range(1, mail.world_size):
            mail.send(peer, [tile_m, tile_n], x[tile_m, tile_n])
        for peer in hl.static_range(1, mail.world_size):
            total = total + mail.receive(peer, [tile_m, tile_n])
        out[tile_m, tile_n] = total
    return out


def _inputs(ranks: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(ROWS, COLUMNS, generator=generator) * 8 + 2 for _ in range(ranks)]
    return [x.round().to(dtype) for x in made]


def _sums(kernel: Any, ranks: int, dtype: torch.dtype, calls: int = 3, **options: Any) -> None:
    """Check sums over all ranks, which are exact."""
    inputs = _inputs(ranks, dtype)

    def on_rank() -> list[torch.Tensor]:
        mail = hd.mailbox([ROWS, COLUMNS], dtype, marked=True)
        results = [kernel(inputs[hd.rank()] * scale, mail) for scale in range(1, calls + 1)]
        hd.check(mail)
        return results

    total = sum(x.double() for x in inputs)
    for results in hd.run(on_rank, ranks, **options):
        for scale, result in enumerate(results, 1):
            torch.testing.assert_close(result.double(), scale * total, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("ranks", "dtype"),
    [
        (2, torch.bfloat16),
        (3, torch.float32),
        (2, torch.int32),
        pytest.param(4, torch.float16, marks=pytest.mark.prove),
    ],
)
def test_sums_are_exact(ranks: int, dtype: torch.dtype) -> None:
    _sums(all_reduce, ranks, dtype, calls=4, seed=ranks)


def test_marks_wrap_around() -> None:
    """The mark of a 2-byte element is the lower half of its number, and a message may have number 0."""
    inputs, scales = _inputs(2, torch.bfloat16), (1, 2, 3, 4, 3, 2, 1)

    def on_rank() -> list[torch.Tensor]:
        mail = hd.mailbox([ROWS, COLUMNS], torch.bfloat16, marked=True)
        for counter in (mail.sent, mail.channel.seen):
            counter.fill_(2**16 - 4)
        return [all_reduce(inputs[hd.rank()] * scale, mail) for scale in scales]

    total = sum(x.double() for x in inputs)
    for results in hd.run(on_rank, 2, seed=1):
        for scale, result in zip(scales, results, strict=True):
            torch.testing.assert_close(result.double(), scale * total, rtol=0, atol=0)


def test_reset_takes_marks_away() -> None:
    inputs = _inputs(2)

    def on_rank() -> list[torch.Tensor]:
        mail, results = hd.mailbox([ROWS, COLUMNS], marked=True), []
        for _ in range(2):
            results += [all_reduce(inputs[hd.rank()] * scale, mail) for scale in (1, 2)]
            hd.reset(mail)
        assert not any(bool(each.any()) for each in (mail.sent, mail.channel.seen, mail.marked[0]))
        return results

    for results in hd.run(on_rank, 2, seed=4):
        for scale, result in zip((1, 2, 1, 2), results, strict=True):
            torch.testing.assert_close(result, scale * sum(inputs), rtol=0, atol=0)


def test_mail_is_marked_by_the_time_on_the_link() -> None:
    few, many = ([64, 1024], [1024, 1024])
    for shape, dtype, ranks, marked in (
        (few, torch.bfloat16, 2, True),
        (few, torch.float32, 2, True),
        (few, torch.float32, 4, False),
        (many, torch.bfloat16, 2, False),
        (few, torch.bfloat16, 4, True),
        ([256, 1024], torch.bfloat16, 2, False),
        (few, torch.float64, 2, False),
    ):
        mail = hd.mailbox(shape, dtype, marked=None, device="meta", ranks=ranks)
        assert bool(mail.marked) == marked, (shape, dtype, ranks)
    words = hd.mailbox(few, torch.bfloat16, marked=True, device="meta", ranks=2).marked
    assert [(w.dtype, w.shape) for w in words] == [(torch.int32, (2, 3, *few))] * 2
    assert hd.mailbox(few, torch.float32, device="meta", ranks=2).marked == ()
    with pytest.raises(exc.InvalidAPIUsage, match="Elements of marked mail must have 2 or 4 bytes, got torch.float64"):
        hd.mailbox(few, torch.float64, marked=True, device="meta", ranks=2)


# --- what is refused --------------------------------------------------------------------------------------------------


def _mail(dtype: torch.dtype = torch.float32, ranks: int = 2) -> Any:
    return hd.mailbox([ROWS, COLUMNS], dtype, marked=True, device="meta", ranks=ranks)


def _part(x: torch.Tensor, mail: hl.Mailbox, first: hl.constexpr) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(first, x.size(0)):
        mail.send(1, [tile, slice(None)], x[tile, :])
        out[tile, :] = mail.receive(1, [tile, slice(None)])
    return out


@pytest.mark.parametrize(
    ("static", "rows", "first", "message"),
    [
        (True, ROWS, 1, f"a loop from 1 to {ROWS}, not from 0 to {ROWS}, in dimension 0"),
        (True, ROWS - 1, 0, f"a loop from 0 to {ROWS - 1}, not from 0 to {ROWS}, in dimension 0"),
        (False, ROWS, 0, "a loop of a size known at run time only, in dimension 0"),
    ],
)
def test_tiles_must_cover_the_mail(static: bool, rows: int, first: int, message: str) -> None:
    kernel = helion.kernel(_part, static_shapes=static)
    args = (torch.empty(rows, COLUMNS, device="meta"), _mail(), first)
    with pytest.raises(exc.InvalidAPIUsage, match=f"{message}.*marked=False"):
        kernel.bind(args, target="h100", world_size=2)


def test_the_cute_backend_refuses_it() -> None:
    kernel = helion.kernel(all_reduce.fn, static_shapes=True, backend="cute")
    with pytest.raises(exc.CuteUnsupported, match="marked mail is not implemented; hl.signal and hl.wait are"):
        kernel.bind((torch.empty(ROWS, COLUMNS, device="meta"), _mail()), target="h100", world_size=2)


def test_gradients_are_not_derived() -> None:
    kernel = helion.kernel(all_reduce.fn, static_shapes=True, config=helion.Config(block_sizes=[16, 32]))

    def on_rank() -> None:
        x = torch.ones(ROWS, COLUMNS, requires_grad=True)
        kernel.differentiable()(x, hd.mailbox([ROWS, COLUMNS], marked=True)).sum().backward()

    with pytest.raises(exc.AutodiffNotSupported, match="message between ranks"):
        hd.run(on_rank, 2)


def _receives_first(x: torch.Tensor, mail: hl.Mailbox) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = mail.receive(1, [tile, slice(None)])
        mail.send(1, [tile, slice(None)], x[tile, :])
    return out


def _sends_to_another_peer(x: torch.Tensor, mail: hl.Mailbox) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        mail.send(0, [tile, slice(None)], x[tile, :])
        out[tile, :] = mail.receive(1, [tile, slice(None)])
    return out


def _sends_twice(x: torch.Tensor, mail: hl.Mailbox) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        for _ in hl.static_range(2):
            mail.send(1, [tile, slice(None)], x[tile, :])
        out[tile, :] = mail.receive(1, [tile, slice(None)])
    return out


def _reads_other_tiles(x: torch.Tensor, mail: hl.Mailbox) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        mail.send(1, [tile, slice(None)], x[tile, :])
    hl.barrier()
    for tile in hl.tile(x.size(0)):
        out[tile, :] = mail.receive(1, [tile, slice(None)])
    return out


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (_receives_first, exc.MessageOrder, r"mail\.send.* follows the wait"),
        (_sends_to_another_peer, exc.UnmatchedMessage, "to=1.*is to=0"),
        (_sends_twice, exc.UnmatchedMessage, "sends 2 in each call, of which 1"),
        (_reads_other_tiles, exc.UnmatchedMessage, "share the size with hl.register_block_size"),
    ],
)
def test_wrong_messages_are_refused(function: Any, error: type[exc.BaseError], message: str) -> None:
    kernel = helion.kernel(function, static_shapes=True)
    with pytest.raises(error, match=message):
        bound = kernel.bind((torch.empty(ROWS, COLUMNS, device="meta"), _mail()), target="h100", world_size=2)
        bound.to_triton_code(helion.Config(block_sizes=[8, 16]))


def test_one_part_is_reused_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_PARTS", 1)
    kernel = helion.kernel(all_reduce.fn, static_shapes=True, config=helion.Config(block_sizes=[16, 32]))
    with pytest.raises(exc.UnacknowledgedReuse, match="1 part of a peer's 'mail.marked'"):
        kernel.bind((torch.empty(ROWS, COLUMNS, device="meta"), _mail()), target="h100", world_size=2)
    monkeypatch.setattr(protocol, "messages_of", lambda *_: None)
    with pytest.raises(exc.DataRace, match="mail.marked"):
        _sums(kernel, 2, torch.float32, seed=2)


# --- what simulated ranks find ----------------------------------------------------------------------------------------


def test_words_without_marks_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    unmarked = remote._marked
    monkeypatch.setattr(remote, "_marked", lambda t, tile, mark, words: unmarked(t, tile, mark * 0, words))
    kernel = helion.kernel(all_reduce.fn, static_shapes=True, config=helion.Config(block_sizes=[16, 32]))
    with pytest.raises(exc.Deadlock, match=r"waits for marked mail of rank [01] in mail_marked_"):
        _sums(kernel, 2, torch.bfloat16)


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[16]))
def _more_than_mail(x: torch.Tensor, more: tuple[torch.Tensor, ...], mail: hl.Mailbox) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        more[1][tile, :] = x[tile, :]
        mail.send(1, [tile, slice(None)], x[tile, :])
        out[tile, :] = mail.receive(1, [tile, slice(None)]) + more[0][tile, :]
    return out


def test_marks_tell_of_no_other_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "messages_of", lambda *_: None)
    x = torch.ones(ROWS, COLUMNS)
    with pytest.raises(exc.DataRace, match=r"more\[0\]"):
        hd.run(
            lambda: _more_than_mail(x, hd.empty([ROWS, COLUMNS]), hd.mailbox([ROWS, COLUMNS], marked=True)), 2, seed=1
        )


@helion.kernel(static_shapes=True, config=helion.Config(block_sizes=[64]))
def _writes_halves(words: torch.Tensor) -> None:
    for tile in hl.tile(words.size(0)):
        words[tile] = 1


def test_stores_of_half_a_word_are_torn() -> None:
    def on_rank() -> None:
        mail = hd.mailbox([100], torch.bfloat16, marked=True)
        _writes_halves(mail.marked[1].view(-1).view(torch.int16))

    with pytest.raises(exc.DataRace, match="written in part"):
        hd.run(on_rank, 2)


def test_words_are_accessed_by_pointers() -> None:
    """A box of a descriptor may write a word in parts, and its load does not wait."""
    bound = all_reduce.bind((torch.empty(64, 64, device="meta"), hd.mailbox([64, 64], marked=True, device="meta", ranks=2)), target="h100", world_size=2)  # fmt: skip
    code = bound.to_triton_code(helion.Config(block_sizes=[16, 64], indexing="tensor_descriptor"))
    assert "tl.store(mail_marked_1 + " in code and "= _marked(mail_marked_0 + " in code
    assert "make_tensor_descriptor(mail" not in code and "make_tensor_descriptor(x" in code


# --- compiled ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.prove)])
def test_words_are_whole_on_gpus(dtype: torch.dtype) -> None:
    bound = all_reduce.bind((torch.empty(64, 64, dtype=dtype, device="meta"), hd.mailbox([64, 64], dtype, marked=True, device="meta", ranks=2)), target="h100", world_size=2)  # fmt: skip
    plan = bound._analysis.code(bound.default_config()).plan
    kernel = inspect.unwrap(bound.compile_config()).__globals__[plan.kernel_names[0]]
    ptx = compile_offline(kernel, **offline_signature(plan, bound.target)).asm["ptx"]
    bits = 16 * dtype.itemsize
    polled = re.findall(r"ld\.volatile\.global\.(v\d\.b\d+) ", ptx)
    assert polled and ptx.count("ld.volatile.global") == len(polled) and {f"b{bits}"} == {x[3:] for x in polled}
    assert ptx.count(f"st.global.{polled[0]} ") == len(polled), "each vector of a message is read once"
    assert ptx.count("barrier.cta.red.or") == 2 and "membar" not in ptx and "fence" not in ptx
