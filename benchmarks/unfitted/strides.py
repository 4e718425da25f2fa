"""Products of views: every other column, slices of larger parameters, crops, chosen rows, and odd sizes."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import helion
import helion.language as hl

from .cell import BF16, FP16, FP32, Arguments, Cells, high, normal

CELLS = Cells()


@helion.kernel
def every_other_feature(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return `tanh(x w + bias)`, where the caller gives every other column of a wider tensor as `x[M, K]`."""
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = torch.addmm(acc, x[rows, inner], w[inner, cols])
        out[rows, cols] = torch.tanh(acc + bias[cols].to(torch.float32)[None, :]).to(x.dtype)
    return out


def make_every_other_feature(device: str, small: bool) -> Arguments:
    m, k, n = (13, 40, 24) if small else (8192, 1024, 1024)
    x = normal(device, m, 2 * k, dtype=BF16)[:, 1::2]
    return x, normal(device, k, n, dtype=BF16, scale=k**-0.5), normal(device, n, dtype=BF16)


CELLS.add(every_other_feature, make_every_other_feature, lambda x, w, bias: torch.tanh(torch.addmm(bias, x, w)))


@helion.kernel
def both_transposed(a: torch.Tensor, b: torch.Tensor, alpha: float) -> torch.Tensor:
    """Return `alpha a[K, M].T b[N, K].T` in fp32 with sizes that are no multiple of anything."""
    k, m = a.size()
    n = b.size(0)
    out = torch.empty([m, n], dtype=a.dtype, device=a.device)
    for rows, cols in hl.tile([m, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(a[inner, rows].T, b[cols, inner].T, acc=acc)
        out[rows, cols] = acc * alpha
    return out


def make_both_transposed(device: str, small: bool) -> Arguments:
    k, m, n = (37, 13, 21) if small else (1003, 3001, 2005)
    return normal(device, k, m, dtype=FP32), normal(device, n, k, dtype=FP32), 0.125


CELLS.add(both_transposed, make_both_transposed, lambda a, b, alpha: alpha * (a.T @ b.T))


@helion.kernel
def middle_projection(x: torch.Tensor, w: torch.Tensor, joined: torch.Tensor, first: int) -> torch.Tensor:
    """Write `relu(x w[N, K].T)` to the columns of `joined[T, C]` from `first` on, as blocks that concatenate do."""
    t, k = x.size()
    n = w.size(0)
    for rows, cols in hl.tile([t, n]):
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], w[cols, inner].T, acc=acc)
        joined[rows, cols.index + first] = torch.relu(acc).to(joined.dtype)
    return joined


def middle_projection_torch(x: torch.Tensor, w: torch.Tensor, joined: torch.Tensor, first: int) -> torch.Tensor:
    joined[:, first : first + w.size(0)] = torch.relu(x @ w.T)
    return joined


def make_middle_projection(device: str, small: bool) -> Arguments:
    t, k, n, c, first = (13, 40, 24, 61, 9) if small else (20000, 640, 384, 1032, 300)
    w = normal(device, 3 * n, k, dtype=FP16, scale=k**-0.5)[n : 2 * n]
    return normal(device, t, k, dtype=FP16), w, torch.zeros([t, c], dtype=FP16, device=device), first


CELLS.add(middle_projection, make_middle_projection, middle_projection_torch)


@helion.kernel
def chosen_tokens_transform(
    x: torch.Tensor, positions: torch.Tensor, w: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Return `gelu(x[positions] w[N, K].T + bias)` of the masked tokens of a language model, `positions[M]`."""
    m, k = positions.size(0), x.size(1)
    n = w.size(0)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([m, n]):
        places = positions[rows]
        acc = hl.zeros([rows, cols], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[places, inner], w[cols, inner].T, acc=acc)
        y = acc + bias[cols].to(torch.float32)[None, :]
        out[rows, cols] = F.gelu(y, approximate="tanh").to(out.dtype)
    return out


def chosen_tokens_transform_torch(
    x: torch.Tensor, positions: torch.Tensor, w: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    return F.gelu(F.linear(x[positions], w, bias), approximate="tanh")


def make_chosen_tokens_transform(device: str, small: bool) -> Arguments:
    t, m, k, n = (37, 13, 40, 24) if small else (65536, 9830, 1024, 1024)
    positions = torch.randperm(t, device=device)[:m].sort().values
    w, bias = normal(device, n, k, dtype=BF16, scale=k**-0.5), normal(device, n, dtype=BF16)
    return normal(device, t, k, dtype=BF16), positions, w, bias


CELLS.add(chosen_tokens_transform, make_chosen_tokens_transform, chosen_tokens_transform_torch)


@helion.kernel
def dense_mixture(x: torch.Tensor, w: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """Return `sum_e gates[T, e] relu(x w[e])` for weights `[E, K, N]`: a mixture that uses all of its few experts."""
    t, k = x.size()
    e, _, n = w.size()
    out = torch.empty([t, n], dtype=x.dtype, device=x.device)
    for rows, cols in hl.tile([t, n]):
        total = hl.zeros([rows, cols], dtype=torch.float32)
        for expert in hl.grid(e):
            acc = hl.zeros([rows, cols], dtype=torch.float32)
            for inner in hl.tile(k):
                acc = hl.dot(x[rows, inner], w[expert, inner, cols], acc=acc)
            total += torch.relu(acc) * gates[rows, expert][:, None]
        out[rows, cols] = total.to(out.dtype)
    return out


def dense_mixture_torch(x: torch.Tensor, w: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    y = torch.relu(torch.einsum("tk,ekn->etn", x, w))
    return (high(y) * gates.T[:, :, None]).sum(0).to(x.dtype)


def make_dense_mixture(device: str, small: bool) -> Arguments:
    t, k, n, e = (13, 40, 24, 3) if small else (16384, 512, 512, 4)
    gates = torch.softmax(normal(device, t, e), -1)
    return normal(device, t, k, dtype=BF16), normal(device, e, k, n, dtype=BF16, scale=k**-0.5), gates


CELLS.add(dense_mixture, make_dense_mixture, dense_mixture_torch)


@helion.kernel
def cropped_cosines(images: torch.Tensor, basis: torch.Tensor, top: int, left: int) -> torch.Tensor:
    """Return `basis crop basis.T` of a square crop of each image `[N, H, W]`: a transform of both directions."""
    count = images.size(0)
    d = hl.specialize(basis.size(0))
    out = torch.empty([count, d, d], dtype=images.dtype, device=images.device)
    for image in hl.grid(count):
        at = hl.arange(d)
        crop = images[image, top + at[:, None], left + at[None, :]]
        half = hl.dot(basis[:, :], crop).to(images.dtype)
        out[image, :, :] = hl.dot(half, basis[:, :].T).to(out.dtype)
    return out


def cropped_cosines_torch(images: torch.Tensor, basis: torch.Tensor, top: int, left: int) -> torch.Tensor:
    d = basis.size(0)
    return basis @ images[:, top : top + d, left : left + d] @ basis.T


def make_cropped_cosines(device: str, small: bool) -> Arguments:
    count, size, d = (3, 25, 16) if small else (12288, 75, 64)
    return normal(device, count, size, size, dtype=FP16), normal(device, d, d, dtype=FP16, scale=d**-0.5), 5, 3


CELLS.add(cropped_cosines, make_cropped_cosines, cropped_cosines_torch)
