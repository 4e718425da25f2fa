"""Mistakes of the first hours: each message says what to write instead."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc

X = torch.randn(8, 8) + 1


def kernel_of(directory: Path, body: str, host: str = "", parameters: str = "x") -> Any:
    """A kernel in a file of its own: ``host`` before its loop, ``body`` in it."""
    lines = ["import math", "import torch", "import helion", "import helion.language as hl", "", "", "@helion.kernel"]
    lines += [
        f"def wrong({parameters}):",
        "    out = torch.empty_like(x)",
        *(f"    {line}" for line in host.splitlines()),
    ]
    lines += [
        "    for t in hl.tile(x.size(0)):",
        *(f"        {line}" for line in body.splitlines()),
        "    return out",
        "",
    ]
    path = directory / "wrong_kernel.py"
    path.write_text("\n".join(lines))
    spec = importlib.util.spec_from_file_location(f"wrong_{abs(hash(path))}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.wrong


DEVICE = {
    "v = x[t, :]\nprint(f'{v}')\nout[t, :] = v": r"pass the value itself: print\('name', value\)",
    "out[t, :] = math.exp(x[t, :])": "math.exp takes numbers.*use torch.exp",
    "out[t, :] = math.fabs(x[t, :])": "use torch.abs",
    "for u in hl.tile(8):\n    break\nout[t, :] = x[t, :]": "A break statement.*torch.where, or write a while loop",
    "for u in hl.tile(8):\n    continue\nout[t, :] = x[t, :]": "A continue statement.*torch.where",
    "v = x[t, :]\nv.mul_(2)\nout[t, :] = v": r"Tensor.mul_ .*as in x = x.mul\(...\)",
    "out[t, :] = torch.fft.fft(x[t, :]).real": "torch.fft.fft .*call it in the host code",
    "acc = 0\nfor u in hl.tile(8):\n    acc = acc + x[t, u] @ x[u, :]\nout[t, :] = acc": r"acc = hl.zeros\(\[t, 8\]\)",
    "acc = 1.0\nfor u in hl.tile(8):\n    acc = acc * x[t, u].sum(-1)\nout[t, :] = acc[:, None]": r"acc = hl.full\(\[t\], 1.0\)",
    "acc = 0\nfor u in hl.tile(8):\n    acc = acc + x[t, u].sum(-1).half()\nout[t, :] = acc[:, None]": "dtype=torch.float16",
    "v = x[t, :]\nout[t, 0] = v[v > 0]": r"torch.where\(mask, value, other\)",
    "for u in hl.tile(x):\n    out[t, :] = 1.0": r"write hl.tile\(x.size\(\)\)",
    "out[t, 0] = x.view(-1)[t]": r"Tensor.view.*host code before the loop, as in `flat = x.view\(-1\)`",
    "out[t, 0] = x.reshape(64)[t]": r"as in `flat = x.reshape\(-1\)`",
    "out[t, 0] = torch.flatten(x)[t]": r"host code before the loop, as in `flat = x.flatten\(\)`",
    "out[t, 0] = x.permute(1, 0)[t, 0]": r"host code before the loop, as in `view = x.permute\(...\)`",
    "x.index_add_(0, x[t, 0].long(), x[t, :])": r"hl.atomic_add\(x, \[indices\[tile\], ...\], value\).*hl.store\(x",
    "x.scatter_add_(0, x[t, :].long(), x[t, :])": "add at indices with `hl.atomic_add",
    "x.scatter_reduce_(0, x[t, :].long(), x[t, :], 'sum')": "add at indices with `hl.atomic_add",
    "x.index_put_((x[t, 0].long(),), x[t, :], accumulate=True)": "add at indices with `hl.atomic_add",
    "x.copy_(x[t, :])": r"store into a tile of the host tensor, as in `x\[tile\] = value`",
    "for u in hl.tile(8):\n    out[t, u] = (u.index <= t.index).float()": r"\[u\] and \[t\] in le; .*write `\[:, None\]`",
    "for u in hl.tile(x[t, 0].long()):\n    out[t, u] = 0.0": "got int64.*hl.jagged_tile; .*block_size=1.*`tile.begin`",
    "out[t, 0] = x[t, x[t, 0].long()]": r"select an outer product; to pair them.*`flat = x.view\(-1\)` before the loop",
    "for i, u in enumerate(hl.tile(8)):\n    out[t, :] = 1.0": "with nothing around it; tile.id",
}


@pytest.mark.parametrize("body", DEVICE)
def test_in_device_code(body: str, tmp_path: Path) -> None:
    with pytest.raises(exc.BaseError, match=f"{DEVICE[body]}(?s:.*)wrong_kernel.py"):
        kernel_of(tmp_path, body)(X)


#: What the messages say to write.
WRITTEN = {
    "out[t, :] = x[t, :] * s[()]": lambda x: x * 3,
    "hl.atomic_add(out, [t.index // 2, ...], x[t, :])": lambda x: torch.cat([x.view(4, 2, 8).sum(1), 0 * x[:4]]),
    "hl.store(out, [7 - t.index, ...], x[t, :])": lambda x: x.flip(0),
    "for u in hl.tile(8):\n    out[t, u] = (u.index <= t.index[:, None]).float()": lambda x: torch.ones_like(x).tril(),
}


@pytest.mark.parametrize("body", WRITTEN)
def test_remedies_run(body: str, tmp_path: Path) -> None:
    result = kernel_of(tmp_path, body, host="out = torch.zeros_like(x)", parameters="x, s")(X, torch.tensor(3.0))
    torch.testing.assert_close(result, WRITTEN[body](X))


def test_a_tensor_without_dimensions(tmp_path: Path) -> None:
    wrong = kernel_of(tmp_path, "out[t, :] = x[t, :] * s", parameters="x, s")
    with pytest.raises(exc.HostTensorDirectUsage, match=r"no dimensions.*as in `s\[\(\)\]`"):
        wrong(X, torch.tensor(3.0))


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("for row in x:\n    out = row", r"rows of a tensor.*hl.tile\(x.size\(0\)\)"),
        ("for q in hl.grid(x):\n    out[q] = 1.0", r"write hl.grid\(x.size\(\)\)"),
    ],
)
def test_in_host_code(host: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(exc.BaseError, match=text):
        kernel_of(tmp_path, "out[t, :] = x[t, :]", host)(X)


def test_a_list_for_a_tensor(tmp_path: Path) -> None:
    wrong = kernel_of(tmp_path, "out[t, :] = y[t, :]", parameters="x, y")
    with pytest.raises(exc.TypeInferenceError, match="'y' is a list of 2 items.*pass a tensor"):
        wrong(X, [[1.0], [2.0]])


class Methods:
    @helion.kernel
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x


@helion.kernel
def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + y[tile]
    return out


CALLS: dict[str, Any] = {
    "kernels are functions: put @staticmethod above": lambda: Methods().method(X),
    "unexpected keyword 'z'; it takes \\(x, y\\)": lambda: both(X, z=X),
    "missing a required argument: 'y'": lambda: both(X),
    "takes no grid; call both": lambda: both[(1,)](X, X),
    "autotune takes a tuple of the arguments, got Tensor; write autotune": lambda: both.autotune(X),
    "bind takes a tuple of the arguments": lambda: both.bind(X),
    "got staticmethod; put @staticmethod above @helion.kernel": lambda: helion.kernel(staticmethod(both.fn)),
    "in place of @classmethod": lambda: helion.kernel(classmethod(both.fn)),
    "got partial; decorate the function": lambda: helion.kernel(functools.partial(both.fn, X)),
}


@pytest.mark.parametrize("text", CALLS)
def test_of_calls_and_decorators(text: str) -> None:
    with pytest.raises(TypeError, match=text):
        CALLS[text]()


def test_a_lambda() -> None:
    with pytest.raises(exc.InvalidAPIUsage, match="A lambda cannot be a kernel"):
        helion.kernel(lambda x: x)(X)


def test_sizes_as_text() -> None:
    with pytest.raises(exc.InvalidConfig, match="must be a list of integers, got '8,8'"):
        helion.kernel(both.fn, config={"block_sizes": "8,8"})(X, X)


def test_no_gpu_to_tune_on(capsys: pytest.CaptureFixture[str]) -> None:
    helion.kernel(both.fn).autotune((X, X), effort="full")
    assert "helion: both: no GPU: nothing was measured, the default config is used" in capsys.readouterr().err


def test_a_slice_to_a_number_of_the_host(tmp_path: Path) -> None:
    with pytest.raises(exc.InvalidIndexingType, match="the slice k:, .*hl.specialize makes an argument or a size one"):
        kernel_of(tmp_path, "out[t, 0] = x[t, k:].sum(-1)", parameters="x, k")(X, 3)


def magnitudes(z: torch.Tensor) -> torch.Tensor:
    out = torch.empty([z.size(0)])
    for t in hl.tile(z.size(0)):
        re, im = hl.split(z[t, :])
        out[t] = re * re + im * im
    return out


def test_a_split_of_a_size_known_at_run_time_only_names_it() -> None:
    kernel = helion.kernel(magnitudes, static_shapes=False)
    with pytest.raises(exc.ShapeMismatch, match=r"z_size_1 \(2 in this call\) .* mark it with hl.specialize"):
        kernel.bind((torch.randn(8, 2),))


def rotated(x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows, block in hl.tile(x.size(), block_size=[None, 32]):
        out[rows, block] = hl.dot(x[rows, block], turn[:, :])
    return out


def test_a_tile_that_meets_a_size_known_at_run_time_only_names_it() -> None:
    args = (torch.randn(5, 64), torch.randn(32, 32))
    with pytest.raises(
        exc.ShapeMismatch, match=r"turn_size_0 \(32 in this call, as turn.size\(1\)\) .* mark it with hl.specialize"
    ):
        helion.kernel(rotated, static_shapes=False).bind(args)
    torch.testing.assert_close(helion.kernel(rotated)(*args), (args[0].view(5, 2, 32) @ args[1]).view(5, 64))


def sized_by_the_second(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        out[rows, :] = hl.zeros([x.size(1)]) + x[rows, :]
    return out


def merged_groups(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    rows, _, width = k.size()
    columns = hl.specialize(width) * 2
    out = torch.empty([rows, columns], device=k.device)
    for near in hl.tile(rows):
        out[near, :] = k[near, :, :].reshape(near, columns)
    return out


@pytest.mark.parametrize(
    ("function", "shapes", "said"),
    [
        (sized_by_the_second, ((6, 9), (6, 9)), r"grad_size_1 \(equal to x\.size\(1\) in this call\)"),
        (merged_groups, ((2, 5), (7, 2, 32)), r"q_size_0 \(equal to k\.size\(1\) in this call\) is known at run time"),
        (merged_groups, ((3, 5), (7, 2, 32)), r"\[near, 64\] in a reshape: k_size_1 is known at run time"),
    ],
)
def test_a_size_is_named_with_those_that_are_equal(
    function: Callable[..., Any], shapes: tuple[tuple[int, ...], ...], said: str
) -> None:
    """Equal sizes share a symbol, which has the name of the first one; the user may mean another one."""
    with pytest.raises((exc.ShapeSpecializingAllocation, exc.ShapeMismatch), match=said):
        helion.kernel(function, static_shapes=False).bind(tuple(map(torch.randn, shapes)))


def moments(x: torch.Tensor, state: torch.Tensor, beta: float) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        out[rows, :] = x[rows, :] * 2
    kept = beta * state + (1.0 - beta) * out.sum(0) / x.size(0)
    return out, kept.sqrt()


def test_computations_of_one_line_have_one_warning(capfd: pytest.CaptureFixture[str]) -> None:
    helion.kernel(moments).bind((torch.randn(5, 7), torch.randn(7), 0.5))
    said = capfd.readouterr().err
    assert said.count("WARNING[TensorOperationInWrapper]") == 2
    assert "]: torch.mul, torch.sum, torch.truediv, torch.add: host code computes this in launches of its own" in said
    carets = next(line for line in said.splitlines() if "^" in line)
    assert len(carets.strip()) == len("beta * state + (1.0 - beta) * out.sum(0) / x.size(0)")
    assert "]: torch.sqrt: host code computes this" in said
