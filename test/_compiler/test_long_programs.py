"""Programs of many operations: no pass calls itself once for each, and work grows hardly faster than they do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from generated_source import load
from harness import program_of

import helion
from helion import exc
from helion._compiler.passes.always import order_memory
from helion._compiler.passes.analysis.accesses import Launched

KERNEL = """
def f(x):
    out = {out}
    for t in hl.tile(x.size(0)):
        v = x[t]
{body}    return out
"""


def kernel_of(directory: Path, name: str, out: str, lines: list[str]) -> helion.Kernel:
    body = "".join(f"        {line}\n" for line in lines)
    return helion.kernel(load(KERNEL.format(out=out, body=body), directory, name).f)


@pytest.mark.parametrize("out", ["x", "torch.empty_like(x)"])
def test_a_chain_between_a_load_and_a_store(out: str, tmp_path: Path) -> None:
    kernel = kernel_of(tmp_path, "chain", out, [*["v = v * 1.001 + 0.5"] * 600, "out[t] = v"])
    x = torch.randn(40)
    expected = x.double()
    for _ in range(600):
        expected = expected * 1.001 + 0.5
    torch.testing.assert_close(kernel(x.clone()).double(), expected, rtol=1e-4, atol=1e-4)


def test_a_chain_of_integers_in_place(tmp_path: Path) -> None:
    kernel = kernel_of(tmp_path, "integers", "x", [*["v = v + 3"] * 1000, "out[t] = v"])
    x = torch.arange(40)
    assert torch.equal(kernel(x.clone()), x + 3000)


def test_the_gradient_of_a_chain(tmp_path: Path) -> None:
    kernel = kernel_of(tmp_path, "gradient", "torch.empty_like(x)", [*["v = v * 1.001 + 0.5"] * 250, "out[t] = v"])
    x = torch.randn(40, requires_grad=True)
    kernel.differentiable()(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full([40], 1.001**250), rtol=1e-4, atol=1e-4)


def test_many_stores_to_one_tensor(tmp_path: Path) -> None:
    lines = [f"out[t, {i}] = v + {i}" for i in range(300)]
    x = torch.randn(40)
    got = kernel_of(tmp_path, "columns", "torch.empty([x.size(0), 300])", lines)(x)
    torch.testing.assert_close(got, x[:, None] + torch.arange(300))


@pytest.mark.parametrize(
    "line", ["out[t, {0}] = out[t, {1}] + 1", "x[t] = x[t] + {0}", "out[t.index, {0}] = out[t.index + 1, {1}]"]
)
def test_accesses_are_walked_a_few_times(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many barriers there are: each is found on one walk over a program without loops."""
    walks = []
    missing = order_memory._Flow.missing
    monkeypatch.setattr(order_memory._Flow, "missing", lambda self, body: walks.append(1) or missing(self, body))
    body = "".join(f"        {line.format(i, i + 1)}\n" for i in range(60))
    source = KERNEL.format(out="torch.zeros([x.size(0) + 1, 62])", body=body)
    program = program_of(load(source, tmp_path, "many").f, torch.empty(1000, device="meta"))
    lanes = {block.id: 64 for block in program.blocks}
    order_memory.order_memory(program, Launched(lanes=lanes, threads=128, steady=False))
    assert 1 <= len(walks) <= 2


def test_a_helper_that_calls_itself_without_end(tmp_path: Path) -> None:
    source = "def g(v):\n    return g(v + 1)\n" + KERNEL.format(
        out="torch.empty_like(x)", body="        out[t] = g(v)\n"
    )
    with pytest.raises(exc.TypeInferenceError, match="nested too deeply.*end the recursion") as caught:
        helion.kernel(load(source, tmp_path, "endless").f).bind((torch.randn(8),))
    assert "return g(v + 1)" in str(caught.value)


def test_an_expression_that_is_nested_too_deeply(tmp_path: Path) -> None:
    kernel = kernel_of(tmp_path, "deep", "torch.empty_like(x)", ["out[t] = " + " + ".join(["v"] * 1500)])
    with pytest.raises(exc.TypeInferenceError, match="split the expression into statements"):
        kernel.bind((torch.randn(8),))
