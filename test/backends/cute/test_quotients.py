"""Quotients of epilogues, executed on the CPU with stand-ins for the DSL's functions, against exact ones."""

from __future__ import annotations

import pytest
import torch
from backends.cute import gemms
from backends.cute.test_epilogue import CUTE, CUTLASS, VALUES, Number, run

import helion
import helion.language as hl
from benchmarks.unfitted import CELLS
from helion.backends.cute.codegen.attention.formula import inverses, quotients
from helion.backends.cute.codegen.elements.quotients import has_inverse, is_hidden, quotient
from helion.backends.cute.plan.attention.operands import Source
from helion.backends.cute.plan.attention.records import Formula
from helion.backends.cute.plan.epilogue import Constant, Epilogue, EpilogueOperand, Instruction, constant
from helion.backends.cute.plan.records import GemmProblem

DIVISORS = (3.0, 0.7, -8.94427190999916, 1e-7, 123456.789, 49.0, 2.0**59 * 1.1)
SPECIAL = torch.tensor([0.0, float("inf"), -float("inf"), 3e38, -1e-30, 1.0, 49.0, 147.0])


def divided(divisor: float | int, *after: Instruction, output: str = "bfloat16") -> GemmProblem:
    over = constant(divisor) if isinstance(divisor, float) else divisor
    operands = (EpilogueOperand(name="share", kind="number", dtype="float32"),) if over == 1 else ()
    operands = (EpilogueOperand(name="bias", kind="row", dtype="float32"),) if over == 2 else operands
    first = Instruction("div", (0, 1 if isinstance(over, int) else over))
    return gemms.product(output=output, epilogue=Epilogue(operands=operands, instructions=(first, *after)))


@pytest.mark.parametrize("divisor", DIVISORS)
def test_quotients_by_constants(divisor: float) -> None:
    """The remainder makes them exact; where 16 bits are stored, two rounding errors stay."""
    values = torch.cat([torch.randn(20000) * 10 ** torch.linspace(-20, 20, 20000), VALUES, SPECIAL])
    wanted = values / torch.tensor(divisor)
    epilogue = divided(divisor).epilogue
    exact = run(epilogue, values, "float32")
    assert torch.equal(exact, wanted)
    near = run(epilogue, values, "bfloat16")
    finite = wanted.isfinite() & (wanted.abs() > 1e-37)
    torch.testing.assert_close(near[finite], wanted[finite], rtol=2**-22, atol=0)
    assert torch.equal(near[~wanted.isfinite()], wanted[~wanted.isfinite()])


def test_constants_that_have_no_inverse_are_divided_by() -> None:
    for text in ("0.0", "inf", "nan", "1e-30", "1e30", "0.25"):
        assert not has_inverse(Constant(text)), text
    assert has_inverse(constant(3.0)) and not has_inverse(1)


def test_steps_show_rounding_errors() -> None:
    """A product with the reciprocal of 49 has a floor of 0 for 49; so steps have the exact quotient."""
    floor, add = Instruction("floor", (1,)), Instruction("add", (1, constant(2.0)))
    last = Instruction("sub", (2, constant(1.0)))
    for after, output, hidden in (
        ((), "bfloat16", True),
        ((), "float16", True),
        ((), "float32", False),
        ((add,), "bfloat16", True),
        ((floor,), "bfloat16", False),
        ((add, Instruction("ge", (2, constant(1.0)))), "bfloat16", False),
        ((floor, last), "bfloat16", False),
    ):
        assert is_hidden(divided(49.0, *after, output=output), 1) == hidden
    whole = torch.arange(1.0, 4000.0)
    assert torch.equal(run(divided(49.0, floor).epilogue, whole), torch.floor(whole / 49.0))


@pytest.mark.parametrize("share", [0.9, 3.0, 1e-38, -1e38, 1e-41, 0.0, float("inf"), float("nan")])
def test_quotients_by_numbers_of_the_launch(share: float) -> None:
    """Their reciprocal is scaled, so that neither it nor the product leaves the range of fp32 before the quotient does."""
    problem = divided(1)
    lines = quotient(problem, 2, "found", ("x", "y"))
    assert sum("/" in line for line in lines) == 1 and "divisor_inverse" in lines[1]
    values = torch.cat([VALUES, SPECIAL])
    names = {"x": Number(values), "y": Number(torch.tensor(share)), "cutlass": CUTLASS, "cute": CUTE}
    exec("\n".join(lines), names)
    found, wanted = names["found"].held, values / torch.tensor(share)
    finite = wanted.isfinite() & (wanted.abs() > 1e-37)
    torch.testing.assert_close(found[finite], wanted[finite], rtol=2**-21, atol=0)
    torch.testing.assert_close(found[~wanted.isfinite()], wanted[~wanted.isfinite()], rtol=0, atol=0, equal_nan=True)


def test_other_divisors() -> None:
    """Those of each element take one instruction where rounding hides it, and are exact elsewhere."""
    assert "div.full" in quotient(divided(2), 2, "found", ("x", "y"))[0]
    assert quotient(divided(2, output="float32"), 2, "found", ("x", "y")) == []
    assert quotient(divided(0.25), 1, "found", ("x", "y")) == []
    assert quotient(divided(3.0, Instruction("add", (1, 0))), 2, "found", ("x", "y")) == []


@helion.kernel(backend="cute")
def shared_out(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, share: float) -> torch.Tensor:
    m, k = x.size()
    n = w.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], w[tile_k, tile_n])
        out[tile_m, tile_n] = ((acc + bias[tile_n]) / share).to(x.dtype)
    return out


def test_quotients_by_operands_have_no_branches() -> None:
    """An exact one branches for each element, and the elements of a thread wait for each other."""
    x, w, bias = torch.randn(64, 64), torch.randn(64, 128), torch.randn(128)
    for dtype, near in ((torch.bfloat16, True), (torch.float16, True), (torch.float32, False)):
        given = x.to(dtype), w.to(dtype), bias
        bound = shared_out.bind((*(t.to("meta") for t in given), 0.9), target="h200")
        text = bound.to_cute_code()
        assert ("divisor_inverse" in text) == near and "div.full" not in text, dtype
        wanted = (given[0].double() @ given[1].double() + bias.double()) / 0.9
        close = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-4}[dtype]
        torch.testing.assert_close(shared_out(*given, 0.9).double(), wanted, rtol=close, atol=close)


def divided_score(kind: str, *after: Instruction, dtype: str = "float32") -> Formula:
    source = Source(name="share", kind=kind, dtype=dtype)
    return Formula(sources=(source,), instructions=(Instruction("div", (0, 1)), *after), value=2 + len(after))


@pytest.mark.parametrize("share", [0.9, 3.0, 1e-38, -1e38, 1e-41, 0.0, float("inf"), float("nan")])
def test_scores_divided_by_numbers_of_the_launch(share: float) -> None:
    formula, name = divided_score("number"), "share_operand_value"
    (spelled,) = quotients(formula).values()
    values = torch.cat([VALUES, SPECIAL])
    names = {"x": Number(values), name: Number(torch.tensor(share)), "cutlass": CUTLASS, "cute": CUTE}
    exec("\n".join([*inverses(formula), f"found = {spelled('x', name)}"]), names)
    found, wanted = names["found"].held, values / torch.tensor(share)
    finite = wanted.isfinite() & (wanted.abs() > 1e-37)
    torch.testing.assert_close(found[finite], wanted[finite], rtol=2**-21, atol=0)
    torch.testing.assert_close(found[~wanted.isfinite()], wanted[~wanted.isfinite()], rtol=0, atol=0, equal_nan=True)


def test_scores_divided_by_other_values() -> None:
    """Those of each key take one instruction; where a step may depend on a quotient, it is exact."""
    of_key = divided_score("key")
    assert inverses(of_key) == [] and "div.full" in quotients(of_key)["div"]("x", "y")
    assert inverses(divided_score("number", dtype="int64")) == []
    for step in (Instruction("floor", (2,)), Instruction("lt", (2, constant(1.0)))):
        stepped = divided_score("number", step)
        assert quotients(stepped) == {} and inverses(stepped) == []


def test_powers_of_two_of_scores_are_one_instruction() -> None:
    """An exact one scales results below the normal numbers, in three instructions more for each element."""
    cell = CELLS["retention"]
    bound = helion.kernel(cell.kernel.fn, backend="cute").bind(cell.arguments("meta", False), target="h200")
    (power,) = [line for line in bound.to_cute_code().splitlines() if "exp2" in line and line.strip().startswith("x")]
    assert power.endswith("fastmath=True)")


@helion.kernel(backend="cute")
def capped_by_number(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cap: float, heat: torch.Tensor) -> torch.Tensor:
    b, m, d = q.size()
    d = hl.specialize(d)
    out = torch.empty_like(q)
    for tile_b, tile_m in hl.tile([b, m], block_size=[1, None]):
        i = tile_b.begin
        top = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total, acc = hl.zeros([tile_m]), hl.zeros([tile_m, d])
        for tile_n in hl.tile(k.size(1)):
            s = hl.dot(q[i, tile_m, :], k[i, tile_n, :].T)
            s = cap * torch.tanh(s / cap) / heat[tile_n][None, :]
            new = torch.maximum(top, torch.amax(s, -1))
            e, old = torch.exp(s - new[:, None]), torch.exp(top - new)
            total = total * old + e.sum(-1)
            acc = hl.dot(e.to(v.dtype), v[i, tile_n, :], acc=acc * old[:, None])
            top = new
        out[i, tile_m, :] = (acc / total[:, None]).to(q.dtype)
    return out


@pytest.mark.parametrize("target", ["h200", "sm_100"])
def test_scores_of_attention_have_no_exact_quotients(target: str) -> None:
    q, k, v = (torch.randn(2, n, 64, dtype=torch.bfloat16) for n in (70, 130, 130))
    heat = 0.5 + torch.rand(130)
    bound = capped_by_number.bind((*(x.to("meta") for x in (q, k, v)), 5.0, heat.to("meta")), target=target)
    text = bound.to_cute_code()
    (name,) = {line.split("_inverse = ")[0].split()[-1] for line in text.splitlines() if "_inverse = cutlass" in line}
    assert text.count(f"* {name}_scale * {name}_inverse") == 1 and text.count("div.full") == 1
    s = 5 * torch.tanh(q.double() @ k.double().mT / 5) / heat
    wanted = torch.softmax(s, -1) @ v.double()
    torch.testing.assert_close(capped_by_number(q, k, v, 5.0, heat).double(), wanted, rtol=2e-2, atol=2e-2)


@helion.kernel(backend="cute", static_shapes=True)
def scaled_scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Scores of heads that lie next to channels."""
    b, t, h, d = q.size()
    n = k.size(1)
    out = torch.empty([b, h, t, n], dtype=q.dtype, device=q.device)
    for tile_b, tile_h, tile_m, tile_n in hl.tile([b, h, t, n], block_size=[1, 1, None, None]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(d):
            acc = torch.addmm(
                acc, q[tile_b.begin, tile_m, tile_h.begin, tile_k], k[tile_b.begin, tile_n, tile_h.begin, tile_k].T
            )
        out[tile_b.begin, tile_h.begin, tile_m, tile_n] = (acc / d**0.5).to(q.dtype)
    return out


@pytest.mark.prove
def test_binaries_have_no_branch_for_each_quotient() -> None:
    q, k = (torch.empty(2, n, 4, 80, dtype=torch.bfloat16, device="meta") for n in (528, 1008))
    bound = scaled_scores.bind((q, k), target="h200")
    assert "FCHK" not in bound.resources(bound.seeds[0].config).sass_counts
