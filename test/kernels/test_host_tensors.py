"""Tensors that host code makes: what kernels are told of them is what torch makes of them at every call.

Each form is host code that makes ``y``; the kernel copies it. It runs several times with other numbers, sizes and strides,
with static and with dynamic shapes, and must give what the same code gives in plain Python.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PROVE
from torch.overrides import TorchFunctionMode

import helion
import helion.language as hl
from helion import exc
from helion._compiler.frontend.host.elementwise_layout import result_layout
from helion._compiler.passes.analysis import collisions
from helion.runtime import stub_driver
from helion.runtime.generated.result_guards import ExpectedTensor, expected_tensors

ROOT = Path(__file__).resolve().parents[2]

_HEADER = """
import math
import numpy as np
import torch
import torch.nn.functional as F
import helion
import helion.language as hl

class Table:
    weights = torch.arange(12.0).view(3, 4).t()

ARRAY = np.arange(10, dtype=np.float32)

def alloc(n):
    return torch.full((n,), 3.0)

def doubled(x):
    y = x * 2
    return y.contiguous() if y.size(0) > 3 else y

"""
_KERNEL = """
def plain_{name}({parameters}):
{body}
    return y.clone() if y.dim() else y

@helion.kernel(static_shapes={static}, config=helion.Config(block_sizes={blocks}), ignore_warnings=["TensorOperationInWrapper"])
def {name}({parameters}):
{body}
    out = torch.empty_strided(y.shape, {strides}, dtype=y.dtype, device=y.device)
    for t in hl.tile(y.size()):
        out[t] = y[t]
    return out
"""
_COUNT = itertools.count()


def load(tmp_path: Path, text: str) -> Any:
    """A module with kernels, from a file of its own."""
    file = tmp_path / f"forms_{next(_COUNT)}.py"
    file.write_text(_HEADER + text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def forms(tmp_path: Path, bodies: Sequence[str], rank: int, parameters: str, static: bool) -> Any:
    strides = {1: "(1,)", 2: "(y.size(1), 1)", 3: "(y.size(1) * y.size(2), y.size(2), 1)"}[rank]
    text = [
        _KERNEL.format(
            name=f"form_{rank}_{static}_{at}",
            parameters=parameters,
            body=textwrap.indent(textwrap.dedent(body), "    "),
            static=static,
            strides=strides,
            blocks=[4] * rank,
        )
        for at, body in enumerate(bodies)
    ]
    return load(tmp_path, "".join(text))


def same(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return got.dtype == wanted.dtype and got.shape == wanted.shape and torch.equal(got, wanted)


def run(module: Any, kind: str, bodies: Sequence[str], calls: Sequence[Callable[[], tuple[Any, ...]]]) -> list[str]:
    """What is wrong, form by form."""
    wrong = []
    for at, body in enumerate(bodies):
        for number, make in enumerate(calls):
            try:
                wanted = getattr(module, f"plain_{kind}_{at}")(*make())
                got = getattr(module, f"{kind}_{at}")(*make())
                if not same(got, wanted):
                    wrong.append(f"{body!r}, call {number}: {got} instead of {wanted}")
                    break
            except Exception as error:  # the first that fails says enough
                wrong.append(f"{body!r}, call {number}: {type(error).__name__}: {str(error).splitlines()[0]}")
                break
    return wrong


def grid(*shape: int) -> torch.Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(shape).numel()).view(shape)


#: Of ``x`` with two dimensions and the integer ``n``.
MATRICES = (
    "y = x * 2",
    "y = 1 - x.t()",
    "y = x.t() + x.t().contiguous()",
    "y = x / 3 > 1",
    "y = x.exp() ** 2",
    "y = -x.t()[1:]",
    "y = x + x[:1]",
    "y = x[:, :1] * x[:1]",
    "y = torch.where(x > 2, x, 0.5 * x)",
    "y = torch.maximum(input=x, other=x.flip(0))",
    "y = x.clone()\ny *= 2",
    "y = x.clone()\nz = y\ny += x\ny = z",
    "y = x.clone().t_()",
    "y = x.clone()\ny.t_()\ny *= 3",
    "y = x.clone()\ny.transpose_(0, 1)",
    "y = x.clone()\ny.swapaxes_(0, 1).mul_(2)",
    "y = x.clone()\ny.t().add_(1)",
    "y = torch.empty_like(x.t(), memory_format=torch.contiguous_format).copy_(x.t())",
    "y = torch.zeros_like(x.t(), memory_format=torch.contiguous_format) + x.t()",
    "buf = torch.empty(x.size(1), x.size(0)).t()\ny = torch.mul(x, 2, out=buf)",
    "buf = torch.empty(x.size(1), x.size(0)).t()\ntorch.add(x, x, out=buf)\ny = buf",
    "y = x.sum(0, keepdim=True) + x",
    "y = x.t().sum(axis=1, keepdims=True) * x.t()",
    "y = torch.sum(input=x, dim=1, keepdim=True) - x",
    "y = torch.add(input=x, other=x.t().t())",
    "y = torch.cat([x, x.t().t()])",
    "y = torch.cat((x, x), dim=1)",
    "y = torch.cat([x[:n], x])",
    "y = torch.cat([x, torch.ones(n, x.size(1))], dim=0)",
    "y = torch.stack([x[0], x[1]])",
    "y = torch.hstack([x, x])",
    "y = F.pad(x, (0, n))",
    "y = torch.tile(x, (n, 2))",
    "y = x.repeat(n, 1)",
    "y = x.repeat_interleave(repeats=n, dim=1)",
    "y = x.topk(k=2).values",
    "y = x.topk(n, dim=0)[0]",
    "y = x.expand(n, *x.shape)[0]",
    "y = x[:1].expand(n, -1)",
    "y = torch.broadcast_to(x[:1], (n, x.size(1)))",
    "y = x[:n].t() * 2",
    "y = x[1:n + 1] + x[:n]",
    "y = x.narrow(0, 1, n)",
    "y = x.contiguous().to(torch.int32).view(torch.int8)",
    "y = x.view(torch.int32)",
    "y = x.as_strided((2, n), (1, 1))",
    "y = torch.eye(n)",
    "y = torch.eye(n, x.size(0))",
    "y = torch.full((n, 2), 7, dtype=torch.int32)",
    "y = torch.empty_strided((n, 3), (1, n)).fill_(2)",
    "y = x.new_full((n, 2), 1.5)",
    "y = torch.tril(torch.ones(n, n))",
    "y = torch.tril_indices(n, n)",
    "y = x @ x.t()",
    "y = torch.meshgrid(torch.arange(n), torch.arange(3), indexing='ij')[0]",
    "y = x.cumsum(0)",
    "y = x.softmax(dim=n - 1 if n < 2 else 0)",
    "y = x.reshape(-1, 1)",
    "y = x.flatten().view(1, -1)",
    "y = x[None].squeeze(0)",
    "y = x[x[:, 0] > 2]",
    "y = x[torch.arange(2)]",
    "y = x[:, torch.tensor([1, 0])]",
    "y = x.t() if x.is_contiguous() else x",
    "y = x * x.storage_offset() + x.storage_offset()",
    "y = x * x.numel() + x.element_size()",
    "y = x * (1 if x.shape == x.t().shape else 2)",
    "assert x.data_ptr() % 4 == 0\ny = x * 1",
    "y = x.float().contiguous()",
    "y = x.double().t()",
    "y = x.to(torch.float16).t()",
    "y = x.to(x.device)",
    "y = x.cpu() * 2",
    "y = x.unsqueeze(0).expand(2, -1, -1)[1]",
    "y = x.unfold(0, 2, 1)[:, :, 0]",
    "y = x.t().clone()",
    "y = x.t().clone(memory_format=torch.contiguous_format)",
    "y = torch.sort(x, dim=1).values",
    "y = x.chunk(2)[0]",
    "y = x.split(1)[1] + x.unbind(0)[0]",
    "y = torch.zeros(1, 2)\ny.resize_(3, 2).fill_(1)",
    "y = Table.weights * 2",
    "y = Table.weights",
    "y = doubled(x)",
    "y = torch.randn(3, 2).t() * 0",
    "y = torch.rand_like(x) * 0 + x",
    "y = torch.ones(n, x.size(1)) + x[:1]",
)
#: Of ``x`` with one dimension and the integer ``n``.
VECTORS = (
    "y = torch.arange(n)",
    "y = torch.arange(1, n + 1)",
    "y = torch.arange(0, n, 0.5)",
    "y = torch.arange(end=n, dtype=torch.float32)",
    "y = torch.arange(x.size(0))",
    "y = torch.linspace(0, 1, n)",
    "y = torch.linspace(0, 1, steps=x.size(0))",
    "y = torch.logspace(0, 1, n)",
    "y = torch.hann_window(n)",
    "y = torch.randint(0, 1, (n,))",
    "y = torch.randperm(n) * 0",
    "y = torch.normal(0.0, 1.0, (n,)) * 0",
    "y = torch.as_tensor([1.0, 2.0]) * n",
    "y = torch.from_numpy(ARRAY)[2:n + 2]",
    "y = torch.tensor([n, 2])",
    "y = x + torch.ones(n if n == 1 else x.size(0))",
    "y = x[x > 2]",
    "y = torch.masked_select(x, x < 3) * 2",
    "y = torch.nonzero(x > 1)[:, 0]",
    "y = torch.where(x > 1)[0]",
    "y = torch.unique(x.long() % 3)",
    "y = torch.bincount(x.long())",
    "y = alloc(x.size(0))",
    "y = alloc(n) + 1",
    "y = x.repeat_interleave(2)",
    "y = x * torch.equal(x, x)",
    "y = x * (x > 0).any().item()",
    "y = x.view(-1, 1).sum(1)",
    "y = torch.cat([x, x[:n], torch.zeros(n)])",
    "y = x[::2] * 2",
    "y = x.flip(0)",
    "y = F.pad(x, (n, 0))",
    "y = x.roll(n)",
    "y = torch.zeros_like(x).add_(n)",
    "y = x.new_zeros(size=(n,))",
    "y = x.view(torch.int8)",
    "y = x[:1].expand(n)",
    "y = torch.cumsum(x, 0) + n",
    "y = x.bfloat16() * 2",
    "y = (x > 1).sum() + x",
    "y = torch.stack([x, x]).flatten()",
)
#: Of ``x`` with four dimensions, copied as three.
IMAGES = (
    "y = (x.to(memory_format=torch.channels_last) * 2)[0]",
    "y = x.contiguous(memory_format=torch.channels_last)[0]",
    "y = torch.empty(x.shape, memory_format=torch.channels_last).copy_(x)[-1]",
    "y = torch.empty_like(x, memory_format=torch.channels_last).copy_(x)[0] + 1",
    "y = (x.transpose(1, 2) + x.transpose(1, 2))[0]",
    "y = (x.permute(3, 1, 0, 2) * 0.5)[1]",
    "q = x.transpose(1, 2)\nq = q * 0.125\ny = q.reshape(-1, q.size(2), q.size(3))",
    "y = x.to(memory_format=torch.channels_last)[0] if not x.is_contiguous(memory_format=torch.channels_last) else x[0]",
    "y = x.mean((0,), keepdim=False)",
    "y = x.clone(memory_format=torch.channels_last)[0] * n",
)
_MATRIX_CALLS = (
    lambda: (grid(4, 6), 2),
    lambda: (grid(4, 6), 3),
    lambda: (grid(6, 4).t(), 2),
    lambda: (grid(3, 5), 1),
    lambda: (grid(5, 8)[:, 1:7], 3),
)
_VECTOR_CALLS = (
    lambda: (grid(8), 3),
    lambda: (grid(8), 5),
    lambda: (grid(20), 1),
    lambda: (grid(3), 3),
    lambda: (grid(9)[1:], 2),
)
_IMAGE_CALLS = (
    lambda: (grid(2, 3, 4, 5), 2),
    lambda: (grid(2, 3, 4, 5).to(memory_format=torch.channels_last), 3),
    lambda: (grid(3, 2, 2, 4).transpose(1, 2), 2),
)


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize(
    ("bodies", "rank", "calls"),
    [(MATRICES, 2, _MATRIX_CALLS), (VECTORS, 1, _VECTOR_CALLS), (IMAGES, 3, _IMAGE_CALLS)],
    ids=["matrices", "vectors", "images"],
)
def test_forms(tmp_path: Path, bodies: Sequence[str], rank: int, calls: Any, static: bool) -> None:
    bodies = bodies if PROVE else bodies[static::4]  # the sample has half of the bodies, each once
    module = forms(tmp_path, bodies, rank, "x, n: int", static)
    wrong = run(module, f"form_{rank}_{static}", bodies, calls)
    assert not wrong, "\n".join(wrong)


# --- the rule for elementwise results ----------------------------------------------------------------------------------


def _laid_out(random: Random, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of a shape with its dimensions in some order, with holes or repeated elements."""
    kind, order = random.randrange(5), random.sample(range(len(shape)), len(shape))
    steps = [random.choice((1, 2)) if kind >= 3 else 1 for _ in shape]
    base = torch.empty([shape[at] * step for at, step in zip(order, steps, strict=True)])
    each = tuple(slice(None, None, step) for step in steps)
    made = base[each].permute([order.index(at) for at in range(len(shape))]) if kind else torch.empty(shape)
    at = random.randrange(len(shape)) if shape else 0
    if kind == 4 and shape and shape[at]:
        made = made.narrow(at, 0, 1).expand(shape)
    return made


def test_layout_of_elementwise_results() -> None:
    random = Random(0)
    for _ in range(3000):
        full = [random.choice((0, 1, 1, 2, 3, 4)) for _ in range(random.randrange(6))]
        operands = []
        for _ in range(random.choice((1, 2, 2, 3))):
            rank = random.choice((len(full), len(full), random.randrange(len(full) + 1)))
            shape = [n if random.random() < 0.8 else 1 for n in full[len(full) - rank :]]
            operands.append(_laid_out(random, shape))
        real = {1: torch.abs, 2: torch.add, 3: torch.addcmul}[len(operands)](*operands)
        layouts = [(tuple(o.shape), tuple(o.stride())) for o in operands]
        assert result_layout(layouts) == (tuple(real.shape), tuple(real.stride())), layouts


def test_operands_that_do_not_broadcast_have_no_layout() -> None:
    assert result_layout([((2, 3), (3, 1)), ((4,), (1,))]) is None


# --- tensors that are not as expected ----------------------------------------------------------------------------------

CONFIG = helion.Config(block_sizes=[4, 4])
ARRAY = np.zeros((2, 3), dtype=np.float32)


@helion.kernel(config=CONFIG, ignore_warnings=["TensorOperationInWrapper"])
def of_array(x: torch.Tensor, log: Any = None) -> torch.Tensor:
    y = torch.from_numpy(ARRAY)
    n = y.size(0)
    x.add_(1)
    out = torch.empty(y.shape)
    for tile in hl.tile(y.size()):
        out[tile] = y[tile] + n
    return out


@helion.kernel(config=CONFIG, ignore_warnings=["TensorOperationInWrapper"])
def doubled(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    out = torch.empty(x.shape, dtype=torch.float64)
    for tile in hl.tile(y.size()):
        out[tile] = y[tile]
    return out


class Elsewhere(TorchFunctionMode):
    """Products come in another dtype and with other strides."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.t().contiguous().t().double() if "mul" in getattr(func, "__name__", "") else result


def test_a_tensor_of_other_sizes_is_launched_for_what_it_is() -> None:
    """Statements of the host run once."""
    x = torch.zeros(3)
    for calls, shape in enumerate(((2, 3), (5, 7), (2, 3), (5, 7)), 1):
        ARRAY.resize(shape, refcheck=False)
        ARRAY[:] = np.arange(ARRAY.size).reshape(shape)
        torch.testing.assert_close(of_array(x), torch.from_numpy(ARRAY) + shape[0])
        assert torch.equal(x, torch.full((3,), float(calls)))
    assert len(of_array.variants) == 1


def test_modes_that_change_results() -> None:
    x = grid(5, 6)
    for mode in (False, True, False, True):
        with Elsewhere() if mode else contextlib.nullcontext():
            assert torch.equal(doubled(x), x.double() + x.double())


def stepped(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.zeros(x.size(1), x.size(0), dtype=torch.float64)
    for step in range(n):
        y = x.t() * (step + 1)
        rows = y.size(0)
        for tile in hl.tile(y.size()):
            out[tile] = out[tile] + y[tile] + rows
    return out


@pytest.mark.parametrize("static", [True, False])
def test_host_tensors_in_host_loops(static: bool) -> None:
    kernel = helion.kernel(stepped, config=CONFIG, static_shapes=static, ignore_warnings=["TensorOperationInWrapper"])
    for x, n in ((grid(4, 6), 3), (grid(6, 4).t(), 2), (grid(5, 5), 1)):
        for mode in (False, True):
            with Elsewhere() if mode else contextlib.nullcontext():
                result = kernel(x, n)
            wanted = sum(x.t().double() * (step + 1) + x.size(1) for step in range(n))
            torch.testing.assert_close(result, wanted)


def test_expected_tensors_say_what_differs() -> None:
    x = grid(4, 6)
    expected = ExpectedTensor("float32", (4, None), (None, 1))
    assert not expected.differs(x, x)
    assert "strides are (1, 4), expected (any, 1)" in expected.differs(grid(6, 4).t(), x)
    assert "shape is (3, 6), expected (4, any)" in expected.differs(x[:3], x)
    assert "dtype is torch.float64" in expected.differs(x.double(), x)
    assert "expected a tensor" in expected.differs(3, x)
    assert "it is on meta, expected cpu" in expected.differs(torch.empty(4, 6, device="meta"), x)
    assert not ExpectedTensor("float32", (1, 6), (77, 1)).differs(x[:1], None)  # no element needs that stride
    check = expected_tensors(("float32", (4, 6), (6, 1)))
    assert all(check(x, other) for other in (x, x.clone(), x.t()))
    assert not check(x.t(), x) and not check(x[:, :5], x) and check(x, x)


@pytest.mark.parametrize("native", ["0", "1"])
def test_checks_where_calls_are_short(native: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_NATIVE_LAUNCH", native)
    kernel = helion.kernel(doubled.fn, config=CONFIG, ignore_warnings=["TensorOperationInWrapper"])
    x = grid(8, 12)
    with stub_driver() as stub:
        for _ in range(3):
            kernel(x)
        short = len(stub.launches)
        with Elsewhere():
            kernel(x)
        kernel(x)
    assert short == 3 and len(stub.launches) == 5


# --- arguments ---------------------------------------------------------------------------------------------------------


@helion.kernel(static_shapes=False, config=CONFIG)
def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + y[tile]
    return out


def test_compiled_dynamic_functions_take_arguments_of_other_classes() -> None:
    run = added.bind((torch.randn(12, 12), torch.randn(12, 12))).compile_config(CONFIG)
    for shape in ((12, 12), (6, 9), (9, 6), (1, 9), (7, 7)):
        x, y = torch.randn(shape), torch.randn(shape)
        assert torch.equal(run(x, y), x + y)
        turned = torch.randn(shape[::-1]).t()
        assert torch.equal(run(turned, y), turned + y)


def test_a_dynamic_module_leaves_other_sizes_to_the_kernel(tmp_path: Path) -> None:
    text = added.bind((torch.randn(12, 12), torch.randn(12, 12))).to_code()
    namespace: dict[str, Any] = {}
    (tmp_path / "module.py").write_text(text)
    exec(compile(text, str(tmp_path / "module.py"), "exec"), namespace)
    x = torch.randn(8, 8)
    assert torch.equal(namespace["added"](x, x), x + x)
    y = torch.randn(6, 9)
    assert torch.equal(namespace["added"](y, y), y + y)
    alone = text.replace(repr(__name__), repr("gone"))
    exec(compile(alone, str(tmp_path / "module.py"), "exec"), namespace)
    assert torch.equal(namespace["added"](x, x), x + x)
    with pytest.raises(exc.InvalidAPIUsage, match="compiled for other tensors"):
        namespace["added"](y, y)


def test_static_dimensions_count_from_the_end() -> None:
    @helion.kernel(static_shapes=False, config=helion.Config(block_sizes=[4]))
    def rows(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile, :] = x[tile, :] * 2
        return out

    keys = set()
    for size, fixed in ((5, -1), (5, 1), (6, -1)):
        x = torch.randn(3, size)
        x._dynamo_static_indices = {fixed}  # type: ignore[attr-defined]  # what torch._dynamo.mark_static leaves
        assert torch.equal(rows(x), x * 2)
        keys.add(rows.specialization_key((x,)))
    assert len(keys) == 2
    x = torch.randn(8, 5)[::2]
    x._dynamo_static_indices = {0}  # type: ignore[attr-defined]
    assert "x_stride_0" in rows.bind((x,)).to_code()  # a size is fixed, no stride


def test_memory_of_two_storages_that_overlap() -> None:
    """What one loop writes the other one reads, whatever tensors the memory comes through."""

    @helion.kernel(config=helion.Config(block_sizes=[4]))
    def moved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for tile in hl.tile(x.size(0)):
            y[tile] = x[tile] + 1
        return y

    array = np.arange(12, dtype=np.float32)
    apart, meeting = (
        (torch.from_numpy(array.copy()), torch.zeros(8)),
        (torch.from_numpy(array[:8]), torch.from_numpy(array[4:])),
    )
    assert moved.specialization_key((apart[0][:8], apart[1])) != moved.specialization_key(meeting)
    assert moved.specialization_key(meeting) == moved.specialization_key((meeting[0], meeting[0][:8]))
    assert (
        moved.bind(meeting)._analysis.program.tensors[0].storage
        == moved.bind(meeting)._analysis.program.tensors[1].storage
    )


# --- what is refused ---------------------------------------------------------------------------------------------------

REFUSED = (
    ("y = torch.from_numpy(x.numpy())", "depends on the data of tensors"),
    (
        "y = x * 2 if (x > 0).all() else x[0]",
        "not known when the kernel is compiled|known only when the host code runs",
    ),
    ("y = x.view(7, 7)", "refused by torch"),
    ("y = x + torch.ones(3, 3, 3)[:, 1]", "do not match"),
    (
        "y = x.clone()\nfor _ in range(2):\n    y.t_()\n    for t in hl.tile(y.size()):\n        y[t] = y[t] * 2",
        "in a host loop",
    ),
    ("y = x * n\ny = y[:n].squeeze().resize_(2, n)", "known at run time only"),
)


@pytest.mark.parametrize(("body", "pattern"), REFUSED)
def test_refusals(tmp_path: Path, body: str, pattern: str) -> None:
    module = forms(tmp_path, [body], 2, "x, n: int", True)
    with pytest.raises(exc.Base, match=pattern) as caught:
        module.form_2_True_0(grid(4, 6), 2)
    text = str(caught.value)
    assert "While processing:" in text
    assert not any(word in text for word in ("meta", "PT2", "Meta"))


@pytest.mark.parametrize("static", [True, False])
def test_a_branch_on_where_an_argument_begins(static: bool) -> None:
    kernel = helion.kernel(begins_late.fn, static_shapes=static)
    x = torch.arange(12.0).view(3, 4)
    for each, expected in ((x[1:], 1.0), (x[:2], 0.0), (x[1:], 1.0), (x[:, 1:], 1.0)):
        torch.testing.assert_close(kernel(each), each + expected)


@helion.kernel
def begins_late(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    late = 0.0 if x.storage_offset() == 0 else 1.0
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + late
    return out


@pytest.mark.prove
def test_tensors_like_dense_ones_import_nothing_of_torchs_compiler() -> None:
    code = (
        "import sys, torch, helion\n"
        "from sample_kernels import softmax\n"
        "before = set(sys.modules)\n"
        "helion.kernel(softmax).bind((torch.ones(8, 5).t(),))\n"
        "heavy = ('sympy', 'torch._refs', 'torch.fx.experimental', 'torch._dynamo')\n"
        "print([name for name in set(sys.modules) - before if name.startswith(heavy)])\n"
    )
    path = os.pathsep.join(str(ROOT / part) for part in (".", "test"))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=True
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr


@helion.kernel
def own_place(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Loads of computed subscripts from a tensor that is changed: the analysis of programs evaluates these."""
    flat, columns = x.view(-1), x.size(1)
    for rows in hl.tile(x.size(0)):
        own = flat[rows.index * columns + places[rows]]
        for cols in hl.tile(columns):
            x[rows, cols] = x[rows, cols] - own[:, None]
    return x


def test_loads_from_a_changed_tensor_import_nothing_of_torchs_compiler() -> None:
    code = (
        "import sys, torch, helion\n"
        "from kernels.test_host_tensors import own_place\n"
        "args = torch.ones(8, 5), torch.zeros(8, dtype=torch.int64)\n"
        "before = set(sys.modules)\n"
        "own_place.bind(args, target='h200').to_triton_code()\n"
        "heavy = ('sympy', 'torch._refs', 'torch._dynamo')\n"
        "print([name for name in set(sys.modules) - before if name.startswith(heavy)])\n"
    )
    path = os.pathsep.join(str(ROOT / part) for part in (".", "test"))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=True
    )
    assert done.stdout == "[]\n", done.stdout + done.stderr


@pytest.mark.parametrize("shapes", [(), ((),), ((3, 1), (1, 4)), ((4,), (2, 1, 4)), ((0,), (1,)), ((2, 3), ())])
def test_lanes_are_the_elements_of_the_broadcast(shapes: tuple[tuple[int, ...], ...]) -> None:
    expected = torch.broadcast_shapes(*shapes).numel()
    assert collisions._lanes(*(torch.empty(shape, device="meta") for shape in shapes)) == expected


def turned_in_place(x: torch.Tensor) -> torch.Tensor:
    x.transpose_(0, 1)
    known = x.dim() if x.is_contiguous() else 0
    out = torch.zeros(1)
    for _ in hl.grid(1):
        out[0] = known
    return out


@pytest.mark.parametrize("static", [True, False])
def test_a_tensor_turned_in_place_is_not_the_argument_any_more(static: bool) -> None:
    kernel = helion.kernel(turned_in_place, static_shapes=static)
    for shape in ((2, 3), (1, 2), (2, 1)):
        x = torch.ones(shape)
        assert kernel(x.clone()).item() == (2 if x.T.is_contiguous() else 0)
