"""torch functions on device values against eager torch, a line each: whole rows of tiles, of sizes that are powers of two and
of others, in single and half precision."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl
from helion import exc

ROWS = 4
#: Of tiles ``a`` and ``b`` of 4 rows.
ANY_SIZE = """
torch.std_mean(a, 1)[0]
torch.linalg.norm(a, dim=1)
torch.linalg.vector_norm(a, dim=1, ord=1)
torch.nansum(torch.where(a > 0, a, float('nan')), 1)
torch.nanmean(torch.where(a > -9, a, float('nan')), 1)
torch.aminmax(a, dim=1).min
torch.aminmax(a, dim=1)[1]
torch.cummax(a, 1)[0]
torch.cummax(a.round(), 1).indices
torch.cummin(a, dim=1).values
torch.cummin(a.round(), 1)[1]
torch.logcumsumexp(a, 1)
torch.take_along_dim(a, b.argsort(1), 1)
torch.take_along_dim(a, b.argmax(1, keepdim=True), 1)
torch.index_select(a, 1, torch.arange(2))
torch.median(a, 1).values
torch.median(a, 1).indices
torch.median(torch.where(a > 1, float('nan'), a), 1)[0]
torch.heaviside(torch.where(a > 1, float('nan'), a), b)
torch.kthvalue(a, 2, 1).values
torch.diff(a, dim=1)
torch.tril(a)
torch.triu(a, 1)
torch.fliplr(a)
torch.hstack([a, b])
torch.vstack([a, b])
torch.split(a, [1, a.size(1) - 1], 1)[1]
torch.split(a, 2, dim=1)[0]
a.split(4, 1)[1]
torch.chunk(a, 2, -1)[1]
a.chunk(3, dim=1)[2]
torch.unbind(a, 1)[2]
torch.unbind(a)[3]
torch.tensor_split(a, 3, dim=1)[1]
torch.tensor_split(a, (1, 3), dim=1)[1]
torch.hsplit(a, [2])[1]
a @ b[0]
torch.mv(a, b[0])
a[0] @ b.T
torch.dot(a[0], b[0])
torch.matmul(a[0], b[0])
torch.inner(a, b)
torch.linalg.vecdot(a, b)
torch.addmv(a[:, 0], a, b[0], beta=2)
torch.addr(torch.outer(a[0], b[0]), a[0], b[0], alpha=3)
torch.cross(a[:, :3], b[:, :3], dim=1)
torch.trace(a[:3, :3])
torch.cdist(a, b)
torch.cdist(a, b, p=1)
torch.einsum('ij->i', a)
torch.einsum('ij', a)
torch.einsum('ji', a)
torch.einsum('ij,ij->i', a, b)
torch.einsum('ij,j->i', a, b[0])
torch.einsum('ij,kj->ki', a, b)
torch.einsum('i,j->ij', a[0], b[0])
torch.einsum('ij,ij,j->i', a, b, a[0])
F.cosine_similarity(a, b, dim=1)
F.pairwise_distance(a, b)
F.cross_entropy(a, b.argmin(1), reduction='none')
F.cross_entropy(a, b.argmin(1))
F.cross_entropy(a, b.argmin(1), weight=b[0].abs(), reduction='mean')
F.cross_entropy(a, b.argmin(1), ignore_index=2, reduction='mean')
F.cross_entropy(a, b.argmin(1), reduction='none', label_smoothing=0.1, ignore_index=1)
F.cross_entropy(a, b.softmax(1), reduction='none', label_smoothing=0.1)
F.cross_entropy(a[0], b[0].argmax(), reduction='none')
F.nll_loss(a.log_softmax(1), b.argmin(1), reduction='sum')
F.one_hot(a.argmax(1), a.size(1))
F.mse_loss(a, b)
F.kl_div(a.log_softmax(1), b.softmax(1), reduction='batchmean')
F.binary_cross_entropy(a.sigmoid(), b.sigmoid(), reduction='none')
F.binary_cross_entropy_with_logits(a, b.sigmoid(), pos_weight=b[0].abs(), reduction='none')
F.soft_margin_loss(a, b.sign(), reduction='none')
F.hinge_embedding_loss(a, b.sign(), reduction='none')
F.margin_ranking_loss(a, b, b.sign(), reduction='none')
F.poisson_nll_loss(a, b.abs(), reduction='none')
F.gaussian_nll_loss(a, b, b.abs() + 1, full=True, reduction='none')
F.softshrink(a)
F.hardshrink(a)
F.prelu(a, b[0, 0])
torch.sinc(a)
torch.ldexp(a, b.round())
torch.isclose(a, a + b.clamp(max=0))
torch.isposinf(a / (b.clamp(min=0)))
torch.isneginf(a)
torch.isreal(a)
torch.special.ndtr(a)
torch.special.entr(a)
torch.special.xlog1py(a, b.abs())
torch.dist(a, b)
torch.round(a, decimals=2)
1 << a.abs().int()
torch.linspace(-1, 3, 7)
torch.adjoint(a)
torch.ravel(a[0])
torch.atleast_2d(a)
a.permute(dims=(1, 0))
torch.flip(a, dims=(1,))
a.new_zeros(size=a.shape)
a.sum(axis=-1, keepdims=True)
torch.amax(a, axis=1)
torch.softmax(a, axis=1)
a.cumsum(axis=1)
a.argmax(axis=1, keepdims=True)
torch.max(a, axis=1).values
a.std(axis=1)
torch.all(a > -9, axis=1)
torch.logsumexp(a, axis=1)
""".strip().splitlines()
#: These take an even number of columns.
EVEN_SIZE = ["F.glu(a, dim=-1)", "torch.hsplit(a, 2)[0]", "a.split(a.size(1) // 2, 1)[1]", "a.T.unbind(1)[0]"]
#: What half precision gives other values for: integers, and what eager computes in half precision itself.
SINGLE_ONLY = ("isclose", "torch.diff", "ldexp", "cdist", "addr(")


def evaluated(expression: str, columns: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The expression of a kernel, and that of eager torch."""
    torch.manual_seed(1)
    a, b = torch.randn(ROWS, columns).to(dtype), torch.randn(ROWS, columns).to(dtype)
    a[0, 1] = 0.0
    want = torch.as_tensor(eval(expression, {"a": a, "b": b, "torch": torch, "F": F}))
    place = ", ".join([":"] * want.ndim) or "0"
    text = (
        f"def kernel(x, y, out):\n    for t in hl.tile({ROWS}, block_size={ROWS}):\n        a, b = x[t, :], y[t, :]\n"
        f"        out[{place}] = {expression}\n    return out\n"
    )
    name = f"<{expression}, {columns}, {dtype}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    names: dict[str, Any] = {"torch": torch, "hl": hl, "F": F, "__name__": "torch_functions"}
    exec(compile(text, name, "exec"), names)
    got = helion.kernel(names["kernel"])(a, b, torch.zeros(want.shape or (1,), dtype=want.dtype))
    return got.reshape(want.shape), want


@pytest.mark.parametrize("expression", ANY_SIZE)
def test_functions(expression: str) -> None:
    torch.testing.assert_close(*evaluated(expression, 7, torch.float32), equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("expression", EVEN_SIZE)
@pytest.mark.parametrize("columns", [6, 8])
def test_functions_of_even_sizes(expression: str, columns: int) -> None:
    torch.testing.assert_close(*evaluated(expression, columns, torch.float32), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("expression", [e for e in ANY_SIZE if not any(name in e for name in SINGLE_ONLY)])
def test_functions_in_half_precision(expression: str) -> None:
    torch.testing.assert_close(*evaluated(expression, 8, torch.bfloat16), equal_nan=True, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("expression", "error"),
    [
        ("torch.split(a, 2, 0)[0]", exc.UnsupportedSplitOperation),
        ("torch.unbind(a, 0)[0]", exc.UnsupportedSplitOperation),
        ("F.cross_entropy(a, b.argmin(1))", exc.UnsupportedTorchFunction),
        ("torch.cummax(a, 0)[0]", exc.UnsupportedTorchFunction),
        ("torch.einsum('...j->...', a)", exc.UnsupportedTorchFunction),
        ("torch.histc(a)", exc.UnsupportedTorchFunction),
        ("F.one_hot(a.argmax(1))", exc.UnsupportedTorchFunction),
        ("torch.triu(a)", exc.UnsupportedTorchFunction),
    ],
)
def test_refused_along_a_tile(expression: str, error: type[exc.Base]) -> None:
    text = f"def kernel(x, y):\n    for t in hl.tile(x.size(0)):\n        a, b = x[t, :], y[t, :]\n        y[t, :] = {expression}\n"
    name = f"<refused {expression}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    names: dict[str, Any] = {"torch": torch, "hl": hl, "F": F, "__name__": "torch_functions"}
    exec(compile(text, name, "exec"), names)
    with pytest.raises(error):
        helion.kernel(names["kernel"]).bind((torch.randn(9, 8), torch.randn(9, 8)))
