"""Keys in parts that a second grid loop combines: one attention over all keys, or a refusal by name."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from backends.cute.edited_source import edited

import helion
from helion import exc
from helion._testing import import_path

TEXT = """
import torch
import helion
import helion.language as hl


def whole(q, k, v, parts: hl.constexpr):
    heads, m, dims = q.size()
    n, dims = k.size(1), hl.specialize(dims)
    step = (n + parts - 1) // parts
    partials = torch.empty([parts, heads, m, dims], dtype=torch.float32, device=q.device)
    logsums = torch.empty([heads, parts, m], dtype=torch.float32, device=q.device)
    out, logsum = torch.empty_like(q), torch.empty([heads, m], dtype=torch.float32, device=q.device)
    for h, part, rows in hl.tile([heads, parts, m], block_size=[1, 1, None]):
        highest = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, dims], dtype=torch.float32)
        for tile in hl.tile(part.begin * step, min(part.begin * step + step, n)):
            scores = hl.dot(q[h.begin, rows, :], k[h.begin, tile, :].T) * 0.125
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile, :], acc=acc * shrink[:, None])
            highest = raised
        partials[part.begin, h.begin, rows, :] = acc / total[:, None]
        logsums[h.begin, part.begin, rows] = highest + torch.log(total)
    hl.barrier()
    for h, rows in hl.tile([heads, m], block_size=[1, None]):
        each = logsums[h.begin, :, rows]
        most = torch.amax(each, 0)
        powers = torch.exp(each - most[None, :])
        sums = powers.sum(0)
        shares = powers / sums[None, :]
        out[h.begin, rows, :] = (partials[:, h.begin, rows, :] * shares[:, :, None]).sum(0)
        logsum[h.begin, rows] = most + torch.log(sums)
    return out, logsum


def stepwise(q, k, v, parts: hl.constexpr):
    heads, m, dims = q.size()
    n, dims = k.size(1), hl.specialize(dims)
    span = hl.register_block_size(n)
    count = helion.cdiv(n, span)
    sums = torch.empty([heads, count, m], dtype=torch.float32, device=q.device)
    maxima = torch.empty([heads, count, m], dtype=torch.float32, device=q.device)
    partials = torch.empty([heads, count, m, dims], dtype=torch.float32, device=q.device)
    out, logsum = torch.empty_like(q), torch.empty([heads, m], dtype=torch.float32, device=q.device)
    for h, rows, part in hl.tile([heads, m, n], block_size=[1, None, span]):
        highest = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, dims], dtype=torch.float32)
        for tile in hl.tile(part.begin, part.end):
            scores = hl.dot(q[h.begin, rows, :], k[h.begin, tile, :].T) * (0.125 * 1.4426950408889634)
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp2(scores - raised[:, None]), torch.exp2(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[h.begin, tile, :], acc=acc * shrink[:, None])
            highest = raised
        partials[h.begin, part.id, rows, :] = acc
        maxima[h.begin, part.id, rows] = highest
        sums[h.begin, part.id, rows] = total
    hl.barrier()
    for h, rows in hl.tile([heads, m], block_size=[1, None]):
        most = hl.full([rows], float("-inf"), dtype=torch.float32)
        total = hl.zeros([rows], dtype=torch.float32)
        acc = hl.zeros([rows, dims], dtype=torch.float32)
        for at in hl.grid(count):
            raised = torch.maximum(most, maxima[h.begin, at, rows])
            shrink, power = torch.exp2(most - raised), torch.exp2(maxima[h.begin, at, rows] - raised)
            total = sums[h.begin, at, rows] * power + total * shrink
            acc = acc * shrink[:, None] + partials[h.begin, at, rows, :] * power[:, None]
            most = raised
        out[h.begin, rows, :] = acc / total[:, None]
        logsum[h.begin, rows] = (most + torch.log2(total)) * 0.6931471805599453
    return out, logsum


def of_lengths(q, k, v, lengths, parts: hl.constexpr):
    batch, groups, shared, dims = q.size()
    shared, dims = hl.specialize(shared), hl.specialize(dims)
    partials = torch.empty([batch, groups, parts, shared, dims], dtype=torch.float32, device=q.device)
    logsums = torch.empty([batch, groups, parts, shared], dtype=torch.float32, device=q.device)
    out = torch.empty_like(q)
    for tile_b, tile_g, tile_p in hl.tile([batch, groups, parts], block_size=[1, 1, 1]):
        b, g, part = tile_b.begin, tile_g.begin, tile_p.begin
        query = q[b, g, :, :]
        length = lengths[b]
        step = (length + parts - 1) // parts
        highest = hl.full([shared], -1e30, dtype=torch.float32)
        total = hl.zeros([shared], dtype=torch.float32)
        acc = hl.zeros([shared, dims], dtype=torch.float32)
        for tile in hl.tile(part * step, torch.minimum(part * step + step, length)):
            scores = hl.dot(query, k[b, tile, g, :].T) * dims**-0.5
            raised = torch.maximum(highest, torch.amax(scores, -1))
            weights, shrink = torch.exp(scores - raised[:, None]), torch.exp(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[b, tile, g, :], acc=acc * shrink[:, None])
            highest = raised
        partials[b, g, part, :, :] = acc / torch.where(total > 0, total, 1.0)[:, None]
        logsums[b, g, part, :] = torch.log(total) + highest
    hl.barrier()
    for tile_b, tile_g in hl.tile([batch, groups], block_size=[1, 1]):
        b, g = tile_b.begin, tile_g.begin
        portions = torch.softmax(logsums[b, g, :, :], 0)
        out[b, g, :, :] = (partials[b, g, :, :, :] * portions[:, :, None]).sum(0)
    return out
"""
LAST = "        logsum[h.begin, rows] = most + torch.log(sums)\n"
CHANGES = {
    # of `whole`
    "a causal mask": ("k[h.begin, tile, :].T) * 0.125\n", "k[h.begin, tile, :].T) * 0.125\n            scores = torch.where(rows.index[:, None] >= tile.index[None, :], scores, float('-inf'))\n", "whole", "a mask"),
    "keys twice": ("hl.tile(part.begin * step, min", "hl.tile(max(part.begin * step - 1, 0), min", "whole", "bounds"),
    "an empty part": ("step = (n + parts - 1) // parts", "step = (n + parts - 1) // parts + 300", "whole", "a quotient of zeros"),
    "an initial sum": ('highest = hl.full([rows], float("-inf"), dtype=torch.float32)\n        total = hl.zeros([rows], dtype=torch.float32)\n        acc = hl.zeros([rows, dims], dtype=torch.float32)\n        for tile in hl.tile(part.begin * step', 'highest = hl.full([rows], 0.5, dtype=torch.float32)\n        total = hl.full([rows], 1.0, dtype=torch.float32)\n        acc = hl.zeros([rows, dims], dtype=torch.float32)\n        for tile in hl.tile(part.begin * step', "whole", "an initial sum"),
    "another base": ("highest + torch.log(total)", "highest + torch.log2(total)", "whole", "whose values are no"),
    "powers of another base": ("torch.exp(each - most", "torch.exp2(each - most", "whole", "exp2 of difference"),
    "the largest part": ("shares[:, :, None]).sum(0)", "shares[:, :, None]).amax(0)", "whole", "max of shared matrix"),
    "the least part": ("torch.amax(each, 0)", "torch.amin(each, 0)", "whole", "of logsum"),
    "shares that are not normalized": ("* shares[:, :, None]", "* powers[:, :, None]", "whole", "accumulator of all"),
    "twice the result": (LAST, LAST + "        out[h.begin, rows, :] = out[h.begin, rows, :] * 2\n", "whole", "out"),
    "parts that are returned": ("    return out, logsum\n\n\ndef stepwise", "    return out, logsums\n\n\ndef stepwise", "whole", "which other code reads"),
    "another head": ("partials[:, h.begin, rows, :]", "partials[:, heads - 1 - h.begin, rows, :]", "whole", "an index of the parts"),
    "narrow parts": ("partials = torch.empty([parts, heads, m, dims], dtype=torch.float32", "partials = torch.empty([parts, heads, m, dims], dtype=torch.bfloat16", "whole", "no tensor in float32"),
    # of `stepwise`
    "one part less": ("for at in hl.grid(count)", "for at in hl.grid(count - 1)", "stepwise", "some parts"),
    "one part more": ("for at in hl.grid(count)", "for at in hl.grid(1, count)", "stepwise", "some parts"),
    "a factor is missing": ("total = sums[h.begin, at, rows] * power + total * shrink", "total = sums[h.begin, at, rows] * power + total", "stepwise", "of"),
    "the accumulator is not shrunk": ("acc = acc * shrink[:, None] + partials", "acc = acc + partials", "stepwise", "of"),
    "the maximum is not carried": ("most = raised", "most = most", "stepwise", "of"),
    "an initial total": ("total = hl.zeros([rows], dtype=torch.float32)\n        acc = hl.zeros([rows, dims], dtype=torch.float32)\n        for at", "total = hl.full([rows], 1.0, dtype=torch.float32)\n        acc = hl.zeros([rows, dims], dtype=torch.float32)\n        for at", "stepwise", "a loop over the parts"),
    "the sum of another number of keys": ("helion.cdiv(n, span)", "helion.cdiv(n, span) + 1", "stepwise", "some parts"),
    # of `of_lengths`
    "a part without keys": ("torch.where(total > 0, total, 1.0)", "total", "of_lengths", "a quotient of zeros"),
    "too short a step": ("(length + parts - 1) // parts", "(length + parts - 2) // parts", "of_lengths", "no adjacent ranges"),
    "another length": ("torch.minimum(part * step + step, length)", "torch.minimum(part * step + step, length - 1)", "of_lengths", "no adjacent ranges"),
    "keys that are left out": ("hl.tile(part * step, torch", "hl.tile(part * step + 1, torch", "of_lengths", "no adjacent ranges"),
    # right
    "quotients of sums": ("shares = powers / sums[None, :]\n        out[h.begin, rows, :] = (partials[:, h.begin, rows, :] * shares[:, :, None]).sum(0)", "out[h.begin, rows, :] = (powers[:, :, None] * partials[:, h.begin, rows, :]).sum(0) / sums[:, None]", "whole", None),
    "softmax": ("shares = powers / sums[None, :]", "shares = torch.softmax(each, 0)", "whole", None),
    "the mean of the parts": ("shares[:, :, None]).sum(0)", "shares[:, :, None]).mean(0) * parts", "whole", None),
    "an epilogue": ("out[h.begin, rows, :] = acc / total[:, None]", "out[h.begin, rows, :] = torch.relu(acc / total[:, None] + q[h.begin, rows, :]) - q[h.begin, rows, :]", "stepwise", None),
}  # fmt: skip


def given_of(m: int = 30, n: int = 500, device: str = "cpu") -> tuple[Any, ...]:
    torch.manual_seed(m)
    return tuple(torch.randn(2, rows, 64).bfloat16().to(device) for rows in (m, n, n))


def wanted_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scores = q.double() @ k.double().mT * 0.125
    return torch.softmax(scores, -1) @ v.double(), torch.logsumexp(scores, -1)


def of_lengths(device: str = "cpu") -> tuple[Any, ...]:
    """Return the arguments of the kernel of that name."""
    torch.manual_seed(0)
    sizes = (3, 2, 8, 64), *[(3, 300, 2, 64)] * 2
    tensors = [torch.randn(size).bfloat16().to(device) for size in sizes]
    return *tensors, torch.tensor([300, 37, 0], dtype=torch.int32, device=device), 4


def check(kernel: Any, given: tuple[Any, ...], parts: int = 3) -> None:
    for found, wanted in zip(kernel(*given, parts), wanted_of(*given), strict=True):
        assert (found - wanted).norm() < 6e-3 * wanted.norm()


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("parts") / "parts.py"
    path.write_text(TEXT)
    return import_path(path)


@pytest.mark.parametrize(("name", "static"), [("whole", True), ("stepwise", True), ("stepwise", False)])
def test_parts_are_one_attention(name: str, static: bool, module: Any) -> None:
    kernel, given = helion.kernel(getattr(module, name), backend="cute", static_shapes=static), given_of()
    bound = kernel.bind((*given, 3))
    assert "x 500 keys" in str(bound.plan()) or not static
    assert "wgmma_key_splits" in bound.default_config() and bound.to_code().count("_launcher(_helion") == 1
    check(kernel, given)


@pytest.mark.parametrize("change", [name for name, (*_, reason) in CHANGES.items() if reason is None])
def test_other_combinations(change: str, tmp_path: Path) -> None:
    old, new, name, _ = CHANGES[change]
    kernel, given = (
        helion.kernel(getattr(edited(TEXT, old, new, tmp_path / "edited.py"), name), backend="cute"),
        given_of(),
    )
    if change != "an epilogue":
        check(kernel, given)
        return
    found, (wanted, _) = kernel(*given, 3)[0], wanted_of(*given)
    wanted = torch.relu(wanted + given[0]) - given[0]
    assert (found - wanted).norm() < 6e-3 * wanted.norm()


@pytest.mark.parametrize("change", [name for name, (*_, reason) in CHANGES.items() if reason is not None])
def test_refusals(change: str, tmp_path: Path) -> None:
    old, new, name, reason = CHANGES[change]
    kernel = helion.kernel(getattr(edited(TEXT, old, new, tmp_path / "edited.py"), name), backend="cute")
    with pytest.raises(exc.CuteUnsupported, match=reason):
        kernel.bind(of_lengths("meta") if name == "of_lengths" else (*given_of(device="meta"), 3), target="sm_90")


def test_as_many_parts_as_dimensions_are_refused(module: Any) -> None:
    """A sum over the parts, and one over the dimensions, would look the same."""
    given = tuple(torch.empty(4, rows, 64, dtype=torch.bfloat16, device="meta") for rows in (30, 6400, 6400))
    with pytest.raises(exc.CuteUnsupported, match="the size of another dimension"):
        helion.kernel(module.whole, backend="cute").bind((*given, 64), target="sm_90")


@pytest.mark.parametrize("static", [True, False])
def test_parts_of_lengths_are_one_attention(static: bool, module: Any) -> None:
    """Sequences without keys give NaN in both backends."""
    kernel = helion.kernel(module.of_lengths, backend="cute", static_shapes=static)
    (q, k, v, lengths, _), found = of_lengths(), kernel(*of_lengths())
    for b, n in enumerate(lengths.tolist()):
        keys, values = (x[b, :n].double().transpose(0, 1) for x in (k, v))
        wanted = torch.softmax(q[b].double() @ keys.mT / 8, -1) @ values
        assert (found[b] - wanted).norm() < 6e-3 * wanted.norm() if n else found[b].isnan().all()
    assert kernel.bind(of_lengths()).to_code().count("_launcher(_helion") == 1
    assert not static or helion.kernel(module.of_lengths, backend="triton")(*of_lengths())[2].isnan().all()


MASK = (
    "* dims**-0.5\n",
    "* dims**-0.5\n            scores = torch.where(tile.index[None, :] >= 20, scores, float('-inf'))\n",
)
FROM_INFINITY = ("-1e30", "float('-inf')")
SHOWN = ("highest - raised", "highest - torch.where(raised == float('-inf'), 0.0, raised)")
WEIGHTS = ("scores - raised[:, None]", "scores - torch.where(raised == float('-inf'), 0.0, raised)[:, None]")
NO_GUARD = ("torch.where(total > 0, total, 1.0)", "total")
BOTH = ("torch.log(total) +", "torch.log(torch.where(total > 0, total, 1.0)) +")
LOGSUM = (
    "(partials[b, g, :, :, :] *",
    "(torch.amax(logsums[b, g, :, :], 0) + torch.log(torch.exp(logsums[b, g, :, :] - torch.amax(logsums[b, g, :, :], 0)"
    "[None, :]).sum(0)))[:, None] + (partials[b, g, :, :, :] *",
)
MASKED: dict[str, tuple[list[tuple[str, str]], str]] = {
    "from a number": ([], ""),
    "a number and a logarithm of one": ([BOTH], ""),
    "from minus infinity": ([FROM_INFINITY, SHOWN, WEIGHTS], ""),
    "differences of infinities": ([FROM_INFINITY], "exponents less a maximum of minus infinity"),
    "quotients of zeros": ([NO_GUARD], "a quotient of zeros"),
    "a logarithm of one": ([FROM_INFINITY, SHOWN, WEIGHTS, BOTH], "a query without keys"),
    "a logarithm that is stored": ([LOGSUM], "the logarithm of a query's sum"),
}


@pytest.mark.parametrize("name", list(MASKED))
def test_masks_that_hide_a_part(name: str, tmp_path: Path) -> None:
    """A part whose keys are all hidden counts for nothing, or the mask is refused."""
    edits, reason = MASKED[name]
    text = functools.reduce(lambda made, edit: made.replace(*edit), [MASK, *edits], TEXT)
    (tmp_path / "masked.py").write_text(text)
    kernel = helion.kernel(import_path(tmp_path / "masked.py").of_lengths, backend="cute")
    if reason:
        with pytest.raises(exc.CuteUnsupported, match=reason):
            kernel.bind(of_lengths("meta"), target="sm_90")
        return
    (q, k, v, lengths, _), found = of_lengths(), kernel(*of_lengths())
    for b, n in enumerate(lengths.tolist()):
        keys, values = (x[b, 20:n].double().transpose(0, 1) for x in (k, v))
        wanted = torch.softmax(q[b].double() @ keys.mT / 8, -1) @ values
        empty = found[b].isnan() if name != "a number and a logarithm of one" else found[b] == 0
        assert (found[b] - wanted).norm() < 6e-3 * wanted.norm() if n else empty.all()
