"""Sums over all rows, which a second grid loop adds up: values on simulated threads and the CPU, and refusals."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from backends.cute.edited_source import edited
from backends.cute.test_row_kernels import close, numbers, prepared, run
from backends.cute.test_row_sums import EPS, SPAN

import helion
import helion.language as hl
from helion import exc
from helion.backends.cute.codegen.rowwise import totals
from helion.backends.cute.codegen.rowwise.totals import parts_of
from helion.backends.cute.plan.rowwise.choice import RowChoice
from helion.backends.cute.roles.rowwise import program as r
from helion.backends.cute.verify.rowwise.simulate import RowCluster
from helion.backends.cute.verify.rowwise.verify import smaller


def gradients(x, w, grad, out, of_weight, of_bias, weights, biases):
    for block in hl.tile(x.size(0), block_size=SPAN):
        weight_acc, bias_acc = (hl.zeros([x.size(1)], dtype=torch.float32) for _ in range(2))
        for tile in hl.tile(block.begin, block.end):
            row, given = x[tile, :].to(torch.float32), grad[tile, :].to(torch.float32)
            scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + EPS)
            slope = given * w[:].to(torch.float32)
            out[tile, :] = (scale * slope - row * scale * scale * scale * (row * slope).mean(-1, keepdim=True)).to(
                out.dtype
            )
            weight_acc += (given * row * scale).sum(0)
            bias_acc += given.sum(0)
        weights[block.id, :] = weight_acc
        biases[block.id, :] = bias_acc
    hl.barrier()
    for columns in hl.tile(x.size(1)):
        weight_total, bias_total = (hl.zeros([columns], dtype=torch.float32) for _ in range(2))
        for lines in hl.tile(weights.size(0)):
            weight_total += weights[lines, columns].sum(0)
            bias_total += biases[lines, columns].sum(0)
        of_weight[columns] = weight_total.to(of_weight.dtype)
        of_bias[columns] = bias_total.to(of_bias.dtype)


def _arguments(m: int, n: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    x, grad, w = numbers(m, n, dtype=dtype), numbers(m, n, dtype=dtype, seed=1), numbers(n, dtype=dtype, seed=2)
    blocks = -(-m // SPAN)
    return (
        x,
        w,
        grad,
        torch.empty_like(x),
        torch.empty(n, dtype=dtype),
        torch.empty(n),
        *(torch.empty(blocks, n) for _ in range(2)),
    )


def _are_right(x, w, grad, out, of_weight, of_bias=None, *_) -> None:
    wide, given, slope = x.double(), grad.double(), grad.double() * w.double()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)
    assert close(out, scale * slope - wide * scale**3 * (wide * slope).mean(-1, keepdim=True))
    assert close(of_weight[None], (given * wide * scale).sum(0, keepdim=True))
    assert of_bias is None or close(of_bias[None], given.sum(0, keepdim=True))


@pytest.mark.parametrize(
    ("m", "n", "dtype", "warps"),
    [(11, 1000, torch.bfloat16, 4), (70, 257, torch.float32, 1), (140, 264, torch.float16, 1)],
)
def test_totals_of_columns(m: int, n: int, dtype: torch.dtype, warps: int) -> None:
    """One, two or four threads add up a column."""
    arguments = _arguments(m, n, dtype)
    choice = RowChoice(cluster=1, warps=warps, ctas_per_sm=1)
    assert parts_of(prepared(gradients, arguments, choice, SPAN)[1].problem) == {11: 1, 70: 2, 140: 4}[m]
    run(gradients, arguments, choice, SPAN)
    _are_right(*arguments)
    assert close(arguments[-1], _sums_of_blocks(arguments[2]))


@pytest.mark.parametrize(
    "choice",
    [
        RowChoice(cluster=1, warps=4, keep="shared", overlap=True),
        RowChoice(cluster=2, warps=8, ctas_per_sm=1, keep="shared", ahead=True),
        RowChoice(cluster=1, warps=4),
    ],
    ids=str,
)
def test_rows_of_hidden_sums_are_interleaved(choice: RowChoice) -> None:
    """A block has each third row; one has fewer than others."""
    arguments = _arguments(11, 1000, torch.bfloat16)
    run(gradients, arguments, choice, SPAN, hidden=True)
    _are_right(*arguments)
    grad = arguments[2].double()
    assert close(arguments[-1], torch.stack([grad[block::3].sum(0) for block in range(3)]))
    program = r.row_program(smaller(prepared(gradients, arguments, choice, SPAN, hidden=True)[1]))
    for seed in range(4):
        RowCluster(program, tiles=seed, seed=seed).run()


def _sums_of_blocks(rows: torch.Tensor) -> torch.Tensor:
    return torch.stack([each.sum(0) for each in rows.double().split(SPAN)])


def made(x, w, grad, out, of_weight):
    m, n = x.size(0), hl.specialize(x.size(1))
    block_m = hl.register_block_size(m)
    parts = torch.empty([helion.cdiv(m, block_m), n], dtype=torch.float32, device=x.device)
    for block in hl.tile(m, block_size=block_m):
        acc = hl.zeros([n], dtype=torch.float32)
        for tile in hl.tile(block.begin, block.end):
            row, given = x[tile, :].to(torch.float32), grad[tile, :].to(torch.float32)
            scale = torch.rsqrt((row * row).mean(-1, keepdim=True) + EPS)
            slope = given * w[:].to(torch.float32)
            out[tile, :] = (scale * slope - row * scale * scale * scale * (row * slope).mean(-1, keepdim=True)).to(
                out.dtype
            )
            acc += (given * row * scale).sum(0)
        parts[block.id, :] = acc
    hl.barrier()
    for columns in hl.tile(n):
        total = hl.zeros([columns], dtype=torch.float32)
        for lines in hl.tile(parts.size(0)):
            total += parts[lines, columns].sum(0)
        of_weight[columns] = total.to(of_weight.dtype)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_kernel_with_totals_runs_on_the_cpu(dynamic: bool) -> None:
    """Its facts, seeds and predictions are those of the loop over rows."""
    kernel = helion.kernel(made, backend="cute", static_shapes=not dynamic)
    for m in (37, 50):
        x, w, grad, out, of_weight, *_ = _arguments(m, 1000, torch.bfloat16)
        bound = kernel.bind((x, w, grad, out, of_weight), target="h100")
        assert "blocks of" in bound.seeds[0].reason
        kernel(x, w, grad, out, of_weight)
        _are_right(x, w, grad, out, of_weight)


def test_totals_of_as_many_columns_as_a_launch_gives(tmp_path: Path) -> None:
    """One plan serves rows of two lengths."""
    text = (IMPORTS + inspect.getsource(made)).replace("hl.zeros([n],", "torch.zeros_like(w[:],")
    changed = edited(text, "hl.specialize(x.size(1))", "x.size(1)", tmp_path / "changed.py").made
    kernel = helion.kernel(changed, backend="cute", static_shapes=False)
    bounds = set()
    for m, n in ((37, 1000), (50, 904)):
        x, w, grad, out, of_weight, *_ = _arguments(m, n, torch.bfloat16)
        of_weight = torch.empty(n)
        bounds.add(kernel.bind((x, w, grad, out, of_weight), target="h100"))
        kernel(x, w, grad, out, of_weight)
        _are_right(x, w, grad, out, of_weight)
    assert len(bounds) == 1


def test_sums_are_read_after_the_kernel_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    without = [line for line in totals.body(*_shape()) if "griddepcontrol_wait" not in line]
    monkeypatch.setattr(totals, "body", lambda *_: without)
    with pytest.raises(AssertionError, match="before the kernel of the rows has ended"):
        run(gradients, _arguments(11, 1000, torch.bfloat16), RowChoice(cluster=1, warps=4, ctas_per_sm=1), SPAN)


def _shape() -> tuple[Any, int, int]:
    problem = prepared(gradients, _arguments(11, 1000, torch.bfloat16), RowChoice(warps=4), SPAN)[1].problem
    return problem, totals.parts_of(problem), totals.width_of(problem)


VISIBLE = {
    "returned": ("total.to(of_weight.dtype)", "total.to(of_weight.dtype)\n    return parts"),
    "another name": ("    for block in hl.tile(m", "    other = parts\n    for block in hl.tile(m"),
    "a view": ("n], dtype=torch.float32, device=x.device)", "n], dtype=torch.float32, device=x.device)[:]"),
    "nothing": ("    hl.barrier()\n", "    hl.barrier()\n\n"),
}


@pytest.mark.parametrize("case", VISIBLE, ids=str)
def test_sums_of_blocks_that_others_see(case: str, tmp_path: Path) -> None:
    """Blocks have neighboring rows, unless host code allocates the tensor of their sums and does not name it again."""
    changed = edited(IMPORTS + inspect.getsource(made), *VISIBLE[case], tmp_path / "changed.py").made
    plan = helion.kernel(changed, backend="cute").bind(_arguments(37, 1000, torch.bfloat16)[:5], target="h100").plan()
    assert plan.rows.interleaved == (case == "nothing")


IMPORTS = "import torch\nimport helion\nimport helion.language as hl\n\nEPS = 1e-5\n\n\n"
REFUSED = {
    "lines": ("hl.tile(parts.size(0))", "hl.tile(1, parts.size(0))", "no plain tile loop"),
    "columns": ("for columns in hl.tile(n)", "for columns in hl.tile(8, n)", "no plain tile loop|does not cover"),
    "more lines": ("torch.empty([helion.cdiv(m, block_m),", "torch.zeros([helion.cdiv(m, block_m) + 1,", "one line for each"),
    "a factor": ("parts[lines, columns].sum(0)", "(2 * parts[lines, columns]).sum(0)", "what another loop has stored"),
    "another start": ("total = hl.zeros([columns], dtype=torch.float32)", "total = hl.full([columns], 1.0, dtype=torch.float32)", "begins at 0"),
    "another type": ("total.to(of_weight.dtype)", "total.to(torch.float16).to(of_weight.dtype)", "no sum"),
    "a maximum": ("parts[lines, columns].sum(0)", "parts[lines, columns].amax(0)", "one term"),
    "work after": ("total.to(of_weight.dtype)", "(total * 2).to(of_weight.dtype)", "no sum"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_refusals(case: str, tmp_path: Path) -> None:
    before, after, why = REFUSED[case]
    changed = edited(IMPORTS + inspect.getsource(made), before, after, tmp_path / "changed.py").made
    given = _arguments(37, 1000, torch.bfloat16)[:5]
    with pytest.raises(exc.CuteUnsupported, match=why):
        helion.kernel(changed, backend="cute").bind(given, target="h100")
