"""The operators of ``helion.ops`` in graphs, under transformations, and with wrong arguments."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ops.table import Case, cases
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import helion
from helion import exc, ops
from helion.ops._operators import Operator
from helion.ops.kernels import dropout, linear_cross_entropy, sampling

NAMES = [case.name for case in cases()]
FIRST = ("rms_norm, fp32",)


@functools.cache
def _cases() -> dict[str, Case]:
    return {case.name: case for case in cases()}


def _sampled(names: list[str]) -> list[Any]:
    return [name if name in FIRST else pytest.param(name, marks=pytest.mark.prove) for name in names]


class _Calls(TorchDispatchMode):
    """The calls of the library's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "helion_ops":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def _leaves(case: Case) -> list[Any]:
    return [a.detach().requires_grad_() if at in case.differentiated else a for at, a in enumerate(case.args)]


def _utilities(args: tuple[Any, ...]) -> Any:
    """Return the tests that torch can run: its test of schemas multiplies the arguments, and copies them by strides."""
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if all("float8" not in str(t.dtype) and t.numel() for t in tensors):
        return "ALL"
    return ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")


@pytest.mark.prove
@pytest.mark.parametrize("name", NAMES)
def test_opcheck(name: str) -> None:
    """Check schema, fake results, autograd and dynamic shapes of every operator, its backward among them."""
    case = _cases()[name]
    with _Calls() as seen:
        result = case.op(*_leaves(case))
        results = result if isinstance(result, tuple) else (result,)
        if case.differentiated:
            torch.autograd.backward(results, [torch.ones_like(r) for r in results])
    assert seen.calls
    for operator, args in seen.calls:
        if "_backward" in operator.name():  # has no gradients of its own
            args = tuple(a.detach() if isinstance(a, torch.Tensor) else a for a in args)
        torch.library.opcheck(operator, args, test_utils=_utilities(args))


@pytest.mark.parametrize("name", _sampled(NAMES))
def test_one_graph(name: str) -> None:
    """Compile without graph breaks, and get the same results and gradients."""
    case = _cases()[name]
    torch.compiler.reset()  # partial functions share the code that torch keeps graphs of
    compiled = torch.compile(case.op, fullgraph=True, dynamic=True, backend="aot_eager")
    found: list[list[torch.Tensor]] = []
    for function in (case.op, compiled):
        leaves = _leaves(case)
        result = function(*leaves)
        results = list(result if isinstance(result, tuple) else (result,))
        if case.differentiated:
            wanted = [leaves[at] for at in case.differentiated]
            results += torch.autograd.grad(results, wanted, [torch.ones_like(r) for r in results])
        found.append(results)
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_an_op_is_imported_when_it_is_first_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"rms_norm", "attention", "register_all"} <= set(dir(ops))
    softmax = ops.softmax
    monkeypatch.delattr(ops, "softmax")
    x = torch.randn(3, 33)
    compiled = torch.compile(lambda x: ops.softmax(x), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), softmax(x))
    assert ops.softmax is softmax
    with pytest.raises(AttributeError, match="has no attribute 'soft_max'; it has .*softmax"):
        ops.soft_max  # noqa: B018
    ops.register_all()


def test_names_for_type_checkers_are_those_at_run_time() -> None:
    tree = ast.parse(inspect.getsource(ops))
    declared = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module.startswith(("kernels.", "patching"))
        for alias in node.names
    }
    assert {name: f"{getattr(ops, name).__module__}" for name in set(dir(ops)) - {"register_all"}} == {
        name: f"helion.ops.{module}" for name, module in declared.items()
    }


def test_any_batch_size_is_one_graph() -> None:
    graphs = 0

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return graph.forward

    compiled = torch.compile(ops.softmax, fullgraph=True, dynamic=True, backend=backend)
    for batch in (3, 5, 8):
        x = torch.randn(batch, 2, 33)
        torch.testing.assert_close(compiled(x), x.softmax(-1))
    assert graphs == 1


def test_export() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return ops.rms_norm(x, weight)

    x, weight = torch.randn(4, 33), torch.randn(33)
    batch = torch.export.Dim("batch")
    program = torch.export.export(Model(), (x, weight), dynamic_shapes=({0: batch}, None))
    x = torch.randn(7, 33)
    torch.testing.assert_close(program.module()(x, weight), ops.rms_norm(x, weight))


@pytest.mark.cxx
@pytest.mark.prove
def test_a_package_of_aot_inductor(tmp_path: Path) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.rand(33) + 0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ops.softmax(ops.rms_norm(x, self.weight))

    block, shapes = Block(), {"x": {0: torch.export.Dim("batch")}}
    exported = torch.export.export(block, (torch.randn(3, 33),), dynamic_shapes=shapes)
    file = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "block.pt2"))
    loaded, x = torch._inductor.aoti_load_package(file), torch.randn(5, 33) + 0.5
    torch.testing.assert_close(loaded(x), block(x))


def test_second_derivatives_are_refused() -> None:
    x = torch.randn(3, 33, requires_grad=True)
    (grad,) = torch.autograd.grad(ops.softmax(x).square().sum(), x, create_graph=True)
    with pytest.raises(exc.AutodiffNotSupported, match="softmax_backward computes; an op can be differentiated once"):
        grad.sum().backward()


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_runs_the_op_for_each_element() -> None:
    x, weight = torch.randn(3, 4, 33), torch.randn(33)
    torch.testing.assert_close(torch.vmap(ops.rms_norm, in_dims=(0, None))(x, weight), ops.rms_norm(x, weight))


@pytest.mark.parametrize("columns", [31, 36])
def test_dropout(columns: int) -> None:
    x, residual = torch.randn(40, columns).add(2).requires_grad_(), torch.randn(40, columns)
    bias = torch.randn(columns).requires_grad_()
    torch.manual_seed(3)
    out = ops.bias_dropout_residual(x, bias, residual, p=0.25)
    kept = (out - residual).abs() > 1e-6
    for part in kept.chunk(4, 1):
        assert 0.62 < part.double().mean() < 0.88
    torch.testing.assert_close(out, residual + torch.where(kept, (x + bias) / 0.75, 0))
    given = torch.randn_like(out)
    found = torch.autograd.grad(out, (x, bias), given)
    expected = torch.where(kept, given / 0.75, 0)
    torch.testing.assert_close(found, (expected, expected.sum(0)))
    torch.manual_seed(3)
    assert torch.equal(ops.bias_dropout_residual(x, bias, residual, p=0.25), out)
    assert not torch.equal(ops.bias_dropout_residual(x, bias, residual, p=0.25), out)
    torch.testing.assert_close(ops.bias_dropout_residual(x, None, residual, p=0.5, training=False), x + residual)


@pytest.mark.parametrize("rows", [0, 32])
def test_dropout_of_few_rows_adds_up_the_gradient_of_the_bias_in_one_kernel(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dropout, "block_sums_kernel", None if rows else dropout.block_sums_kernel)
    x, bias = torch.randn(rows, 36).bfloat16().requires_grad_(), torch.randn(36).half().requires_grad_()
    out = ops.bias_dropout_residual(x, bias, torch.zeros(rows, 36), p=0.25)
    given = torch.randn_like(out).add(0.5)
    of_x, of_bias = torch.autograd.grad(out, (x, bias), given)
    expected = torch.where(out != 0, given / 0.75, 0)
    torch.testing.assert_close(of_x, expected.bfloat16())
    torch.testing.assert_close(of_bias, expected.sum(0).half())


def test_dropout_loads_all_pieces_before_it_stores() -> None:
    x, seed = torch.empty(32, 4, 64, dtype=torch.bfloat16), torch.empty(1, dtype=torch.int64)
    forward = (dropout.dropout_kernel, (x, x[0], x, seed, 0.1, True))
    backward = (dropout.dropout_backward_kernel, (x, seed, 0.1, True, x.dtype, x.dtype, 16))
    for kernel, args in (forward, backward):
        code = kernel.bind(args, target="h200").to_code()
        assert code.rindex("tl.load(") < code.index("tl.store(")


def _frequencies(logits: torch.Tensor, **options: Any) -> torch.Tensor:
    """Return the frequencies of the tokens of one row in 2000 samples."""
    torch.manual_seed(5)
    tokens = ops.sample(logits.expand(2000, -1), **options)
    return torch.bincount(tokens, minlength=logits.numel()).double() / 2000


def _close_to(frequencies: torch.Tensor, expected: torch.Tensor) -> bool:
    """Return whether frequencies are within 5 standard deviations, and 0 where they must be."""
    deviation = (expected * (1 - expected) / 2000).sqrt()
    return bool(((frequencies - expected).abs() <= 5 * deviation).all())


@pytest.fixture
def in_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernels take many rows at once where they can."""
    for name, blocks in (("sample_kernel", [64]), ("best_groups_kernel", [64]), ("sample_groups_kernel", [64])):
        function = getattr(sampling, name).fn
        config = helion.Config(block_sizes=blocks)
        monkeypatch.setattr(sampling, name, helion.kernel(config=config, static_shapes=False)(function))


@pytest.mark.prove
@pytest.mark.usefixtures("in_many_rows")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_samples_have_the_probabilities_of_the_kept_tokens(dtype: torch.dtype) -> None:
    logits = torch.linspace(-3, 2, 23).roll(9).to(dtype)
    logits[4] = float("-inf")
    p = (logits.double() / 0.7).softmax(-1)
    assert _close_to(_frequencies(logits, temperature=0.7), p)
    best = p.argsort(descending=True)
    of_five = torch.zeros_like(p).index_put((best[:5],), p[best[:5]])
    of_five /= of_five.sum()
    assert _close_to(_frequencies(logits, temperature=0.7, top_k=5), of_five)
    reached = int((of_five[best].cumsum(0) < 0.8).sum()) + 1
    kept = torch.zeros_like(p).index_put((best[:reached],), of_five[best[:reached]])
    assert reached == 4
    assert _close_to(_frequencies(logits, temperature=0.7, top_k=5, top_p=0.8), kept / kept.sum())


@pytest.mark.parametrize("options", [{"top_p": 0.3}, {"top_k": 90}, {"top_k": 3000, "top_p": 0.5}], ids=str)
def test_samples_of_many_tokens_are_kept_ones(options: dict[str, Any]) -> None:
    """Take rows of several parts, and more groups with the largest tokens than a program reads at once."""
    torch.manual_seed(5)
    logits = (torch.randn(2, 2 * sampling.PART + 77) * 2 + 1).bfloat16()
    best, order = logits.double().sort(descending=True)
    kept = best >= best[:, options.get("top_k", best.size(1)) - 1, None]
    p = torch.where(kept, best, -torch.inf).softmax(-1)
    reached = (p.cumsum(-1) - p < options.get("top_p", 2.0)).sum(-1) - 1
    kept &= best >= best.gather(1, reached[:, None])
    for _ in range(3):
        tokens = ops.sample(logits, **options)
        assert kept.gather(1, (order == tokens[:, None]).int().argmax(-1)[:, None]).all()


@pytest.mark.usefixtures("in_many_rows")
def test_rows_have_options_of_their_own() -> None:
    logits = torch.tensor([1.0, 1.0, 0.0, -0.0, -5.0]).expand(4, 24, 5)
    torch.manual_seed(5)
    rows = [[0.0, 1.0, 1.0, 1.0], [5, 1, 3, 9], [1.0, 1.0, 1.0, 0.7]]
    dtypes = torch.float32, torch.int64, torch.float32
    options = [torch.tensor(r, dtype=t)[:, None].expand(4, 24) for r, t in zip(rows, dtypes, strict=True)]
    tokens = ops.sample(logits, temperature=options[0], top_k=options[1], top_p=options[2])
    assert [row.unique().tolist() for row in tokens] == [[0, 1], [0, 1], [0, 1, 2, 3], [0, 1]]
    torch.manual_seed(5)
    assert torch.equal(ops.sample(logits, temperature=options[0], top_k=options[1], top_p=options[2]), tokens)


def test_a_profile_names_the_op() -> None:
    x = torch.randn(3, 33)
    ops.softmax(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        ops.softmax(x)
    assert "helion_ops::softmax" in {event.key for event in seen.key_averages()}


def test_the_dispatcher_is_asked_only_where_it_has_something_to_do() -> None:
    x, weight = torch.randn(3, 33), torch.nn.Parameter(torch.randn(33))
    expected = torch.nn.functional.rms_norm(x, [33], weight.detach(), 1e-6)
    asked = []
    rms_norm = Operator.__new__(Operator)
    rms_norm.direct = lambda *args: asked.append("kernel") or torch.ops.helion_ops.rms_norm(*args)
    rms_norm.recorded = lambda *args: asked.append("autograd") or torch.ops.helion_ops.rms_norm(*args)
    rms_norm.overload = lambda *args: asked.append("dispatcher") or torch.ops.helion_ops.rms_norm(*args)

    def call(x: torch.Tensor) -> tuple[str, torch.Tensor]:
        result = rms_norm(x, weight, 1e-6)
        return asked.pop(), result

    with torch.no_grad():
        assert call(x)[0] == "kernel"
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert call(x)[0] == "dispatcher"
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            assert call(x)[0] == "dispatcher"
        assert call(x.to("meta"))[0] == "dispatcher"
    found, result = call(x)
    assert found == "autograd"
    torch.testing.assert_close(result, expected)
    assert result.requires_grad
    with torch.autograd.forward_ad.dual_level():
        assert call(x)[0] == "dispatcher"
    rms_norm.recorded = None
    assert call(x)[0] == "dispatcher"


def test_gradients_are_the_same_with_and_without_the_dispatcher() -> None:
    """Without it a call is a node of autograd of its own, which still refuses second derivatives."""
    inputs = [torch.randn(5, 33).requires_grad_(), torch.randn(5, 33), torch.randn(33).requires_grad_()]
    direct, dispatched = ops.add_rms_norm(*inputs), torch.ops.helion_ops.add_rms_norm(*inputs, 1e-6)
    names = [type(found[0].grad_fn).__name__ for found in (direct, dispatched)]
    assert names[0] == "helion_ops_add_rms_normBackward" != names[1]
    given = [torch.randn(5, 33), torch.randn(5, 33)]
    wanted = inputs[0], inputs[2]
    for got, expected in zip(
        torch.autograd.grad(direct, wanted, given), torch.autograd.grad(dispatched, wanted, given), strict=True
    ):
        assert torch.equal(got, expected)
    (first,) = torch.autograd.grad(ops.softmax(inputs[0]).square().sum(), inputs[0], create_graph=True)
    with pytest.raises(exc.AutodiffNotSupported, match="differentiated once"):
        first.sum().backward()


def test_a_label_that_is_no_class_gives_nan() -> None:
    losses = ops.cross_entropy(torch.randn(3, 7), torch.tensor([0, 7, -1]), reduction="none")
    assert losses.isnan().tolist() == [False, True, True]


def _linear(dtype: torch.dtype, rows: int = 150, n: int = 67) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return `x`, a weight and labels, of which some are 3."""
    torch.manual_seed(3)
    x, weight = (torch.randn(size, 20).add(0.1).mul(0.5).to(dtype).requires_grad_() for size in (rows, n))
    labels = torch.randint(n, [rows])
    labels[5:9] = 3
    return x, weight, labels


@pytest.mark.parametrize(
    ("dtype", "reduction", "tolerance"),
    [
        (torch.float32, "mean", 1e-5),
        (torch.float32, "none", 1e-5),
        (torch.bfloat16, "sum", 2e-2),
        (torch.float16, "mean", 2e-3),  # a weight of the loss as in loss scaling keeps the gradients in range
    ],
)
def test_a_linear_loss_in_parts(
    dtype: torch.dtype, reduction: str, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take gradients of logits that are held in parts of 64 rows, with padded rows and an ignored class."""
    monkeypatch.setattr(linear_cross_entropy, "LOGITS_AT_ONCE", 1)
    x, weight, labels = _linear(dtype)
    options: Any = {"ignore_index": 3, "reduction": reduction}
    exact = [t.detach().double().requires_grad_() for t in (x, weight)]
    loss = ops.linear_cross_entropy(x, weight, labels, **options)
    expected = torch.nn.functional.cross_entropy(exact[0] @ exact[1].T, labels, **options)
    given = torch.rand_like(loss) + (2.0**14 if dtype == torch.float16 else 0.5)
    found = torch.autograd.grad(loss, [x, weight], given)
    for got, right in zip(found, torch.autograd.grad(expected, exact, given.double()), strict=True):
        assert (got - right).abs().max() <= tolerance * right.abs().max()
    torch.testing.assert_close(loss.double(), expected, rtol=tolerance, atol=tolerance)


def test_a_linear_loss_of_rows_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, labels = _linear(torch.float32)
    monkeypatch.setattr(linear_cross_entropy, "CACHED_BYTES", 1)
    losses = ops.linear_cross_entropy(x.detach(), weight.detach(), labels, ignore_index=3, reduction="none")
    expected = torch.nn.functional.cross_entropy(x @ weight.T, labels, ignore_index=3, reduction="none")
    torch.testing.assert_close(losses, expected)


def test_a_linear_loss_gives_its_gradients_away_once() -> None:
    x, weight, labels = _linear(torch.float32)
    loss = ops.linear_cross_entropy(x, weight, labels)
    first = torch.autograd.grad(loss, [x, weight], torch.tensor(3.0), retain_graph=True)
    kept = [each.clone() for each in first]
    second = torch.autograd.grad(loss, [x, weight], torch.tensor(0.5))
    torch.testing.assert_close(first, tuple(kept), rtol=0, atol=0)
    torch.testing.assert_close([6 * each for each in second], kept)


def test_a_linear_loss_computes_wanted_gradients_only() -> None:
    reduced = torch.ops.helion_ops.reduced_linear_cross_entropy.default
    for wanted in ((True, False), (False, True), (False, False)):
        with FakeTensorMode(allow_non_fake_inputs=True), _Calls() as seen:
            x, weight, labels = _linear(torch.float32)
            ops.linear_cross_entropy(x.requires_grad_(wanted[0]), weight.requires_grad_(wanted[1]), labels)
        (operator, args), *after = seen.calls  # without gradients another operator adds up the losses
        assert (operator is reduced) == any(wanted) and len(after) == (not any(wanted))
        assert operator is not reduced or args[-1] == list(wanted)
    x, weight, labels = _linear(torch.float32)
    right = torch.autograd.grad(ops.linear_cross_entropy(x, weight, labels), [x, weight])
    for at, found in enumerate([(x, weight.detach()), (x.detach(), weight)]):
        loss, *gradients = reduced(*found, labels, -100, True, [at == 0, at == 1])
        assert [each.numel() > 0 for each in gradients] == [at == 0, at == 1]
        torch.testing.assert_close(torch.autograd.grad(loss, found[at])[0], right[at])


@pytest.mark.parametrize("batched", [(0, None), (None, 0), pytest.param((0, 0), marks=pytest.mark.prove)])
def test_gradients_of_linear_losses_under_vmap(batched: tuple[int | None, int | None]) -> None:
    """Get gradients of arguments that do not require one while vmap hides their batch."""
    x, weight, labels = _linear(torch.float32, rows=9, n=19)
    sizes = [(2, -1, -1) if at == 0 else (-1, -1) for at in batched]
    leaves = [t.detach().expand(size).clone().requires_grad_() for t, size in zip((x, weight), sizes, strict=True)]
    losses = torch.vmap(lambda x, weight: ops.linear_cross_entropy(x, weight, labels), in_dims=batched)(*leaves)
    found = torch.autograd.grad(losses.sum(), leaves)
    right = torch.autograd.grad(ops.linear_cross_entropy(x, weight, labels), [x, weight])
    for got, each, at in zip(found, right, batched, strict=True):
        torch.testing.assert_close(got, 2 * each if at is None else each.expand(2, -1, -1))


def test_a_linear_loss_of_ignored_rows_has_no_gradient() -> None:
    x, weight, labels = _linear(torch.float32)
    loss = ops.linear_cross_entropy(x, weight, torch.full_like(labels, -100))
    assert loss.isnan()
    assert [each.abs().max() for each in torch.autograd.grad(loss, [x, weight])] == [0, 0]


def test_a_linear_loss_is_differentiated_once() -> None:
    x, weight, labels = _linear(torch.float32)
    (grad,) = torch.autograd.grad(ops.linear_cross_entropy(x, weight, labels), x, create_graph=True)
    with pytest.raises(exc.AutodiffNotSupported, match="reduced_linear_cross_entropy_backward computes"):
        grad.sum().backward()


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    ops.layer_norm(torch.randn(3, 19), torch.randn(19))
    assert capfd.readouterr() == ("", "")


X, W = torch.randn(4, 33), torch.randn(33)
COS = torch.randn(9, 4)
HEADS = torch.randn(9, 2, 8)
LABELS = torch.zeros(4, dtype=torch.int64)
QKV = torch.randn(1, 2, 9, 8)
F8 = X.to(torch.float8_e4m3fn)
WRONG: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
    (ops.rms_norm, (X.double(), W), "rms_norm: argument 'x' must be of dtype bfloat16, float16, float32, got float64"),
    (ops.rms_norm, (X, W[:5]), r"rms_norm: argument 'weight' must be of shape \[33\], got shape \[5\]"),
    (ops.rms_norm, (X, 1.0), "rms_norm: argument 'weight' must be a tensor, got float"),
    (ops.rms_norm, (X, W.to("meta")), "rms_norm: argument 'weight' must be on cpu, got a tensor on meta"),
    (ops.rms_norm, (X[0, 0], W), r"'x' must be of at least 1 dimension, got shape \[\]"),
    (ops.rms_norm, (X[:, :0], W[:0]), r"'x' must be of at least one column, got shape \[4, 0\]"),
    (ops.add_rms_norm, (X, X[:2], W), r"'residual' must be of shape \[4, 33\], got shape \[2, 33\]"),
    (ops.layer_norm, (X, W, W.int()), "layer_norm: argument 'bias' must be of dtype .* got int32"),
    (ops.add_layer_norm, (X, X.T, W, W), r"'residual' must be of shape \[4, 33\], got shape \[33, 4\]"),
    (ops.softmax, (X.int(),), "softmax: argument 'x' must be of dtype .* got int32"),
    (ops.cross_entropy, (X, LABELS[:3]), r"'labels' must be of shape \[4\], got shape \[3\]"),
    (ops.cross_entropy, (X, LABELS.float()), "'labels' must be of dtype int32, int64, got float32"),
    (functools.partial(ops.cross_entropy, reduction="max"), (X, LABELS), "'mean', 'sum' or 'none', got 'max'"),
    (functools.partial(ops.cross_entropy, label_smoothing=2), (X, LABELS), "must be from 0 to 1, got 2"),
    (ops.swiglu, (X, X[:, :5]), r"swiglu: argument 'up' must be of shape \[4, 33\], got shape \[4, 5\]"),
    (functools.partial(ops.geglu, approximate="x"), (X, X), "'approximate' must be 'none' or 'tanh', got 'x'"),
    (ops.rope, (HEADS[..., :7], COS, COS), "'x' must be of an even number of features, got 7 features"),
    (ops.rope, (HEADS, COS[:5], COS[:5]), "'cos' must be of at least 9 rows, one per token, got 5 rows"),
    (ops.rope, (HEADS, COS, COS[:, :2]), r"'sin' must be of shape \[9, 4\], got shape \[9, 2\]"),
    (ops.rope, (HEADS, COS, COS, LABELS), r"'positions' must be of shape \[9\], got shape \[4\]"),
    (functools.partial(ops.bias_dropout_residual, p=1.0), (X, W, X), "'p' must be from 0 to less than 1, got 1.0"),
    (ops.attention, (QKV, QKV[0], QKV), r"'k' must be of 4 dimensions, got shape \[2, 9, 8\]"),
    (ops.attention, (QKV, QKV[..., :5], QKV), r"'k' must be of shape \[1, 2, 9, 8\], got shape \[1, 2, 9, 5\]"),
    (ops.attention, (QKV, QKV.half(), QKV), "'k' must be of dtype float32, got float16"),
    (ops.attention, (QKV[:, :1], QKV, QKV), "'k' must be of a number of heads that divides 1, got 2 heads"),
    (ops.attention, (QKV, QKV[:, :, :0], QKV[:, :, :0]), "'k' must be of at least one key"),
    (functools.partial(ops.attention, window=3), (QKV, QKV, QKV), "'window' must be above 0, and only with causal"),
    (functools.partial(ops.attention, causal=True), (QKV, *(QKV[:, :, :5],) * 2), "at most 5 queries if .* got 9"),
    (functools.partial(ops.attention, softcap=0.0), (QKV, QKV, QKV), "'softcap' must be above 0, got 0.0"),
    (functools.partial(ops.attention, sinks=W), (QKV, QKV, QKV), r"'sinks' must be of shape \[2\], got shape \[33\]"),
    (ops.varlen_attention, (HEADS, HEADS[:5], HEADS[:5], LABELS), "'k_offsets' must be given for 9 queries and 5 keys"),
    (ops.varlen_attention, (HEADS, HEADS, HEADS, W), "'offsets' must be of dtype int32, int64, got float32"),
    (ops.varlen_attention, (HEADS[:, :1], HEADS, HEADS, LABELS), "a number of heads that divides 1, got 2 heads"),
    (functools.partial(ops.varlen_attention, window=3), (HEADS, HEADS, HEADS, LABELS), "'window' must be above 0, and"),
    (ops.qk_norm_rope, (HEADS, HEADS[:5], W, W, COS, COS), r"'k' must be of shape \[9, 2, 8\], got shape \[5, 2, 8\]"),
    (ops.qk_norm_rope, (HEADS, HEADS, W, W, COS, COS), r"'q_weight' must be of shape \[8\], got shape \[33\]"),
    (ops.linear_cross_entropy, (X, W, LABELS), r"'weight' must be of 2 dimensions, got shape \[33\]"),
    (ops.linear_cross_entropy, (X, X[:, :4], LABELS), r"'weight' must be of shape \[4, 33\], got shape \[4, 4\]"),
    (ops.int8_linear, (X, X, W), "'weight' must be of dtype int8, got float32"),
    (ops.int8_linear, (X, X.char(), W), r"'scale' must be of shape \[4\], got shape \[33\]"),
    (ops.route, (X, 34), "'count' must be from 1 to 33, got 34"),
    (ops.grouped_matmul, (X, QKV, LABELS), r"'weight' must be of 3 dimensions, got shape \[1, 2, 9, 8\]"),
    (ops.grouped_matmul, (X, X.T[None], LABELS), r"'offsets' must be of shape \[2\], got shape \[4\]"),
    (
        ops.moe,
        (X, X[:, :2], LABELS[:, None], QKV[0], QKV[0]),
        r"'indices' must be of shape \[4, 2\], got shape \[4, 1\]",
    ),
    (ops.jagged_mean, (X, LABELS[:0]), r"'offsets' must be of at least one column, got shape \[0\]"),
    (ops.jagged_softmax, (X, X), "'offsets' must be of dtype int32, int64, got float32"),
    (
        functools.partial(ops.embedding_bag, mode="max"),
        (X, LABELS, LABELS),
        "'mode' must be 'sum' or 'mean', got 'max'",
    ),
    (ops.decode, (HEADS, QKV, QKV, LABELS), r"'k' must be of shape \[9, 2, 9, 8\], got shape \[1, 2, 9, 8\]"),
    (
        ops.paged_decode,
        (HEADS, QKV.mT, QKV, X, W),
        r"'k_cache' must be of shape \[1, 2, 8, 8\], got shape \[1, 2, 8, 9\]",
    ),
    (
        ops.paged_decode,
        (HEADS[:, :1], QKV, QKV, X, W),
        "'k_cache' must be of a number of heads that divides 1, got 9 heads",
    ),
    (
        functools.partial(ops.latent_decode, width=8, scale=1.0),
        (HEADS, HEADS, X.new_zeros(9, 2, dtype=torch.int32), X.new_zeros(9, dtype=torch.int32)),
        "'width' must be from 1 to 7, got 8",
    ),
    (
        ops.gated_delta_rule,
        (QKV, QKV, QKV[:, :1], W, W),
        "'q' must be of a number of heads that divides 1, got 2 heads",
    ),
    (ops.gated_delta_rule, (QKV, QKV, QKV, QKV[..., 0], W), r"'beta' must be of shape \[1, 2, 9\], got shape \[33\]"),
    (functools.partial(ops.sample, temperature=-1.0), (X,), "'temperature' must be at least 0, got -1.0"),
    (functools.partial(ops.sample, top_k=0), (X,), "'top_k' must be at least 1, got 0"),
    (functools.partial(ops.sample, top_p=1.5), (X,), "'top_p' must be above 0 and at most 1, got 1.5"),
    (functools.partial(ops.sample, top_k=LABELS[:2]), (X,), r"'top_k' must be of shape \[4\], got shape \[2\]"),
    (functools.partial(ops.sample, top_p=X[:, 0].half()), (X,), "'top_p' must be of dtype float32, got float16"),
    (ops.linear_attention, (QKV, QKV, QKV, QKV), r"'decay' must be of shape \[1, 2, 9\], got shape \[1, 2, 9, 8\]"),
    (ops.selective_scan, (HEADS, HEADS, X, HEADS, HEADS, W), r"'a' must be of shape \[8, 33\], got shape \[4, 33\]"),
    (ops.quantize_fp8, (X, torch.int8), "'dtype' must be torch.float8_e4m3fn or torch.float8_e5m2, got torch.int8"),
    (functools.partial(ops.quantize_fp8, group=5), (X,), "'group' must be None, or a divisor of the 33 columns, got 5"),
    (functools.partial(ops.swiglu_fp8, group=0), (X, X), "swiglu_fp8: argument 'group' must be None, or a divisor"),
    (functools.partial(ops.quantize_fp8_blocks, block=48), (X,), "'block' must be a power of two, at least 16, got 48"),
    (
        ops.block_scaled_matmul,
        (F8, F8, X[:, :2], X[:1, :1]),
        r"'x_scale' must be of shape \[4, 1\], got shape \[4, 2\]",
    ),
    (ops.quantize_int4, (X,), "'group' must be a power of two, at least 32, that divides the 33 columns, got 128"),
    (ops.int4_linear, (X[:, :32], X.char(), W), r"'packed' must be of shape \[4, 16\], got shape \[4, 33\]"),
    (ops.int4_linear, (X[:, :32], X.char()[:, :16], X[:, :3]), "a number of groups that divides the 32 columns, got 3"),
    (
        ops.int4_linear,
        (X[:, :32], X.char()[:, :16], X[:, :2]),
        "'group' must be a power of two, at least 32, .* got 16",
    ),
    (ops.rms_norm_fp8, (X, W[None]), r"'weight' must be of shape \[33\], got shape \[1, 33\]"),
    (ops.scaled_matmul, (X, F8, W, W), "'x' must be of dtype float8_e4m3fn, float8_e5m2, got float32"),
    (ops.scaled_matmul, (F8, F8[:, :5], X[:, 0], X[:, 0]), r"'weight' must be of shape \[4, 33\], got shape \[4, 5\]"),
    (ops.scaled_matmul, (F8, F8, X[:, 0], W), r"'weight_scale' must be of shape \[4\], got shape \[33\]"),
]


@pytest.mark.parametrize("op, args, message", WRONG)
def test_wrong_arguments(op: Callable[..., Any], args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(exc.WrongOpArgument, match=message):
        op(*args)


def test_gradients_that_there_are_not_are_refused() -> None:
    """A backward pass through an operator for inference names it, and does not leave its part of the gradient out."""
    x, weight = torch.randn(4, 128, requires_grad=True), torch.ones(128)
    keys, lengths = torch.randn(2, 5, 1, 16), torch.tensor([5, 3])
    found = {
        "rms_norm_fp8": ops.rms_norm_fp8(x, weight)[1],
        "add_rms_norm_fp8": ops.add_rms_norm_fp8(x, x.detach(), weight)[2],
        "swiglu_fp8": ops.swiglu_fp8(x, x)[1],
        "quantize_fp8": ops.quantize_fp8(x)[1],
        "quantize_fp8_blocks": ops.quantize_fp8_blocks(x.expand(32, 4, 128).reshape(128, 128))[1],
        "decode": ops.decode(torch.randn(2, 2, 16, requires_grad=True), keys, keys, lengths),
    }
    for name, result in found.items():
        with pytest.raises(exc.AutodiffNotSupported, match=rf"helion_ops::\w*{name}; it is for inference: detach"):
            (x.sum() + result.float().sum()).backward()
    with torch.no_grad():
        assert not ops.rms_norm_fp8(x, weight)[1].requires_grad


def test_fp32_gradients_have_the_layout_that_torch_compile_gives_them() -> None:
    """An expanded gradient would take another backend on a GPU, which rounds to TF32 in another direction."""
    offsets = torch.tensor([0, 2, 5])
    strides = []
    for function in (ops.grouped_matmul, torch.compile(ops.grouped_matmul, fullgraph=True, backend="aot_eager")):
        x, weight = torch.randn(5, 16, requires_grad=True), torch.randn(2, 16, 8)
        total = function(x, weight, offsets).sum()
        with _Calls() as seen:
            total.backward()
        ((_, (gradient, *_)),) = seen.calls
        strides.append(gradient.stride())
    assert strides == [(8, 1), (8, 1)]
