"""Methods, objects that are called and partial functions that change between the calls of a kernel."""

import dataclasses
import functools
import types

import pytest
import torch

import helion
import helion.language as hl


class Scale:
    factor = 2.0

    def of(self, v):
        return v * self.factor

    def __call__(self, v):
        return v + self.factor

    @classmethod
    def whole(cls, v):
        return v * cls.factor

    @property
    def next(self):
        return self.factor + 1

    @functools.cached_property
    def noted(self):
        CALLS.append("noted")
        return 1.0


class Shift(torch.nn.Module):
    def forward(self, v):
        return v + 3


@dataclasses.dataclass
class Window:
    size: int

    def area(self):
        return self.size * 2


def affine(v, a, *, b=1.0):
    return v * a + b


SCALE, SHIFT, PARTIAL = Scale(), Shift(), functools.partial(affine, a=2.0)
CALLS: list[str] = []


@helion.kernel
def method(x):
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = SCALE.of(x[t])
    return out


@helion.kernel
def called(x):
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = SCALE(x[t]) + SCALE.next
    return out


@helion.kernel
def of_class(x):
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = SCALE.whole(x[t])
    return out


@helion.kernel
def module(x):
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = SHIFT(x[t])
    return out


@helion.kernel
def partial(x):
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = PARTIAL(x[t])
    return out


@helion.kernel
def of_argument(x, window):
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = x[t] + window.area()
    return out


@helion.kernel
def noting(x):
    CALLS.append("begin")
    noted = SCALE.noted
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = x[t] * 2
    return out, noted


X = torch.arange(5.0)
NEW = {
    "of": lambda self, v: v * 100,
    "__call__": lambda self, v: v - self.factor,
    "next": property(lambda self: 50.0),
    "whole": classmethod(lambda cls, v: v - cls.factor),
}


@pytest.mark.parametrize(
    ("kernel", "name", "eager"),
    [
        (method, "of", lambda x: SCALE.of(x)),
        (called, "__call__", lambda x: SCALE(x) + SCALE.next),
        (called, "next", lambda x: SCALE(x) + SCALE.next),
        (of_class, "whole", lambda x: SCALE.whole(x)),
    ],
)
def test_a_method_of_a_class_is_replaced(monkeypatch, kernel, name, eager):
    torch.testing.assert_close(kernel(X), eager(X))
    before = eager(X)
    monkeypatch.setattr(Scale, name, NEW[name])
    assert not torch.equal(eager(X), before)
    torch.testing.assert_close(kernel(X), eager(X))


def test_an_object_has_a_method_of_its_own(monkeypatch):
    torch.testing.assert_close(method(X), X * 2)
    monkeypatch.setattr(SCALE, "of", lambda v: v * 7, raising=True)
    torch.testing.assert_close(method(X), X * 7)
    monkeypatch.undo()
    torch.testing.assert_close(method(X), X * 2)


def test_class_methods_do_not_bind_anew():
    of_class(X)
    count = len(of_class.variants) if hasattr(of_class, "variants") else None
    bound = of_class.bind((X,))
    assert of_class.bind((X,)) is bound
    assert count is None or len(of_class.variants) == count


def test_a_module_has_another_forward(monkeypatch):
    torch.testing.assert_close(module(X), X + 3)
    monkeypatch.setattr(Shift, "forward", lambda self, v: v * 11)
    torch.testing.assert_close(module(X), X * 11)
    monkeypatch.setattr(SHIFT, "forward", lambda v: v * 13)
    torch.testing.assert_close(module(X), X * 13)


def test_keywords_of_a_partial_function_change(monkeypatch):
    torch.testing.assert_close(partial(X), X * 2 + 1)
    monkeypatch.setitem(PARTIAL.keywords, "a", 9.0)
    torch.testing.assert_close(partial(X), X * 9 + 1)
    monkeypatch.setitem(PARTIAL.keywords, "b", 5.0)
    torch.testing.assert_close(partial(X), X * 9 + 5)


def test_the_class_of_an_argument_changes(monkeypatch):
    torch.testing.assert_close(of_argument(X, Window(3)), X + 6)
    monkeypatch.setattr(Window, "area", lambda self: self.size * 100)
    torch.testing.assert_close(of_argument(X, Window(3)), X + 300)


def test_attributes_that_run_code_are_read_at_run_time():
    CALLS.clear()
    noting.bind((X,))
    assert CALLS == []
    assert noting(X)[1] == 1.0
    assert CALLS == ["begin", "noted"]


def wrapped(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        CALLS.append(f"{len(args)} {sorted(kwargs)}")
        return function(*args, **kwargs)

    return inner


@wrapped
def halved(v, by=2.0):
    return v / by


@helion.kernel
def through_wrapper(x):
    half, fifth = halved(x), halved(x, by=5.0)
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = half[t] + fifth[t]
    return out


def test_wrapped_functions_are_followed_with_the_parameters_of_the_wrapper():
    CALLS.clear()
    torch.testing.assert_close(through_wrapper(X), X / 2 + X / 5)
    assert CALLS == ["1 []", "1 ['by']"]


class Amount:
    value = 2

    def __float__(self):
        return float(self.value)

    def __int__(self):
        return self.value

    def __len__(self):
        return self.value

    def __mul__(self, other):
        return other * self.value

    def __getitem__(self, index):
        return self.value + index


AMOUNT = Amount()


def converted(x):
    number = float(AMOUNT)
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = x[t] * number
    return out


def converted_on_device(x):
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = x[t] * int(AMOUNT)
    return out


def length_on_device(x):
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = x[t] * len(AMOUNT)
    return out


@pytest.mark.parametrize("function", [converted, converted_on_device, length_on_device])
def test_builtins_ask_the_methods_of_objects(monkeypatch, function):
    kernel = helion.kernel(function)
    torch.testing.assert_close(kernel(X), X * 2)
    monkeypatch.setattr(AMOUNT, "value", 3)
    torch.testing.assert_close(kernel(X), X * 3)


@helion.kernel
def operators(x):
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = AMOUNT * x[t] + AMOUNT[1]
    return out


def test_operators_of_a_class_are_replaced(monkeypatch):
    torch.testing.assert_close(operators(X), X * 2 + 3)
    monkeypatch.setattr(Amount, "__mul__", lambda self, other: other * 100)
    torch.testing.assert_close(operators(X), X * 100 + 3)
    monkeypatch.setattr(Amount, "__getitem__", lambda self, index: 7)
    torch.testing.assert_close(operators(X), X * 100 + 7)


BACKEND = types.ModuleType("first_backend")
BACKEND.scale = 2.0


@helion.kernel
def by_module(x):
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = x[t] * BACKEND.scale
    return out


def test_another_module_under_a_name(monkeypatch):
    torch.testing.assert_close(by_module(X), X * 2)
    other = types.ModuleType("second_backend")
    other.scale = 5.0
    monkeypatch.setitem(globals(), "BACKEND", other)
    torch.testing.assert_close(by_module(X), X * 5)
