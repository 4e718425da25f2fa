"""Tensors of which only the run knows which one they are."""

import pytest
import torch

import helion
import helion.language as hl
from helion import exc

LOG: list[object] = []


def by_sum(x):
    if x.sum() > 3:
        y = x.t() * 2
        w = torch.zeros(y.shape)
    elif x.sum() > 1:
        y = x.double()
        w = torch.full(y.shape, 2.0)
    else:
        y = x[:, ::2]
        w = torch.ones(y.shape)
    out = torch.zeros(y.shape)
    for a, b in hl.tile(y.shape):
        out[a, b] = (y[a, b] + w[a, b]).to(torch.float32)
    return out, y


def _expected(x):
    y = x.t() * 2 if x.sum() > 3 else x.double() if x.sum() > 1 else x[:, ::2]
    return y.float() + (0 if x.sum() > 3 else 2 if x.sum() > 1 else 1), y


@pytest.mark.parametrize("static", [True, False])
def test_data_decide_which_tensor_it_is(static):
    kernel = helion.kernel(by_sum, static_shapes=static)
    for rows, columns in ((2, 4), (4, 4), (3, 4)):
        for value in (9.0, 0.2, 0.01, 9.0):  # the arguments are gone when another variant is compiled
            for x in (torch.full((rows, columns), value), torch.full((columns, rows), value).t()):
                found, expected = kernel(x.clone()), _expected(x)
                torch.testing.assert_close(found[0], expected[0])
                torch.testing.assert_close(found[1], expected[1])
                assert found[1].stride() == expected[1].stride()


def test_it_is_in_the_memory_of_each():
    @helion.kernel
    def kernel(x, y):
        z = x if x.sum() > 3 else y
        out = torch.zeros_like(x)
        for t in hl.tile(x.size(0)):
            z[t] = z[t] + 1
            out[t] = x[t] + y[t] * 10
        LOG.append((z is x, z is y))
        return out, z

    LOG.clear()
    for x, y in (
        (torch.full((3,), 9.0), torch.ones(3)),
        (torch.full((3,), 0.1), torch.ones(3)),
        (torch.full((3,), 0.1), torch.ones(6)[::2]),
    ):
        plain = (x.clone(), y.clone())
        first = bool(x.sum() > 3)
        found = kernel(x, y)
        plain[0 if first else 1].add_(1)
        torch.testing.assert_close(found[0], plain[0] + plain[1] * 10)
        assert found[1] is (x if first else y)
        assert LOG.pop() == (first, not first)


def test_errors_decide_which_tensor_it_is():
    @helion.kernel
    def kernel(x, y, n: int):
        try:
            v = x.view(-1, n)
        except RuntimeError:
            v = y
        out = torch.zeros(v.shape)
        for a, b in hl.tile(v.shape):
            out[a, b] = v[a, b] + 1
        return out

    x, y = torch.randn(2, 4), torch.randn(3, 3)
    torch.testing.assert_close(kernel(x, y, 2), x.view(-1, 2) + 1)
    torch.testing.assert_close(kernel(x.t(), y, 4), y + 1)
    torch.testing.assert_close(kernel(x.t(), y, 4), y + 1)


def test_a_host_loop_chooses_anew():
    @helion.kernel
    def kernel(x, y, n: int):
        z = y * 1
        for _ in range(n):
            z = z + x if z.sum() > 3 else z * 2
            for t in hl.tile(x.size(0)):
                x[t] = x[t] + z[t]
        return z

    for n in (1, 3):
        x, y = torch.ones(5) * 0.1, torch.ones(5) * 0.2
        expected, z = x.clone(), y * 1
        for _ in range(n):
            z = z + expected if z.sum() > 3 else z * 2
            expected = expected + z
        torch.testing.assert_close(kernel(x, y, n), z)
        torch.testing.assert_close(x, expected)


def test_sizes_of_one_of_several_do_not_change_in_place():
    @helion.kernel
    def kernel(x, y):
        z = x if x.sum() > 3 else y
        z.t_()
        out = torch.zeros(z.shape)
        for a, b in hl.tile(z.shape):
            out[a, b] = z[a, b]
        return out

    with pytest.raises(exc.TypeInferenceError, match="one of several tensors"):
        kernel(torch.ones(3, 4), torch.ones(2, 4))
