"""Errors in host code around device loops: who catches them, and what runs behind."""

import pytest
import torch

import helion
import helion.language as hl
from helion import exc

LOG: list[str] = []


class Swallow:
    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        LOG.append("swallowed" if kind else "left")
        return kind is ValueError


class Note:
    def __enter__(self):
        LOG.append("in")

    def __exit__(self, *error):
        LOG.append("out")


def check(x):
    if x[0] > 2:
        raise ValueError("large")


def caught(x, n: int):
    out = torch.zeros_like(x)
    try:
        for t in hl.tile(x.size(0)):
            out[t] = x[t] + n
        if n == 3:
            raise KeyError("three")
    except KeyError:
        LOG.append("caught")
    for t in hl.tile(x.size(0)):
        x[t] = x[t] * 2
    return out, n


def returned_in_try(x, n: int):
    m = 1
    out = torch.zeros_like(x)
    try:
        for t in hl.tile(x.size(0)):
            out[t] = x[t] + n
        m = 2
        check(x)
        m = 3
        return out, 5
    except ValueError:
        LOG.append("caught")
    for t in hl.tile(x.size(0)):
        x[t] = x[t] * 2
    return out, m


def all_clauses(x, n: int):
    out = torch.zeros_like(x)
    try:
        for t in hl.tile(x.size(0)):
            out[t] = x[t] + n
    except ValueError:
        LOG.append("caught")
    else:
        LOG.append("else")
        if n == 1:
            return out, 1
        for t in hl.tile(x.size(0)):
            out[t] = out[t] * 2
    finally:
        LOG.append("finally")
        for t in hl.tile(x.size(0)):
            x[t] = x[t] * 2
    return out, 2


def loops_behind_a_return(x, n: int):
    out = torch.zeros_like(x)
    try:
        for t in hl.tile(x.size(0)):
            out[t] = x[t] + n
        if n == 1:
            return out, 1
        if n == 3:
            raise KeyError("three")
    finally:
        with Note():
            for t in hl.tile(x.size(0)):
                x[t] = x[t] * 2
    return out, 2


def _run(function, x, n):
    LOG.clear()
    try:
        result = function(x, n)
    except KeyError as error:
        result = (torch.zeros(0), repr(error))
    return (*result, x, list(LOG))


def _eagerly(function, x, n):
    """The function on whole tensors: its tiles are slices."""

    class Whole:
        tile = staticmethod(lambda size: [slice(0, size)])

    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setitem(function.__globals__, "hl", Whole)
    try:
        return _run(function, x, n)
    finally:
        monkeypatch.undo()


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("function", [caught, returned_in_try, all_clauses, loops_behind_a_return])
def test_statements_behind_an_error_run(function, static):
    kernel = helion.kernel(function, static_shapes=static)
    for n in (1, 3, 2, 1):
        for first in (0.0, 3.0):
            x = torch.arange(4.0) + first
            found, expected = _run(kernel, x.clone(), n), _eagerly(function, x.clone(), n)
            torch.testing.assert_close(found[0], expected[0])
            torch.testing.assert_close(found[2], expected[2])
            assert (found[1], found[3]) == (expected[1], expected[3])


def test_numbers_that_an_error_decides_are_refused():
    @helion.kernel
    def kernel(x, n: int):
        m = 1
        out = torch.zeros_like(x)
        try:
            for t in hl.tile(x.size(0)):
                out[t] = x[t] + n
            m = 2
            check(x)
            m = 3
        except ValueError:
            pass
        for t in hl.tile(x.size(0)):
            out[t] = out[t] * m
        return out

    with pytest.raises(exc.KnownAtRunTime, match="`m`.*an except clause"):
        kernel(torch.arange(4.0), 1)


def test_managers_that_keep_errors():
    @helion.kernel
    def around_numbers(x):
        m = 1
        with Swallow():
            m = 2
            check(x)
            m = 3
        out = torch.zeros_like(x)
        for t in hl.tile(x.size(0)):
            out[t] = x[t] * 2
        return out, m

    for x, m in ((torch.arange(4.0), 3), (torch.arange(4.0) + 3, 2), (torch.arange(4.0), 3)):
        found = around_numbers(x)
        torch.testing.assert_close(found[0], x * 2)
        assert found[1] == m

    @helion.kernel
    def around_loops(x):
        out = torch.zeros_like(x)
        with Swallow():
            for t in hl.tile(x.size(0)):
                out[t] = x[t] * 2
        return out

    with pytest.raises(exc.StatementNotSupported, match="it may suppress errors"):
        around_loops(torch.arange(4.0))


def no_first_row(x, y):
    z = x[:0][0]
    out = torch.empty_like(z)
    for t in hl.tile(z.size(0)):
        out[t] = z[t]
    return out


def unequal_parts(x, y):
    z = torch.cat([x, y])
    out = torch.empty_like(z)
    for t in hl.tile(z.size()):
        out[t] = z[t]
    return out


def no_such_view(x, y):
    z = x.view(-1, 7)
    out = torch.empty_like(z)
    for t in hl.tile(z.size()):
        out[t] = z[t]
    return out


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_first_row, "__getitem__ was refused by torch: IndexError: index 0 is out of bounds"),
        (unequal_parts, "torch.cat was refused by torch: RuntimeError: Sizes of tensors must match"),
        (no_such_view, "torch.view was refused by torch: RuntimeError: shape .* is invalid for input of size 15"),
    ],
)
@pytest.mark.parametrize("checked", [False, True])
def test_what_torch_refuses_is_not_asked_for_as_a_number(function, said, checked):
    """A loop over its size shows torch's error at the call, not the remedies for values that host code computes."""
    with pytest.raises(exc.TorchOpTracingError, match=said) as info:
        helion.kernel(function, checked=checked)(torch.ones(5, 3), torch.ones(5, 4))
    assert info.value.location is not None and info.value.location.text.startswith("z = ")
