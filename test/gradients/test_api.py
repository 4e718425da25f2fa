"""What ``helion.experimental.backward`` and ``kernel.differentiable()`` take, give and refuse."""

from __future__ import annotations

import copy
import dataclasses
import gc
import linecache
import threading
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gradients import kernels

import helion
import helion.language as hl
from helion.experimental import backward
from helion.runtime.torch_interop import gradients


@helion.kernel
def square(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * x[tile]
    return out


@helion.kernel
def weighted(x: torch.Tensor, mask: torch.Tensor, scale: float, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.where(mask[tile, :] > 0, x[tile, :], 0.0) * scale * w[:]
    return out


@helion.kernel
def halved_cube(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * x[tile] * x[tile]
    return out / 2


def arguments() -> tuple[torch.Tensor, torch.Tensor, float, torch.Tensor]:
    return torch.randn(5, 6), torch.randint(0, 2, (5, 6)), 1.5, torch.randn(6)


# --- backward ------------------------------------------------------------------------------------------------------------


def test_one_tensor_gives_its_gradient_itself() -> None:
    x = torch.randn(4, 3)
    found = backward(square, torch.ones(4, 3), x)
    assert isinstance(found, torch.Tensor)
    torch.testing.assert_close(found, 2 * x)


def test_one_gradient_per_tensor_and_none_for_integers() -> None:
    x, mask, scale, w = arguments()
    found = backward(weighted, torch.ones(5, 6), x, mask, scale, w)
    assert len(found) == 3
    assert found[1] is None
    torch.testing.assert_close(found[0], (mask > 0) * scale * w)
    torch.testing.assert_close(found[2], (torch.where(mask > 0, x, 0.0) * scale).sum(0))


def test_code_is_source_of_a_kernel_that_runs(tmp_path: Any) -> None:
    x, mask, scale, w = arguments()
    grad = torch.randn(5, 6)
    found, source, code = backward(weighted, grad, x, mask, scale, w, return_code=True)
    assert "def backward_kernel(" in source and "@helion.kernel" in source
    assert "@triton.jit" in code
    file = tmp_path / "saved.py"
    file.write_text(source)
    namespace: dict[str, Any] = {"__name__": "saved"}
    exec(compile(source, str(file), "exec"), namespace)
    again = namespace["backward_kernel"](grad, x, mask, scale, w)
    torch.testing.assert_close(again[0], found[0])
    torch.testing.assert_close(again[1], found[2])


def test_backward_kernels_explain_themselves() -> None:
    x = torch.randn(4, 3)
    _, source, _ = backward(square, x, x, return_code=True)
    assert source == (
        """import torch

import helion
import helion.language as hl


@helion.kernel(static_shapes=True, dot_precision='tf32', ignore_warnings=[helion.exc.TensorOperationInWrapper])
def backward_kernel(grad_out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    \"\"\"Gradients of square with respect to x.\"\"\"
    grad_x = torch.empty([4, 3], dtype=torch.float32, device=grad_out.device)
    for tile_0, tile_1 in hl.tile([4, 3]):
        load = x[tile_0, tile_1]
        grad_out_0 = grad_out[tile_0, tile_1]
        grad_load = grad_out_0 * load
        grad_load_1 = grad_load + grad_load
        grad_x[tile_0, tile_1] = grad_load_1
    return grad_x
"""
    )


def test_other_shapes() -> None:
    for shape in ((4, 3), (1, 63), (7, 1), (2, 130)):
        x = torch.randn(shape)
        torch.testing.assert_close(backward(square, torch.ones(shape), x), 2 * x)


def test_kernel_is_made_once() -> None:
    x = torch.randn(4, 3)
    kernel = copy.copy(square)
    kernel.reset()
    backward(kernel, x, x)
    known = gradients.differentiation(kernel, (x,))
    made = dict(known.kernels)
    backward(kernel, x, x)
    assert {key: id(value) for key, value in known.kernels.items()} == {k: id(v) for k, v in made.items()}


@pytest.mark.parametrize("effort", [None, "none", "quick"])
def test_autotune(effort: str | None) -> None:
    x = torch.randn(4, 3)
    found = backward(square, torch.ones(4, 3), x, autotune=True, autotune_effort=effort)
    torch.testing.assert_close(found, 2 * x)


def test_gradients_of_several_results() -> None:
    x, y = torch.randn(5, 6, dtype=torch.float64), torch.randn(5, 6, dtype=torch.float64)
    case = next(c for c in kernels.CASES if c.name == "three_results")
    grad = torch.randn(5, 6, dtype=torch.float64)
    found = backward(case.kernel, (None, grad, None), x, y)
    torch.testing.assert_close(found[0], grad * y)
    torch.testing.assert_close(found[1], grad * x)


@pytest.mark.parametrize(
    "grad, text",
    [
        (torch.ones(3, 4), "the shape \\[3, 4\\]"),
        ((torch.ones(4, 3), torch.ones(4, 3)), "2 gradients, the kernel returns 1"),
        ((), "0 gradients"),
    ],
)
def test_gradients_that_do_not_fit(grad: Any, text: str) -> None:
    with pytest.raises(helion.exc.InvalidAPIUsage, match=text):
        backward(square, grad, torch.ones(4, 3))


def test_in_the_backward_of_an_operator() -> None:
    """Derive gradients in an operator, which torch runs without autograd."""

    @torch.library.custom_op("test_gradients::halved_cube_backward", mutates_args=())
    def of_cube(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return backward(halved_cube, grad, x)

    @torch.library.custom_op("test_gradients::halved_cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return halved_cube(x)

    def save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)

    cube.register_autograd(lambda ctx, grad: of_cube(grad, *ctx.saved_tensors), setup_context=save)
    x = torch.randn(5, 7, requires_grad=True)
    cube(x).sum().backward()
    torch.testing.assert_close(x.grad, 1.5 * x.detach() ** 2)


def test_not_a_kernel() -> None:
    with pytest.raises(TypeError, match="takes a kernel"):
        backward(lambda x: x, torch.ones(3), torch.ones(3))  # type: ignore[arg-type]


def test_unknown_effort() -> None:
    with pytest.raises((TypeError, ValueError), match="autotune_effort"):
        backward(square, torch.ones(3, 3), torch.ones(3, 3), autotune_effort="heroic")


def test_wrong_number_of_arguments() -> None:
    with pytest.raises(TypeError):
        backward(square, torch.ones(3, 3), torch.ones(3, 3), torch.ones(3, 3))


def test_gradient_of_another_dtype() -> None:
    x = torch.randn(4, 3).bfloat16()
    found = backward(square, torch.ones(4, 3), x)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, 2 * x)


def test_gradients_with_strides() -> None:
    x = torch.randn(4, 3)
    torch.testing.assert_close(backward(square, torch.ones(3, 4).T, x), 2 * x)
    torch.testing.assert_close(backward(square, torch.ones(()).expand(4, 3), x), 2 * x)
    torch.testing.assert_close(backward(square, torch.ones(4, 3), x.T.contiguous().T), 2 * x)
    wide = torch.randn(4, 6)
    torch.testing.assert_close(backward(square, torch.ones(4, 3), wide[:, ::2]), 2 * wide[:, ::2])
    torch.testing.assert_close(
        backward(square, torch.ones(4, 3), wide[:1, :3].expand(4, 3)), 2 * wide[:1, :3].expand(4, 3)
    )


def test_zeros_where_nothing_arrives() -> None:
    @helion.kernel
    def steps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = torch.floor(x[tile])
        return out

    x = torch.randn(9)
    found = backward(steps, torch.ones(9), x, torch.ones(3))
    torch.testing.assert_close(found[0], torch.zeros(9))
    torch.testing.assert_close(found[1], torch.zeros(3))


def test_dynamic_shapes() -> None:
    @helion.kernel(static_shapes=False)
    def cubes(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * x[tile] * x[tile]
        return out

    for n in (5, 17, 100):
        x = torch.randn(n)
        torch.testing.assert_close(backward(cubes, torch.ones(n), x), 3 * x * x)


def test_eager_kernel() -> None:
    @helion.kernel(ref_mode=helion.RefMode.EAGER)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = 2 * x[tile]
        return out

    torch.testing.assert_close(backward(doubled, torch.ones(5), torch.randn(5)), torch.full((5,), 2.0))


def test_given_config() -> None:
    @helion.kernel(config=helion.Config(block_sizes=[16]))
    def doubled(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = 2 * x[tile]
        return out

    torch.testing.assert_close(backward(doubled, torch.ones(50), torch.randn(50)), torch.full((50,), 2.0))


# --- differentiable ------------------------------------------------------------------------------------------------------


def test_only_what_requires_a_gradient() -> None:
    x, mask, scale, w = arguments()
    function = weighted.differentiable()
    for needs in ((True, False), (False, True), (True, True)):
        for _ in range(2):
            a, b = x.clone().requires_grad_(needs[0]), w.clone().requires_grad_(needs[1])
            function(a, mask, scale, b).sum().backward()
            assert (a.grad is not None, b.grad is not None) == needs
            if a.grad is not None:
                torch.testing.assert_close(a.grad, (mask > 0) * scale * w)
            if b.grad is not None:
                torch.testing.assert_close(b.grad, (torch.where(mask > 0, x, 0.0) * scale).sum(0))


def test_nothing_requires_a_gradient() -> None:
    x, mask, scale, w = arguments()
    assert not weighted.differentiable()(x, mask, scale, w).requires_grad
    with torch.no_grad():
        assert not weighted.differentiable()(x.requires_grad_(), mask, scale, w).requires_grad


def test_keywords_and_shapes() -> None:
    function = weighted.differentiable()
    for n in (5, 9):
        x = torch.randn(n, 6, requires_grad=True)
        mask = torch.ones(n, 6, dtype=torch.int64)
        function(x, scale=2.0, w=torch.ones(6), mask=mask).sum().backward()
        torch.testing.assert_close(x.grad, torch.full((n, 6), 2.0))


def test_broadcast_inputs_and_expanded_gradients() -> None:
    x = torch.randn(1, 6, requires_grad=True)
    for _ in range(2):
        x.grad = None
        square.differentiable()(x.expand(4, 6)).sum().backward()
        torch.testing.assert_close(x.grad, 8 * x.detach())


def test_in_a_module_with_an_optimizer() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(6))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    x, mask = torch.randn(5, 6), torch.ones(5, 6, dtype=torch.int64)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.mse_loss(weighted.differentiable()(x, mask, 1.0, weight), x * 3.0)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_one_result_of_several() -> None:
    case = next(c for c in kernels.CASES if c.name == "three_results")
    x, y = (torch.randn(5, 6, requires_grad=True) for _ in range(2))
    for _ in range(2):
        x.grad = y.grad = None
        case.kernel.differentiable()(x, y)[1].sum().backward()
        torch.testing.assert_close(x.grad, y.detach())
        torch.testing.assert_close(y.grad, x.detach())


def test_twice_is_refused() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    (first,) = torch.autograd.grad(square.differentiable()(x).sum(), x, create_graph=True)
    torch.testing.assert_close(first.detach(), 2 * x.detach())
    with pytest.raises(helion.exc.AutodiffNotSupported, match="differentiated once"):
        torch.autograd.grad(first.sum(), x)


def test_arguments_changed_before_the_backward() -> None:
    for _ in range(2):
        x = torch.randn(4, 3, requires_grad=True)
        middle = x * 1.0
        out = square.differentiable()(middle)
        with torch.no_grad():
            middle.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_same_tensor_twice() -> None:
    case = next(c for c in kernels.CASES if c.name == "products_and_quotients")
    x = torch.rand(9, dtype=torch.float64) + 1
    x.requires_grad_()
    for _ in range(2):
        (found,) = torch.autograd.grad(case.kernel.differentiable()(x, x).sum(), x)
        torch.testing.assert_close(found, 2 * x.detach())


def test_lists_of_tensors() -> None:
    @helion.kernel
    def total(parts: list[torch.Tensor]) -> torch.Tensor:
        out = torch.empty_like(parts[0])
        for tile in hl.tile(out.size(0)):
            out[tile] = parts[0][tile] * parts[1][tile]
        return out

    x, y = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    found = torch.autograd.grad(total.differentiable()([x, y]).sum(), (x, y))
    torch.testing.assert_close(found, (y.detach(), x.detach()))


def test_random_numbers_of_the_forward() -> None:
    @helion.kernel
    def dropped(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = F.dropout(x[tile], 0.5)
        return out

    x = torch.ones(200, requires_grad=True)
    for _ in range(2):
        out = dropped.differentiable()(x)
        (found,) = torch.autograd.grad(out.sum(), x)
        torch.testing.assert_close(found, out.detach())
        assert 0 < (found == 0).sum() < 200
    with pytest.raises(helion.exc.AutodiffNotSupported, match="random numbers"):
        backward(dropped, torch.ones(200), torch.ones(200))


def test_random_numbers_of_a_seed() -> None:
    @helion.kernel
    def noisy(x: torch.Tensor, seed: int) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * hl.rand([tile], seed)
        return out

    x = torch.ones(50)
    torch.testing.assert_close(backward(noisy, torch.ones(50), x, 5), noisy(x, 5))


def test_rows_of_one() -> None:
    case = next(c for c in kernels.CASES if c.name == "rms_norm")
    for shape in ((1, 5), (5, 1), (1, 1)):
        x, w = torch.randn(shape, dtype=torch.float64) + 2, torch.randn(shape[1], dtype=torch.float64)
        grad = torch.randn(shape, dtype=torch.float64)
        leaves = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        wanted = torch.autograd.grad(case.reference(*leaves, 0.5), leaves, grad)
        torch.testing.assert_close(backward(case.kernel, grad, x, w, 0.5), wanted)


def test_columns_of_one() -> None:
    @helion.kernel
    def centred(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(1)], dtype=x.dtype, device=x.device)
        for tile in hl.tile(x.size(1)):
            mean = x[:, tile].mean(0)
            out[tile] = (x[:, tile] - mean).cos().sum(0) * mean
        return out

    x, grad = torch.randn(1, 5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)
    torch.testing.assert_close(backward(centred, grad, x), grad[None])


def test_no_elements() -> None:
    assert backward(square, torch.ones(0, 3), torch.ones(0, 3)).shape == (0, 3)


def test_norms_of_zeros() -> None:
    case = next(c for c in kernels.CASES if c.name == "row_norms")
    x = torch.zeros(5, 6, dtype=torch.float64)
    torch.testing.assert_close(backward(case.kernel, torch.ones(5, dtype=torch.float64), x), torch.zeros_like(x))


def test_threads() -> None:
    failures: list[Exception] = []

    def run(rows: int) -> None:
        try:
            x = torch.randn(rows, 3, requires_grad=True)
            square.differentiable()(x).sum().backward()
            torch.testing.assert_close(x.grad, 2 * x.detach())
        except Exception as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(20 + at % 4,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bits(dtype: torch.dtype) -> None:
    @helion.kernel
    def scaled(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.empty(x.shape, device=x.device)
        narrow = torch.empty_like(w)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * w[tile].to(torch.float32)
            narrow[tile] = x[tile]
        return out, narrow

    def of(function: Any) -> list[torch.Tensor]:
        x, w = torch.arange(1.0, 6.0).requires_grad_(), torch.arange(-2.0, 3.0).to(dtype).requires_grad_()
        out, narrow = function(x, w)
        (out.sum() + 2 * narrow.to(torch.float32).sum()).backward()
        return [x.grad, w.grad]

    for found, expected in zip(of(scaled.differentiable()), of(lambda x, w: (x * w.float(), x.to(dtype))), strict=True):
        assert found.dtype == expected.dtype and torch.equal(found.float(), expected.float())


def test_rows_without_elements() -> None:
    """What a loop reads at a place that is in range only where it has an iteration."""

    @helion.kernel
    def by_first(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        out = torch.empty([offsets.size(0) - 1], dtype=x.dtype, device=x.device)
        for row in hl.grid(offsets.size(0) - 1):
            total = hl.zeros([], dtype=x.dtype)
            for tile in hl.tile(offsets[row], offsets[row + 1]):
                total += (x[tile] * x[offsets[row]]).sum()
            out[row] = total
        return out

    x = torch.arange(1.0, 8.0, dtype=torch.float64)
    found, _ = backward(by_first, torch.ones(3, dtype=torch.float64), x, torch.tensor([0, 3, 7, 7]))
    expected = torch.cat(
        [x[0].repeat(3) + torch.eye(3)[0] * x[:3].sum(), x[3].repeat(4) + torch.eye(4)[0] * x[3:].sum()]
    )
    torch.testing.assert_close(found, expected)


def test_backward_kernels_go_with_their_specializations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training loop over sequences of any length keeps as many as ``HELION_MAX_SPECIALIZATIONS``, and their sources."""
    monkeypatch.setenv("HELION_MAX_SPECIALIZATIONS", "2")

    @helion.kernel(static_shapes=False)
    def squared(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * x[tile]
        return out

    function, made = squared.differentiable(), []
    for size in range(5, 9):
        x = torch.randn(size, requires_grad=True)
        function(x).sum().backward()
        torch.testing.assert_close(x.grad, 2 * x.detach())
        (kernel,) = gradients.differentiation(squared, (x.detach(),)).kernels.values()
        made.append((weakref.ref(kernel), weakref.ref(kernel.kernel), kernel.kernel.fn.__code__.co_filename))
        del kernel, x
    for _ in range(2):  # sources are released when a backward kernel goes, which frees the rest
        gc.collect()
    assert [kernel() is not None for kernel, _, _ in made] == [False] * 2 + [True] * 2
    assert [kernel() is not None for _, kernel, _ in made] == [False] * 2 + [True] * 2
    assert [file in linecache.cache for _, _, file in made] == [False] * 2 + [True] * 2


# --- tensors inside of arguments -------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Weights:
    w: torch.Tensor
    biases: dict[str, torch.Tensor]
    scale: float


@helion.kernel
def affine(x: torch.Tensor, weights: Weights, more: tuple[torch.Tensor, ...]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = (x[tile] * weights.w[tile] + weights.biases["b"][tile]) * weights.scale * more[0][tile]
    return out


def affine_arguments() -> tuple[list[torch.Tensor], tuple[Any, ...], torch.Tensor]:
    tensors = [torch.randn(37) + 0.5 for _ in range(4)]
    x, w, b, m = (tensor.requires_grad_() for tensor in tensors)
    return tensors, (x, Weights(w, {"b": b}, 1.5), (m,)), (x * w + b) * 1.5 * m


def test_gradients_reach_tensors_in_dataclasses() -> None:
    tensors, args, expected = affine_arguments()
    incoming = torch.randn(37)
    wanted = torch.autograd.grad(expected, tensors, incoming)
    result = affine.differentiable()(*args)
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(torch.autograd.grad(result, tensors, incoming), wanted)
    torch.testing.assert_close(tuple(backward(affine, incoming, *args)), wanted)


@helion.kernel(static_shapes=False)
def mean_of_squares(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * x[tile]
    return out.mean()


def test_a_warning_is_printed_once_for_all_shapes(capsys: pytest.CaptureFixture[str]) -> None:
    for rows in (5, 7):
        x = torch.randn(rows, 4, requires_grad=True)
        mean_of_squares.differentiable()(x).backward()
        torch.testing.assert_close(x.grad, x.detach() / (2 * rows))
    assert capsys.readouterr().err.count("TensorOperationInWrapper") == 1
