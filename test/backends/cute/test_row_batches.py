"""Row kernels whose grid has several dimensions of rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from backends.cute.test_row_buckets import bound
from backends.cute.test_row_kernels import EPS, close, numbers, prepared, run
from harness import tensor

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.plan.rowwise import records
from helion.backends.cute.plan.rowwise.choice import RowChoice

X = tensor(3, 5, 96, dtype=torch.bfloat16)


def rms_norm(x, w, out, scale):
    for tile_b, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_b, tile_m, :].to(torch.float32)
        r = torch.rsqrt((row * row).mean(-1) + EPS)
        scale[tile_b, tile_m] = r
        out[tile_b, tile_m, :] = (row * r[:, :, None] * w[:].to(torch.float32)).to(out.dtype)


def scaled_softmax(x, temperature, out):
    for tile_a, tile_b, tile_m in hl.tile([x.size(0), x.size(1), x.size(2)]):
        row = x[tile_a, tile_b, tile_m, :].to(torch.float32) * temperature[tile_a, tile_b, tile_m][:, :, :, None]
        out[tile_a, tile_b, tile_m, :] = torch.softmax(row, -1).to(out.dtype)


def sums_in_loops(x, out):
    for tile_b, tile_m in hl.tile([x.size(0), x.size(1)]):
        acc = hl.zeros([tile_b, tile_m], dtype=torch.float32)
        for tile_n in hl.tile(x.size(2)):
            acc += x[tile_b, tile_m, tile_n].to(torch.float32).sum(-1)
        out[tile_b, tile_m] = acc


def instance_norm(x, weight, bias, out):
    for tile_b, tile_c in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_b, tile_c, :].to(torch.float32)
        centred = row - row.mean(-1, keepdim=True)
        scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + EPS)
        gain, shift = weight[tile_c].to(torch.float32), bias[tile_b].to(torch.float32)
        out[tile_b, tile_c, :] = (centred * scale * gain[None, :, None] + shift[:, None, None]).to(out.dtype)


def biased_softmax(x, slope, out):
    for tile_a, tile_h, tile_m in hl.tile([x.size(0), x.size(1), x.size(2)]):
        place = hl.arange(x.size(3)).to(torch.float32)[None, None, None, :]
        row = x[tile_a, tile_h, tile_m, :].to(torch.float32) + place * slope[tile_h][None, :, None, None]
        out[tile_a, tile_h, tile_m, :] = torch.softmax(row, -1).to(out.dtype)


def stored_once(x, weight, out, twice):
    for tile_b, tile_c in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_b, tile_c, :].to(torch.float32)
        gain = weight[tile_c].to(torch.float32)
        twice[tile_c] = gain * 2.0
        out[tile_b, tile_c, :] = (row - row.mean(-1, keepdim=True) * gain[None, :, None]).to(out.dtype)


def test_a_vector_over_one_dimension_of_the_grid_is_not_stored() -> None:
    arguments = X, tensor(5), X, tensor(5)
    with pytest.raises(exc.CuteUnsupported, match="twice has some of the grid's dimensions"):
        helion.kernel(stored_once, backend="cute").bind(arguments, target="h100").to_cute_code()


@pytest.mark.parametrize("n", [96, 1003])
def test_vectors_over_one_dimension_of_the_grid(n: int) -> None:
    """Their elements repeat from row to row, of the last dimension or of an earlier one."""
    x, weight, bias = numbers(3, 5, n), numbers(5, seed=1), numbers(3, seed=2, dtype=torch.float32)
    want = torch.nn.functional.layer_norm(x.double(), (n,), eps=EPS) * weight.double()[:, None]
    want = want + bias.double()[:, None, None]
    out = torch.full_like(x, 7.0)
    run(instance_norm, (x, weight, bias, out), RowChoice(warps=2, rows=4, ctas_per_sm=1))
    assert close(out, want)
    out.fill_(7.0)
    helion.kernel(instance_norm, backend="cute")(x, weight, bias, out)
    assert close(out, want)


def test_vectors_over_dimensions_that_a_launch_gives() -> None:
    """One kernel is for batches and channels of any number."""
    kernel, bounds, launch = helion.kernel(instance_norm, backend="cute", static_shapes=False), set(), None
    for m, channels, n in ((3, 5, 1000), (2, 7, 1008), (0, 4, 1000), (4, 1, 1000)):
        x, weight, bias = numbers(m, channels, n), numbers(channels, seed=1), numbers(m, seed=2, dtype=torch.float32)
        out = torch.full_like(x, 7.0)
        given = x, weight, bias, out
        program = kernel.bind(given, target="h100").variant.analysis.program
        launch = launch or bound(instance_norm, given, RowChoice(warps=2, rows=4, ctas_per_sm=1), program=program)
        want = torch.nn.functional.layer_norm(x.double(), (n,), eps=EPS) * weight.double()[:, None]
        want = want + bias.double()[:, None, None]
        kernel(*given)
        assert close(out, want)
        if m * channels:
            out.fill_(7.0)
            launch(*given)
            assert close(out, want)
        bounds.add(id(kernel.bind(given)))
    assert len(bounds) == 1


def masked_softmax(x, mask, out):
    for tile_b, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_b, tile_m, :].to(torch.float32) + mask[tile_b, :].to(torch.float32)[:, None, :]
        out[tile_b, tile_m, :] = torch.softmax(row, -1).to(out.dtype)


def shared_mask(x, mask, out):
    for tile_h, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = torch.where(mask[tile_m, :][None, :, :], -1e4, x[tile_h, tile_m, :].to(torch.float32))
        out[tile_h, tile_m, :] = torch.softmax(row, -1).to(out.dtype)


@pytest.mark.parametrize("choice", [RowChoice(warps=2), RowChoice(warps=4, keep="shared", overlap=True)], ids=str)
def test_rows_that_share_a_mask_follow_each_other(choice: RowChoice, monkeypatch: pytest.MonkeyPatch) -> None:
    x, mask = numbers(3, 5, 1008), torch.rand(5, 1008, generator=torch.Generator().manual_seed(1)) < 0.3
    out, want = torch.full_like(x, 7.0), torch.softmax(torch.where(mask, -1e4, x.double()), -1)
    assert not prepared(shared_mask, (x, mask, out), choice)[1].turned
    monkeypatch.setattr(records, "LEAST_TURNED_BYTES", 1)
    assert prepared(shared_mask, (x, mask, out), choice)[1].turned == 5
    run(shared_mask, (x, mask, out), choice)
    assert close(out, want)


def test_rows_that_repeat_for_as_many_rows_as_a_launch_gives() -> None:
    kernel, launch = helion.kernel(masked_softmax, backend="cute", static_shapes=False), None
    for m, rows in ((3, 5), (2, 7)):
        x, mask = numbers(m, rows, 1000), numbers(m, 1000, seed=1)
        given = x, mask, torch.full_like(x, 7.0)
        program = kernel.bind(given, target="h100").variant.analysis.program
        launch = launch or bound(masked_softmax, given, RowChoice(warps=2), program=program)
        for call in (kernel, launch):
            given[-1].fill_(7.0)
            call(*given)
            assert close(given[-1], torch.softmax(x.double() + mask.double()[:, None], -1))


def test_slopes_of_heads() -> None:
    x, slope = numbers(2, 3, 4, 257), torch.rand(3) * 0.1
    out = torch.full_like(x, 7.0)
    wide = x.double() + torch.arange(257) * slope.double()[:, None, None]
    run(biased_softmax, (x, slope, out), RowChoice(warps=2))
    assert close(out, torch.softmax(wide, -1))
    out.fill_(7.0)
    helion.kernel(biased_softmax, backend="cute")(x, slope, out)
    assert close(out, torch.softmax(wide, -1))


@pytest.mark.parametrize("n", [96, 1003])
def test_grids_over_batches(n: int) -> None:
    x, w = numbers(3, 5, n), numbers(n, seed=1)
    out, scale = torch.full_like(x, 7.0), torch.full((3, 5), 7.0)
    kernel = helion.kernel(rms_norm, backend="cute")
    kernel(x, w, out, scale)
    wide = x.double()
    r = torch.rsqrt(wide.square().mean(-1) + EPS)
    assert close(scale, r)
    assert close(out, wide * r[..., None] * w.double())
    assert "15 rows" in str(kernel.bind((x, w, out, scale), target="h100").plan())


def test_three_dimensions_and_loops() -> None:
    x, temperature = numbers(2, 3, 4, 257), torch.rand(2, 3, 4) + 0.5
    out = torch.full_like(x, 7.0)
    helion.kernel(scaled_softmax, backend="cute")(x, temperature, out)
    assert close(out, torch.softmax(x.double() * temperature.double()[..., None], -1))
    sums = torch.full((6, 4), 7.0)
    helion.kernel(sums_in_loops, backend="cute")(x.view(6, 4, 257), sums)
    assert close(sums, x.double().sum(-1).view(6, 4))


def test_rows_with_gaps_between_them() -> None:
    """One stride leads from each row of a part of a tensor to the next."""
    whole, w = numbers(3, 5, 128), numbers(96, seed=1)
    x, out, scale = whole[:, :, :96], torch.full((3, 5, 96), 7.0, dtype=torch.bfloat16), torch.full((3, 5), 7.0)
    helion.kernel(rms_norm, backend="cute")(x, w, out, scale)
    assert close(scale, torch.rsqrt(x.double().square().mean(-1) + EPS))


def test_auto_takes_long_rows_of_batches() -> None:
    x, out = (tensor(4, 512, 131072, dtype=torch.bfloat16) for _ in range(2))
    arguments = (x, tensor(131072, dtype=torch.bfloat16), out, tensor(4, 512))
    assert helion.kernel(rms_norm, backend="auto").bind(arguments, target="h100").backend == "cute"


def of_turned_batches(x, bias, out):
    for tile_b, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_b, tile_m, :].to(torch.float32)
        out[tile_b, tile_m] = row.sum(-1) + bias[tile_m, tile_b].permute(1, 0)


def relative_positions(x, out):
    for tile_b, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_b, tile_m, :].to(torch.float32)
        out[tile_b, tile_m] = row.sum(-1) * tile_m.begin


def causal_softmax(x, slope, out):
    for tile_b, tile_h, tile_m in hl.tile([x.size(0), x.size(1), x.size(2)]):
        place = hl.arange(x.size(3))[None, None, None, :]
        row = x[tile_b, tile_h, tile_m, :].to(torch.float32) + slope[tile_h][None, :, None, None]
        row = row * (1.0 + tile_b.index.to(torch.float32))[:, None, None, None]
        row = torch.where(place <= tile_m.index[None, None, :, None], row, float("-inf"))
        out[tile_b, tile_h, tile_m, :] = torch.softmax(row, -1).to(out.dtype)


@pytest.mark.parametrize("choice", [RowChoice(warps=2), RowChoice(warps=1, rows=4)], ids=str)
def test_indices_of_dimensions_of_the_grid(choice: RowChoice) -> None:
    x, slope = numbers(2, 3, 64, 64), torch.rand(3)
    wide = (x.double() + slope.double()[:, None, None]) * torch.tensor([1.0, 2.0]).double()[:, None, None, None]
    want = torch.softmax(wide.masked_fill(torch.ones(64, 64, dtype=torch.bool).triu(1), float("-inf")), -1)
    kernel = helion.kernel(causal_softmax, backend="cute")
    for launch in (lambda *given: run(causal_softmax, given, choice), kernel):
        out = torch.full_like(x, 7.0)
        launch(x, slope, out)
        assert close(out, want)


def over_rows(x, out):
    for tile_b, tile_m in hl.tile([x.size(0), x.size(1)]):
        row = x[tile_b, tile_m, :].to(torch.float32)
        out[tile_b, tile_m, :] = (row - row.sum(1, keepdim=True)).to(out.dtype)


@pytest.mark.parametrize(
    ("fn", "arguments", "reason"),
    [
        (of_turned_batches, (X, tensor(5, 3), tensor(3, 5)), "in another order"),
        (relative_positions, (X, tensor(3, 5)), "the begin of a tile in a grid over several dimensions"),
        (over_rows, (X, X), "some of the grid's dimensions|reductions of whole rows"),
        (sums_in_loops, (X.transpose(0, 1), tensor(5, 3)), "no stride leads from each row of x"),
        (sums_in_loops, (tensor(3, 8, 96)[:, :5], tensor(3, 5)), "no stride leads from each row of x"),
    ],
)
def test_grids_that_are_refused(fn: Any, arguments: Any, reason: str) -> None:
    with pytest.raises(exc.CuteUnsupported, match=reason):
        helion.kernel(fn, backend="cute").bind(arguments, target="h100")


def batched(x):
    out = torch.empty_like(x)
    for tile_b, tile_m in hl.tile([x.size(0), x.size(1)]):
        out[tile_b, tile_m, :] = torch.softmax(x[tile_b, tile_m, :].to(torch.float32), -1).to(out.dtype)
    return out


def merged(x):
    n = hl.specialize(x.size(-1))
    rows = x.reshape(-1, n)
    out = torch.empty_like(rows)
    for tile in hl.tile(rows.size(0)):
        out[tile, :] = torch.softmax(rows[tile, :].to(torch.float32), -1).to(out.dtype)
    return out.view(x.shape)


@pytest.mark.parametrize("fn", [batched, merged])
def test_batches_of_any_size(fn: Any) -> None:
    """One kernel is for all row-major batches of a bucket, with a batch of one too."""
    kernel, bound = helion.kernel(fn, backend="cute", static_shapes=False), set()
    for shape in ((3, 5, 1000), (2, 9, 1000), (1, 4, 1000), (0, 5, 1000)):
        x = numbers(*shape)
        assert close(kernel(x), torch.softmax(x.double(), -1))
        bound.add(id(kernel.bind((x,))))
    assert len(bound) == 1
    assert kernel(numbers(3, 0, 1000)).shape == (3, 0, 1000)


def gaps(*shape: int) -> torch.Tensor:
    """Return a tensor whose rows have gaps between them."""
    return numbers(*shape[:-1], shape[-1] + 8)[..., : shape[-1]]


OTHERS = (
    gaps(3, 5, 1000),
    numbers(5, 3, 1000).transpose(0, 1),
    numbers(1, 5, 1000).as_strided((1, 5, 1000), (9999, 1000, 1)),
)


@pytest.mark.parametrize("x", OTHERS, ids=["gaps", "turned", "batch of one"])
def test_batches_that_are_not_row_major_have_other_code(x: torch.Tensor) -> None:
    kernel, x_rows = helion.kernel(batched, backend="cute", static_shapes=False), numbers(3, 5, 1000)
    with pytest.raises(exc.BoundToOtherArguments, match="row-major"):
        kernel.bind((x_rows,))(x)
    with pytest.raises(exc.CuteUnsupported, match="no stride leads from each row"):
        kernel(x)
    with helion.runtime.stub_driver() as stub:  # written calls have the condition too
        for given in (x_rows, x_rows, numbers(2, 7, 1000), numbers(1, 5, 1000), numbers(1, 5, 1000)):
            kernel(given)
        assert len(stub.launches) == 5
        with pytest.raises(exc.CuteUnsupported, match="no stride leads from each row"):
            kernel(x)
