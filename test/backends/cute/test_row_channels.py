"""Row kernels whose rows have channels: numbers of channels, reductions of channels that no warp has at once, refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from backends.cute.test_row_kernels import numbers, prepared, run
from harness import tensor

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.roles.grammar import BarrierSync
from helion.backends.cute.roles.rowwise import program as r
from helion.backends.cute.verify.rowwise.simulate import RowCluster
from helion.backends.cute.verify.state import Fault

EPS = 1e-5
CHOICES = (
    RowChoice(cluster=1, warps=1, keep="shared"),
    RowChoice(cluster=1, warps=4, ctas_per_sm=1),
    RowChoice(cluster=1, warps=4, rows=2, ctas_per_sm=1),
    RowChoice(cluster=2, warps=8, ctas_per_sm=1),
)
SHAPES = ((3, 2, 3, 1024), (2, 3, 4, 392), (2, 2, 6, 48), (2, 2, 4, 64))
"""Images, groups, channels and pixels: parts of a channel are 32 lanes, one and two, or a channel is in one warp."""


def normed(x, weight, bias, out):
    for tile_b, tile_g in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_b, tile_g, :, :].to(torch.float32)
        centred = row - row.mean((-2, -1), keepdim=True)
        hat = centred * torch.rsqrt((centred * centred).mean((-2, -1), keepdim=True) + EPS)
        gain, shift = weight[tile_g, :][None, :, :, None], bias[tile_g, :][None, :, :, None]
        out[tile_b, tile_g, :, :] = (hat * gain.to(torch.float32) + shift.to(torch.float32)).to(out.dtype)


def gradient(x, weight, grad, out, of_weight, of_bias):
    for tile_b, tile_g in hl.tile([x.size(0), x.size(1)]):
        row, given = x[tile_b, tile_g, :, :].to(torch.float32), grad[tile_b, tile_g, :, :].to(torch.float32)
        centred = row - row.mean((-2, -1), keepdim=True)
        scale = torch.rsqrt((centred * centred).mean((-2, -1), keepdim=True) + EPS)
        hat, slope = centred * scale, given * weight[tile_g, :][None, :, :, None].to(torch.float32)
        shared = slope.mean((-2, -1), keepdim=True) + hat * (slope * hat).mean((-2, -1), keepdim=True)
        out[tile_b, tile_g, :, :] = (scale * (slope - shared)).to(out.dtype)
        of_weight[tile_b, tile_g, :] = (given * hat).sum(-1)
        of_bias[tile_b, tile_g, :] = given.sum(-1)


def totals(x, grad, weights, biases, out, of_weight, of_bias):
    images, groups, channels, _ = x.size()
    for tile_b, tile_g in hl.tile([images, groups]):
        row, given = x[tile_b, tile_g, :, :].to(torch.float32), grad[tile_b, tile_g, :, :].to(torch.float32)
        hat = row - row.mean((-2, -1), keepdim=True)
        out[tile_b, tile_g, :, :] = (hat * given).to(out.dtype)
        weights[tile_b, tile_g, :] = (given * hat).sum(-1)
        biases[tile_b, tile_g, :] = given.sum(-1)
    hl.barrier()
    for tile_g in hl.tile(groups):
        weight = hl.zeros([tile_g, channels], dtype=torch.float32)
        bias = hl.zeros([tile_g, channels], dtype=torch.float32)
        for tile_b in hl.tile(images):
            weight += weights[tile_b, tile_g, :].sum(0)
            bias += biases[tile_b, tile_g, :].sum(0)
        of_weight[tile_g, :] = weight
        of_bias[tile_g, :] = bias.to(of_bias.dtype)


def wanted(x: torch.Tensor, weight: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x, weight = x.double().requires_grad_(), weight.double()
    gains = weight.repeat(x.shape[0], 1, 1).requires_grad_()
    centred = x - x.mean((-2, -1), keepdim=True)
    hat = centred * torch.rsqrt(centred.square().mean((-2, -1), keepdim=True) + EPS)
    of_x, of_gains = torch.autograd.grad(hat * gains[..., None], (x, gains), grad.double())
    return of_x, of_gains, grad.double().sum(-1)


def near(got: torch.Tensor, want: torch.Tensor) -> bool:
    relative = {torch.bfloat16: 2**-8, torch.float16: 2**-11}.get(got.dtype, 2e-5)
    return bool(((got.double() - want).abs() <= relative * 1.02 * (want.abs() + want.square().mean().sqrt())).all())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("choice", CHOICES, ids=repr)
def test_gradients_with_sums_of_channels(choice: RowChoice, shape: tuple[int, ...]) -> None:
    x, grad = numbers(*shape), numbers(*shape, seed=1)
    weight = numbers(*shape[1:3], seed=2)
    out, sums = torch.empty_like(x), [torch.full(shape[:3], torch.nan) for _ in range(2)]
    run(gradient, (x, weight, grad, out, *sums), choice)
    assert all(map(near, (out, *sums), wanted(x, weight, grad)))


def test_lanes_without_a_channel_read_parts_of_another() -> None:
    """The threads of a row have more granules than it, and shared memory ends behind the parts of the last one."""
    shape = (4, 1, 5, 784)
    x, grad, weight = numbers(*shape), numbers(*shape, seed=1), numbers(*shape[1:3], seed=2)
    out, sums = torch.empty_like(x), [torch.full(shape[:3], torch.nan) for _ in range(2)]
    run(gradient, (x, weight, grad, out, *sums), RowChoice(cluster=1, warps=4, rows=4, ctas_per_sm=1, keep="shared"))
    assert all(map(near, (out, *sums), wanted(x, weight, grad)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("choice", CHOICES[1:3], ids=repr)
def test_numbers_of_channels(choice: RowChoice, dtype: torch.dtype) -> None:
    b, g, c, p = 3, 2, 4, 40
    x, weight, bias = numbers(b, g, c, p, dtype=dtype), numbers(g, c, seed=1), numbers(g, c, seed=2)
    out = torch.empty_like(x)
    run(normed, (x, weight, bias, out), choice)
    given = x.double().view(b, g * c, p)
    want = torch.nn.functional.group_norm(given, g, weight.double().flatten(), bias.double().flatten(), EPS)
    assert near(out, want.view(b, g, c, p))


def test_the_cpu_gives_sums_of_channels() -> None:
    x, grad, weight = numbers(3, 4, 5, 56), numbers(3, 4, 5, 56, seed=1), numbers(4, 5, seed=2)
    out, sums = torch.empty_like(x), [torch.empty(3, 4, 5) for _ in range(2)]
    helion.kernel(gradient, backend="cute")(x, weight, grad, out, *sums)
    assert all(map(near, (out, *sums), wanted(x, weight, grad)))


@pytest.mark.parametrize("shape", [(5, 3, 3, 64), (21, 2, 3, 392)], ids=str)
def test_a_second_kernel_adds_up_numbers_of_channels(shape: tuple[int, ...]) -> None:
    """Of channels that a warp has, and of wide ones: each line has the channels of an image."""
    x, grad = numbers(*shape), numbers(*shape, seed=1)
    want = (grad.double() * (x.double() - x.double().mean((2, 3), keepdim=True))).sum((0, 3))
    for by_threads in (True, False):
        parts = [torch.full(shape[:3], torch.nan) for _ in range(2)]
        of_weight, of_bias = torch.empty(shape[1:3]), torch.empty(shape[1:3], dtype=torch.bfloat16)
        given = (x, grad, *parts, torch.empty_like(x), of_weight, of_bias)
        if by_threads:
            run(totals, given, RowChoice(cluster=1, warps=4, ctas_per_sm=1))
        else:
            helion.kernel(totals, backend="cute")(*given)
        assert near(of_weight, want)
        assert near(of_bias, grad.double().sum((0, 3)))


def others(x, weights, of_weight):
    images, groups, channels, _ = x.size()
    for tile_b, tile_g in hl.tile([images, groups]):
        weights[tile_b, tile_g, :] = x[tile_b, tile_g, :, :].to(torch.float32).sum(-1)
    hl.barrier()
    for tile_g in hl.tile(groups - 1):
        weight = hl.zeros([tile_g, channels], dtype=torch.float32)
        for tile_b in hl.tile(images):
            weight += weights[tile_b, tile_g, :].sum(0)
        of_weight[tile_g, :] = weight


def test_refusal_of_other_sums_of_channels() -> None:
    given = tensor(5, 3, 3, 64), tensor(5, 3, 3, dtype=torch.float32), tensor(3, 3, dtype=torch.float32)
    with pytest.raises(exc.CuteUnsupported, match="a loop that adds up sums over images does not cover weights"):
        helion.kernel(others, backend="cute").bind(given, target="h100")


def statistics(x, mean, total):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :, :].to(torch.float32)
        middle = row.mean((-2, -1))
        mean[tile] = middle
        total[tile, :] = (row * 2.0).sum(-1) * middle[:, None] + 1.0


def highest(x, scale, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :, :].to(torch.float32) / scale[:].to(torch.float32)[None, :, None]
        out[tile, :] = row.amax(-1).to(out.dtype)


@pytest.mark.parametrize("choice", CHOICES[1:], ids=repr)
def test_what_follows_from_reductions_of_channels(choice: RowChoice) -> None:
    """A kernel that stores no element, and one without a number of a row."""
    x, scale, out = numbers(7, 3, 320), numbers(3, seed=1), torch.empty(7, 3, dtype=torch.bfloat16)
    run(highest, (x, scale, out), choice)
    assert near(out, (x.double() / scale.double()[:, None]).amax(2))
    mean, total = torch.empty(7), torch.empty(7, 3)
    run(statistics, (x, mean, total), choice)
    assert near(mean, x.double().mean((1, 2)))
    assert near(total, 2 * x.double().sum(2) * x.double().mean((1, 2))[:, None] + 1)


def test_a_kernel_that_reduces_nothing_but_channels_of_a_warp() -> None:
    x, scale, out = numbers(7, 3, 64), numbers(3, seed=1), torch.empty(7, 3, dtype=torch.bfloat16)
    run(highest, (x, scale, out), CHOICES[1])
    assert near(out, (x.double() / scale.double()[:, None]).amax(2))


def test_sums_about_a_mean_next_to_reductions_of_groups() -> None:
    """The pass that reduces groups hands the difference from a thread's element on to what sums its square."""
    x, grad, weight = numbers(2, 2, 4, 64), numbers(2, 2, 4, 64, seed=1), numbers(2, 4, seed=2)
    sums = [torch.empty(2, 2, 4) for _ in range(2)]
    for choice in CHOICES[:2]:
        out = torch.empty_like(x)
        run(gradient, (x, weight, grad, out, *sums), choice)
        assert all(map(near, (out, *sums), wanted(x, weight, grad)))


@pytest.mark.parametrize("missing", [0, 1])
def test_barriers_of_channels_are_needed(missing: int) -> None:
    """Without the barrier before parts are added up, or the one before the next are stored, a schedule finds the fault."""
    x, scale, out = tensor(7, 3, 320), tensor(3), tensor(7, 3)
    _, plan = prepared(highest, (x, scale, out), RowChoice(cluster=1, warps=2, ctas_per_sm=1))
    program = r.row_program(plan)
    rows = program.roles[-1]
    *before, loop = rows.program
    barriers = [at for at, step in enumerate(loop.body) if step == BarrierSync("row")]
    body = tuple(step for at, step in enumerate(loop.body) if at != barriers[missing])
    changed = dataclasses.replace(rows, program=(*before, r.RowLoop(body)))
    broken = dataclasses.replace(program, roles=(*program.roles[:-1], changed))
    RowCluster(program, tiles=6, seed=0).run()
    with pytest.raises(Fault, match="parts of groups of tile"):
        for seed in range(8):
            RowCluster(broken, tiles=6, seed=seed).run()


def of_channels_again(x, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :, :].to(torch.float32)
        out[tile, :, :] = (row - row.amax(-1)[:, :, None]).to(out.dtype)


def of_pixels(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :, :].to(torch.float32).sum(1)


def of_weights_of_pixels(x, weight, out):
    for tile in hl.tile(x.size(0)):
        row = x[tile, :, :].to(torch.float32) * weight[:].to(torch.float32)[None, None, :]
        out[tile, :] = row.sum(-1)


@pytest.mark.parametrize(
    ("fn", "shapes", "reason"),
    [
        (of_channels_again, ((7, 3, 320), (7, 3, 320)), "reductions of groups of 320 columns are stored, and read by"),
        (of_pixels, ((7, 3, 320), (7, 320)), "sums, maxima and minima in fp32 of the columns of each group"),
        (of_pixels, ((7, 320, 320), (7, 320)), "sums, maxima and minima in fp32 of the columns of each group"),
        (of_weights_of_pixels, ((7, 3, 320), (320,), (7, 3)), "numbers of the columns of a group"),
        (of_weights_of_pixels, ((7, 320, 320), (320,), (7, 320)), "numbers of the columns of a group"),
        (highest, ((7, 3, 321), (3,), (7, 3)), "scale_1_group has a number for each 321 columns, no multiple of 8"),
    ],
)
def test_refusals_of_channels(fn: Any, shapes: tuple[tuple[int, ...], ...], reason: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(fn, backend="cute").bind(tuple(tensor(*shape) for shape in shapes), target="h100")


@pytest.mark.parametrize(
    ("shape", "backend"),
    [((64, 32, 16, 4096), "cute"), ((64, 32, 1024, 64), "cute"), ((64, 32, 8, 1024), "triton")],
    ids=["long", "of channels in a warp", "short"],
)
def test_auto_takes_long_rows_of_long_channels(shape: tuple[int, ...], backend: str) -> None:
    x, out, weight, bias = tensor(*shape), tensor(*shape), tensor(*shape[1:3]), tensor(*shape[1:3])
    sums = [tensor(*shape[:3], dtype=torch.float32) for _ in range(2)]
    assert helion.kernel(normed, backend="auto").bind((x, weight, bias, out), target="h200").backend == backend
    given = x, weight, tensor(*shape), out, *sums
    assert helion.kernel(gradient, backend="auto").bind(given, target="h200").backend == backend
    given = x, tensor(*shape), *sums, out, tensor(*shape[1:3], dtype=torch.float32), tensor(*shape[1:3])
    assert helion.kernel(totals, backend="auto").bind(given, target="h200").backend == backend
