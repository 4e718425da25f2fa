"""Host code gives what Python gives: numbers, conditions, functions, effects and statements, called with values that change.

Every form is compiled once per kind of call and called several times, so that a value frozen at the first call shows.
"""

from __future__ import annotations

import functools
import importlib.util
import random
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.runtime.ref_mode import run_reference

CONFIG = helion.Config(block_sizes=[8])

PRELUDE = """
import collections, dataclasses, functools, itertools, math, numbers, operator, os, random, time, types
from typing import SupportsInt

import numpy as np
import torch

import helion
import helion.language as hl

LOG = []
TABLE = {"k3": 3.0, "k7": 7.0, 4: 40.0}
SET = {3, 4}
COUNTER = itertools.count(1)
TOTAL = 0


@dataclasses.dataclass
class Pair:
    a: int
    b: float


class Noted:
    def __enter__(self):
        LOG.append("enter")
        return self

    def __exit__(self, *error):
        LOG.append("exit")


class Scaled:
    def __init__(self, k):
        self.k = k
        self.count = 0

    def times(self, n):
        return self.k * n

    def __call__(self, n):
        return self.k + n

    @property
    def triple(self):
        return self.k * 3


class Shelf:

    def __getitem__(self, at):
        LOG.append(at)
        return len(LOG)

    def __contains__(self, item):
        LOG.append("in")
        return len(LOG) % 2 == 0

    def __len__(self):
        LOG.append("len")
        return len(LOG)

    def __add__(self, other):
        LOG.append("add")
        return other * 2


SCALED = Scaled(5)
SHELF = Shelf()


def odd(n):
    return n * 2 + 1


def branching(n):
    if n > 4:
        return 10
    return 20


def logged(n):
    LOG.append(n)
    return n + 1


def counted():
    SCALED.count += 1
    return SCALED.count


def total(n):
    global TOTAL
    TOTAL += n
    return TOTAL


def partial_sum(n):
    found = 0
    for i in range(n):
        if i == 3:
            continue
        found += i
        if found > 8:
            break
    return found


def star(*args, **kwargs):
    return sum(args) + kwargs.get("z", 0)
"""

#: Expressions of x: a tensor, p: a parameter, n and m: integers, s: a float, b: a bool.
EXPRESSIONS = """
isinstance(n, int) + 2 * isinstance(s, float) + 4 * isinstance(b, bool) + 8 * isinstance(s, int) + 16 * isinstance(b, int)
(type(n) is int) + 2 * (type(x) is torch.Tensor) + 4 * (type(p) is torch.nn.Parameter) + 8 * (type(b) is bool)
isinstance(p, torch.nn.Parameter) + 2 * isinstance(x, torch.nn.Parameter) + 4 * isinstance(x, torch.FloatTensor) + 8 * isinstance(x, torch.IntTensor)
isinstance(x.shape, torch.Size) + 2 * (type(x.shape) is torch.Size) + 4 * isinstance(x, (int, torch.Tensor))
3 if b is True else 5
3 if b is not False else 5
len(type(x).__name__) + len(x.__class__.__name__) + len(type(n).__name__)
issubclass(type(x), torch.Tensor) + 2 * issubclass(type(n), numbers.Integral) + 4 * isinstance(n, (float, numbers.Integral)) + 8 * isinstance(n, SupportsInt)
TABLE.get(f"k{n}", 1.0) + TABLE.get("k%d" % n, 1.0) + TABLE.get("k{}".format(n), 1.0)
len(str(n)) + len(repr(s)) + len(f"{n!r}{n:>5}{s:.3f}") + len("%r" % n) + len(str([n])) + len(f"{(n, m)}")
len(f"{x.shape}") + len(str(x.size())) + len(str(tuple(x.shape)))
2 if n in (3, 4) else 5
2 if n in SET else 5
2 if n not in [3, 4] else 5
TABLE.get(n, 1.0)
{3: 30, 7: 70, 4: 40}[n] + [1, 2, 3, 4, 5, 6, 7, 8][n] + sum([1, 2, 3, 4, 5, 6, 7, 8][: n])
3 if [n, 2] == [3, 2] else 4
3 if (n, m) == (3, 4) else 3.5 if (n, m) < (4, 0) else 4
len({n, m, 3}) + sorted((n, m, 5))[0] + sorted([n, m], reverse=True)[0]
2 if any(v > 6 for v in (n, m)) else 3 if all([n > 2, m > 3]) else 4
sum((n, m, 3)) + sum(x.shape) + divmod(n, m)[1] + round(s * n) + round(s, 1)
(n & 3) + (n | 8) + (n ^ 5) + (n << 2) + (n >> 1) + ~n + (n & (n - 1))
n.bit_length() + n.real + n.numerator + s.is_integer() + s.as_integer_ratio()[0]
pow(n, 2, 5) + pow(n, 2) + n ** 2 + 2 ** n + s ** 2 + 2.0 ** n + n ** s
math.ceil(s * n) + math.log2(n) + math.sqrt(n) + math.floor(s) + math.gcd(n, m) + math.prod((n, m)) + math.isclose(n, 3.0)
abs(n - 5) + abs(s) + max(n, m) + min(n, m, 3) + max([n, m]) + max(n, 2.5) + max((n, m, 5), key=lambda v: -v) + max([n, m, 5], key=odd)
int(s * n) + float(n) + bool(n) + int(b) + int(f"{n}") + len("ab" * n) + len("x".join([str(n), str(m)]))
sum([i for i in range(n)]) + sum(i * j for i in range(n) for j in range(m) if i != j)
sum({k: k * n for k in (1, 2, 3)}.values()) + {k: v for k, v in zip("ab", (n, m))}["b"] + len({v % 2 for v in range(n)})
sum(i * v for i, v in enumerate((n, m))) + sum(a * c for a, c in zip((n, m), (1, 2))) + list(reversed([n, m]))[0]
(w := n + 1) * w
2 if 2 < n < 5 else 3
functools.reduce(lambda u, v: u * v, [n, m, 2]) + functools.reduce(operator.add, (n, m)) + operator.itemgetter(0)([n, m])
list(map(lambda v: v + 1, (n, m)))[1] + sum(map(int, (s, n))) + len(list(filter(lambda v: v > 3, (n, m, 5))))
list(map(str, x.shape))[0].count("5") + sum(map(odd, [n, m])) + next(v for v in (1, 5, 9) if v > n)
odd(n) + branching(n) + partial_sum(n) + star(n, m, z=3) + star(*(n, m), **{"z": 2})
SCALED.times(n) + SCALED(n) + SCALED.triple + SCALED.k
hasattr(x, "shape") + 2 * hasattr(n, "shape") + 4 * callable(odd) + 8 * callable(n) + getattr(SCALED, "k") + getattr(SCALED, "nothing", 1)
int(np.prod((n, m))) + int(np.prod(x.shape)) + int(np.ceil(s))
len(x) + len((n, m)) + len("abc") + x.size(n - n) + x.shape[-1]
(n if b else m) * 2 + (n and m or 5) + int(not n) + (n == 3) + (m == 4) + {True: 3, False: 4}[n > 3]
n.__add__(2) + int.__mul__(n, m) + int(bin(n), 2) + int(hex(n), 16) + ord(chr(64 + n)) + complex(n, m).real
len(range(n)) + range(n)[-1] + (2 if 3 in range(n) else 1)
sum(1 for d in x.shape if d > 4) + (2 if x.shape == (5,) else 3) + (2 if x.shape[0] in (5, 6) else 3)
sum(itertools.chain([n], [m])) + len(list(itertools.product((1, 2), repeat=2))) + collections.OrderedDict(a=n)["a"]
-n + +n + -s + (-b) + (+b) + n // m + n % m + n / m + n // s
torch.finfo(x.dtype).bits + helion.cdiv(n, 2) + helion.next_power_of_2(n) + Pair(n, s).b + dataclasses.replace(Pair(n, s), a=5).a
2 if x.sum() > 20 else 3
2 if x.sum() > 20 and n > 3 else 3
int(not (x.sum() > 20)) + int(x is x) + int(x is p)
random.randint(0, 100) + random.random()
int(np.random.randint(0, 100)) + float(np.random.rand())
random.choice([1, 2, 3]) + int(random.choice((1, 2.0))) + int(next(COUNTER))
int(os.environ.get("NOT_THERE", "3")) + int(time.time() > 0) + len(os.environ) * 0
torch.randint(0, 100, (1,)).item() + int(torch.initial_seed() % 7) + int(torch.is_grad_enabled()) * 0
""".strip().splitlines()

#: Statements that set f, from the same names; some with effects.
STATEMENTS = """
f = logged(2) + logged(n)
---
f = int(counted()) + int(total(n))
---
LOG.append(n)
f = int(len(LOG))
---
print("n is", n, f"{n}")
f = sum([logged(i) for i in range(n)])
---
SCALED.count += n
SCALED.last = n
f = SCALED.count + SCALED.last
---
TABLE["new"] = n
f = int(TABLE["new"])
---
g = x.sum().item()
if g > 20:
    f = g
elif g > 10:
    f = g + 1
else:
    f = 2.0
---
f = 0
for v in (1, 2, 3):
    if x[v].item() > 2.5:
        f += v
---
g = random.randint(1, 9) + n
if g > 5:
    g = g - 1
    LOG.append(g)
f = g
---
if random.random() > 0.5:
    LOG.append("often")
f = 2
---
if n == 3:
    return x * 2
f = 4
---
if x.sum().item() > 20:
    return x * 7
f = 4
---
if n == 3:
    raise ValueError(f"bad {n} of {x.shape}")
f = 4
---
LOG.append("before")
if n == 3:
    raise KeyError("bad", n)
f = 4
---
if x.sum() > 20:
    raise RuntimeError("too large")
f = 4
---
assert n != 3, f"n is {n}"
f = 2
---
LOG.append(1)
assert isinstance(x, torch.Tensor) and n != 3, f"n is {n}"
f = 2
---
try:
    f = n
finally:
    LOG.append("finally")
---
try:
    g = {3: 1}[n]
except KeyError as error:
    LOG.append(str(error))
f = 2
---
try:
    if x.sum() > 20:
        raise ValueError("x")
    f = 2
except ValueError as error:
    LOG.append(str(error))
    f = 3
---
with torch.no_grad(), Noted() as noted:
    f = n + 1
---
def g(v, k=2):
    if v > 3:
        return m
    w = [v, k]
    w.append(n)
    return sum(w)

h = lambda v, k=n: v + k
f = g(n) + g(m, k=3) + h(m) + sum(c(m) for c in [lambda v: v + 1, odd])
---
l = [n, m]
l.append(n)
l += [m]
l.extend((1, 2))
l.insert(0, 9)
l.pop()
l[0] += 1
l.sort()
f = sum(l) + len(l) * 10 + l.index(m) * 100
---
d = {"a": n}
d["b"] = m
d.update(c=3)
d["a"] += 1
del d["b"]
f = sum(d.values()) + len(d) + d.setdefault("z", 4)
---
q = Pair(n, s)
q.a = q.a + 1
r = types.SimpleNamespace(a=n)
r.a += 1
f = q.a * 10 + r.a
---
a, *rest = (n, m, 5)
(c, e), g = (n, m), 2
u = v = n + 1
f: int = a + sum(rest) + c * e * g + u + v
del u
---
f = 0
for i in range(n):
    if i == 2:
        continue
    f += i
    if f > 8:
        break
else:
    f += 100
while f < 7:
    f += 2
---
match n:
    case 3 | 5:
        f = 1
    case v if v > 5:
        f = v
    case _:
        f = 2
---
import math as other
from math import floor

f = other.ceil(s) + floor(s)
f **= 2
f |= 8
---
it = iter([1, 2, n])
a = int(next(it))
f = a + int(next(it)) * 10
---
def recursive(v):
    return 1 if v <= 1 else v * recursive(v - 1)

f = recursive(n)
---
os.environ["HOST_CODE"] = str(n)
f = int(os.environ["HOST_CODE"])
---
f = int(SHELF[n]) + len(SHELF) + (n in SHELF) + int(SHELF + n)
---
g = (v for v in (n, m))
f = int(sum(g)) * 10 + int(sum(g))
---
if x.sum() > 20:
    z = x * 2
    LOG.append(tuple(z.shape))
f = 2
---
while True:
    z = x * 2
    if z.sum() > 3:
        break
f = int(sum(v for v in [1, 2, 3] if x[v].item() > 2.5))
---
class Local:
    pass

f = int(sum(itertools.takewhile(lambda v: v < n, itertools.count())))
""".split("\n---\n")  # fmt: skip

PARAMETER = torch.nn.Parameter(torch.ones(3), requires_grad=False)
CALLS = (
    (torch.arange(1.0, 6.0), PARAMETER, 3, 4, 0.5, True),
    (torch.arange(1.0, 6.0), PARAMETER, 7, 4, 0.5, False),
    (torch.arange(1.0, 9.0), PARAMETER, 3, 2, 1.5, True),
    (torch.arange(1.0, 6.0), PARAMETER, 4, 4, 2.5, True),
)
_CHUNK = 7


def _sources() -> Iterator[str]:
    head = "x, p, n: int, m: int, s: float, b: bool"
    for at in range(0, len(EXPRESSIONS), _CHUNK):
        chunk = EXPRESSIONS[at : at + _CHUNK]
        lines = [f"f{i} = {text}" for i, text in enumerate(chunk)]
        lines += [f"out = torch.zeros({len(chunk)})", "for t in hl.grid(1):"]
        lines += [f"    out[{i}] = f{i}" for i in range(len(chunk))]
        yield f"def numbers_{at // _CHUNK}({head}):\n" + textwrap.indent("\n".join([*lines, "return out"]), "    ")
    for at, text in enumerate(STATEMENTS):
        loop = "for t in hl.tile(x.size(0)):\n    out[t] = x[t] * f\nreturn out"
        yield f"def statements_{at}({head}):\n" + textwrap.indent(
            f"out = torch.empty_like(x)\n{text.strip()}\n{loop}", "    "
        )


def _load(path: Path, name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("host_code") / "forms.py"
    path.write_text("\n\n\n".join([PRELUDE, *_sources()]))
    return path


def _outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    """What a call gives or raises."""
    random.seed(1)
    torch.manual_seed(1)
    _numpy_seed(1)
    try:
        return "value", call()
    except exc.Base:
        raise
    except Exception as error:
        return type(error).__name__, str(error)


def _numpy_seed(seed: int) -> None:
    import numpy as np

    np.random.seed(seed)


def check(file: Path, name: str, static: bool, capfd: pytest.CaptureFixture[str]) -> None:
    ours, theirs = (_load(file, f"host_code_{who}") for who in ("ours", "theirs"))
    config = helion.Config(block_sizes=[8] if name.startswith("statements") else [])
    compiled = helion.kernel(getattr(ours, name), config=config, static_shapes=static)
    eager = helion.kernel(getattr(theirs, name), config=config, static_shapes=static)
    for args in CALLS:
        expected = _outcome(lambda args=args: run_reference(eager, args))  # type: ignore[misc]
        printed = capfd.readouterr().out
        found = _outcome(lambda args=args: compiled(*args))  # type: ignore[misc]
        assert found[0] == expected[0], (args[2:], found, expected)
        torch.testing.assert_close(found[1], expected[1]) if found[0] == "value" else None
        assert found[0] == "value" or found[1] == expected[1]
        assert capfd.readouterr().out == printed
        for state in ("LOG", "TABLE", "TOTAL"):
            assert getattr(ours, state) == getattr(theirs, state), (state, args[2:])
        assert vars(ours.SCALED) == vars(theirs.SCALED)


@pytest.mark.parametrize("at", range(-(-len(EXPRESSIONS) // _CHUNK)))
@pytest.mark.parametrize("static", [True, False], ids=["static", "dynamic"])
def test_numbers(file: Path, at: int, static: bool, capfd: pytest.CaptureFixture[str]) -> None:
    check(file, f"numbers_{at}", static, capfd)


@pytest.mark.parametrize("at", range(len(STATEMENTS)))
def test_statements(file: Path, at: int, capfd: pytest.CaptureFixture[str]) -> None:
    check(file, f"statements_{at}", at % 2 == 0, capfd)


# --- functions: by identity and by content --------------------------------------------------------------------------------


@helion.kernel(config=CONFIG)
def applied(x: torch.Tensor, g: Any) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = g(x[tile])
    return out


@helion.kernel(config=CONFIG)
def applied_to_tiles(x: torch.Tensor, g: Any) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = g(x[tile], tile)
    return out


def _expect(result: torch.Tensor, value: Any) -> None:
    torch.testing.assert_close(result, torch.as_tensor(value, dtype=result.dtype).expand(result.shape))


def test_equal_code_of_two_modules(tmp_path: Path) -> None:
    for name, scale in (("first", 2), ("second", 3)):
        (tmp_path / f"{name}.py").write_text(f"SCALE = {scale}\n\n\ndef act(v):\n    return v * SCALE\n")
    first, second = (_load(tmp_path / f"{name}.py", f"equal_{name}") for name in ("first", "second"))
    x = torch.ones(3)
    for _ in range(2):
        _expect(applied(x, first.act), 2)
        _expect(applied(x, second.act), 3)
    second.SCALE = 5
    _expect(applied(x, second.act), 5)
    _expect(applied(x, first.act), 2)


class Affine:
    def __init__(self, k: float) -> None:
        self.k = k
        self.weight = torch.arange(3.0)

    def scale(self, v: Any) -> Any:
        return v * self.k

    def __call__(self, v: Any) -> Any:
        return v + self.k

    def weighted(self, v: Any, tile: Any) -> Any:
        return v * self.weight[tile] + self.k


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(3.0), requires_grad=False)
        self.k = 2.0

    def forward(self, v: Any, tile: Any) -> Any:
        return v * self.weight[tile] * self.k


def test_methods_partials_and_callables() -> None:
    x, affine = torch.ones(3), Affine(3.0)
    _expect(applied(x, affine.scale), 3)
    _expect(applied(x, affine), 4)
    affine.k = 4.0
    _expect(applied(x, affine.scale), 4)
    _expect(applied(x, affine), 5)
    _expect(applied(x, Affine(9.0).scale), 9)
    for k in (6, 7):
        _expect(applied(x, functools.partial(lambda a, v: a * v, k)), k)
    _expect(applied_to_tiles(x, affine.weighted), [4, 5, 6])
    affine.weight = torch.ones(3)
    _expect(applied_to_tiles(x, affine.weighted), 5)
    layer = Layer()
    _expect(applied_to_tiles(x, layer), [0, 2, 4])
    layer.k, layer.weight.data = 3.0, torch.ones(3)
    _expect(applied_to_tiles(x, layer), 3)


def test_defaults_that_are_tensors() -> None:
    bias = torch.arange(3.0)
    by_default = lambda v, t, b=bias: v + b[t]  # noqa: E731
    _expect(applied_to_tiles(torch.ones(3), by_default), [1, 2, 3])
    bias += 1
    _expect(applied_to_tiles(torch.ones(3), by_default), [2, 3, 4])


def test_closures_over_functions_and_lists() -> None:
    x = torch.ones(3)

    def make(n: int, values: list[int], inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda v: v * n + values[0] + len(values) + inner(v)

    values = [1]
    for n, inner, expected in ((2, abs, 5), (3, torch.neg, 4), (2, torch.neg, 3)):
        _expect(applied(x, make(n, values, inner)), expected)
    g = make(2, values, abs)
    values[0] = 4
    _expect(applied(x, g), 8)
    values.append(3)
    _expect(applied(x, g), 9)


def helper(v: Any, k: int = 2) -> Any:
    return v * k


FACTORS, MEMBERS = [2], {1, 2}


@helion.kernel(config=CONFIG)
def by_global(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    factor = len(FACTORS) + (3 in MEMBERS)
    for tile in hl.tile(x.size(0)):
        out[tile] = helper(x[tile]) * factor
    return out


def test_functions_whose_content_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3)
    _expect(by_global(x), 2)
    monkeypatch.setattr(helper, "__defaults__", (7,))
    _expect(by_global(x), 7)
    monkeypatch.setattr(helper, "__code__", (lambda v, k=2: v * k + 1).__code__)
    _expect(by_global(x), 8)

    def make() -> tuple[Any, ...]:
        n, items = 4, [3]

        def g(v: Any, *, k: int = 1) -> Any:
            return (v * n + items[0]) * k

        def change(value: int) -> None:
            nonlocal n
            n = value

        return g, change, items

    g, change, items = make()
    monkeypatch.setitem(globals(), "helper", g)
    _expect(by_global(x), 7)
    change(5)
    _expect(by_global(x), 8)
    items[0] = 1
    _expect(by_global(x), 6)
    g.__kwdefaults__ = {"k": 2}
    _expect(by_global(x), 12)
    FACTORS.append(1)
    _expect(by_global(x), 24)
    MEMBERS.add(3)
    _expect(by_global(x), 36)


def test_the_default_dtype() -> None:
    @helion.kernel(config=CONFIG)
    def thirds(x):
        out = torch.empty(x.shape, dtype=torch.float64)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] / 3
        return out

    x = torch.ones(3, dtype=torch.int32)
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            torch.testing.assert_close(thirds(x), (x / 3).double(), rtol=0, atol=0)
        finally:
            torch.set_default_dtype(torch.float32)


# --- around device loops --------------------------------------------------------------------------------------------------

LOG: list[Any] = []


class Noted:
    def __enter__(self) -> None:
        LOG.append("enter")

    def __exit__(self, *_: object) -> None:
        LOG.append("exit")


@helion.kernel(config=helion.Config(block_sizes=[8, 8]))
def surrounded(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    with torch.no_grad(), Noted():
        try:
            for tile in hl.tile(x.size(0)):
                out[tile] = x[tile] * n
        finally:
            LOG.append("finally")
    count = int(out.sum().item())
    LOG.append(count)
    try:
        for tile in hl.tile(x.size(0)):
            out[tile] = out[tile] + count
    except RuntimeError:
        LOG.append("never")
    with Noted():
        return out


def test_statements_around_and_between_loops() -> None:
    for n in (2, 3):
        LOG.clear()
        _expect(surrounded(torch.ones(3), n), 4 * n)
        assert LOG == ["enter", "finally", "exit", 3 * n, "enter", "exit"]


def test_nested_functions_on_the_device() -> None:
    @helion.kernel(config=CONFIG)
    def nested(x, n: int):
        out = torch.empty_like(x)
        doubled = x * 2

        def inner(v, tile):
            return v * n + doubled[tile]

        last = lambda v: v + n  # noqa: E731
        for tile in hl.tile(x.size(0)):
            out[tile] = last(inner(x[tile], tile))
        return out

    _expect(nested(torch.ones(3), 2), 6)
    _expect(nested(torch.ones(3), 3), 8)


def test_types_on_the_device() -> None:
    @helion.kernel(config=CONFIG)
    def scaled(x, s, n: int):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            if isinstance(s, torch.Tensor):
                out[tile] = x[tile] * s[tile]
            else:
                out[tile] = x[tile] * s
            if type(n) is int and n in (3, 4) and isinstance(x[tile], torch.Tensor):
                out[tile] = out[tile] + 10
        return out

    x = torch.ones(3)
    _expect(scaled(x, x + 1, 3), 12)
    _expect(scaled(x, 5.0, 7), 5)
    _expect(scaled(x, 2, 4), 12)


def test_numbers_of_the_run_beyond_32_bits() -> None:
    @helion.kernel(config=CONFIG)
    def wide(x, y):
        v = y.max().item()
        w = int(str(v))
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * v + w
        return out

    for number in (5, 2**40, -(2**35), 2**31, 1, 16):
        _expect(wide(torch.ones(3, dtype=torch.int64), torch.tensor([number])), 2 * number)


def test_a_choice_on_the_device_by_an_argument() -> None:
    @helion.kernel(config=CONFIG)
    def chosen(x, b: bool, n: int):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * (2.0 if b else 3.0) + (1 if n > 3 else 0)
        return out

    for b, n, expected in ((True, 3, 2), (False, 7, 4), (True, 9, 3)):
        _expect(chosen(torch.ones(3), b, n), expected)


# --- what is refused, and how ---------------------------------------------------------------------------------------------


def refusal(function: Callable[..., Any], text: str, *args: Any) -> None:
    with pytest.raises(exc.TypeInferenceError, match=text) as caught:
        helion.kernel(function, config=CONFIG).bind((torch.ones(3), *args))
    assert caught.value.location is not None and "# here" in caught.value.location.excerpt()


def test_device_code_that_depends_on_what_only_the_run_knows() -> None:
    def chosen(x):
        f = random.choice([1, 2.0, 3])  # here
        g = [f, 1]
        for tile in hl.tile(x.size(0)):
            x[tile] = g[0]

    refusal(chosen, r"`random\.choice\(\[1, 2\.0, 3\]\)` is known only when the host code runs.*write int\(")

    def decided(x):
        if random.random() > 0.5:  # here
            for tile in hl.tile(x.size(0)):
                x[tile] = 1

    refusal(decided, "branch")

    def one_way(x):
        if x.sum() > 1:
            f = 3
        for tile in hl.tile(x.size(0)):
            x[tile] = f  # here

    refusal(one_way, r"only one path through `if x\.sum\(\) > 1:` assigns it")

    def mixed(x):
        f = 1 if x.sum() > 1 else 2.0
        for tile in hl.tile(x.size(0)):
            x[tile] = f  # here

    refusal(mixed, r"known only when the host code runs")
