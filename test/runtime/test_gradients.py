"""What a kernel tells autograd, and the tracers, transforms and tensors that it refuses by name.

On CPU tensors, and, inside ``stub_driver()``, on the functions written for calls of a kernel on a GPU.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import helion
import helion.language as hl
from helion import exc
from helion.runtime import stub_driver
from helion.runtime.call.argument_checks import overwrites

CONFIG = helion.Config(block_sizes=[16])
N = 11


def squares(**options: Any) -> helion.Kernel:
    @helion.kernel(**{"config": CONFIG, **options})
    def square(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * x[tile]
        return out

    return square


@helion.kernel(config=CONFIG)
def increment(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] += 1
    return x


@helion.kernel(config=CONFIG)
def increment_through_views(x: torch.Tensor) -> None:
    rows = x.view(-1, 2)
    second = rows[:, 1]
    for tile in hl.tile(second.size(0)):
        second[tile] += 1


@helion.kernel(config=CONFIG)
def add_at(x: torch.Tensor, places: torch.Tensor) -> None:
    for tile in hl.tile(places.size(0)):
        hl.atomic_add(x, [places[tile]], 1.0)


@helion.kernel(config=CONFIG)
def scaled_into(x: torch.Tensor, holders: list[torch.Tensor]) -> None:
    for tile in hl.tile(x.size(0)):
        holders[1][tile] = x[tile] * holders[0][tile]


@helion.kernel(config=CONFIG)
def two_outputs(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    first = torch.empty([2, x.size(0)], dtype=x.dtype, device=x.device)
    flat = first.view(-1)
    second = torch.zeros_like(first)
    for tile in hl.tile(x.size(0)):
        flat[tile] = x[tile]
        flat[tile.index + x.size(0)] = x[tile]
        second[0, tile] = x[tile]
    return first, second


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    yield


@contextlib.contextmanager
def natively() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, stub_driver():
        patch.setenv("HELION_NATIVE_LAUNCH", "1")
        yield


WAYS = pytest.mark.parametrize("way", [on_cpu, stub_driver, pytest.param(natively, marks=pytest.mark.cxx)])


def warnings_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "GradientNotRecorded" in line]


# --- gradients that are wanted --------------------------------------------------------------------------------------------


@WAYS
def test_a_gradient_that_is_wanted_is_warned_about_once(way: Any, capsys: pytest.CaptureFixture[str]) -> None:
    square, plain = squares(), torch.randn(N)
    wanting = torch.randn(N, requires_grad=True)
    with way():
        for _ in range(3):
            square(plain)
        with torch.no_grad():
            for _ in range(3):
                square(wanting)
        with torch.inference_mode():
            square(wanting)
        assert warnings_of(capsys) == []
        for _ in range(3):
            assert not square(wanting).requires_grad
        (line,) = warnings_of(capsys)
        square(torch.nn.Parameter(plain))
        square(torch.randn(2 * N, requires_grad=True))
    assert warnings_of(capsys) == []
    assert "'square' got 'x'" in line and "torch.autograd.Function" in line and "torch.library.custom_op" in line
    assert ("helion.experimental.backward" in line) == hasattr(getattr(helion, "experimental", None), "backward")


def test_the_warning_can_be_ignored_and_looks_into_containers(capsys: pytest.CaptureFixture[str]) -> None:
    squares(ignore_warnings=[exc.GradientNotRecorded])(torch.randn(N, requires_grad=True))
    assert warnings_of(capsys) == []
    scaled_into(torch.ones(N), [torch.ones(N, requires_grad=True), torch.empty(N)])
    (line,) = warnings_of(capsys)
    assert "'scaled_into' got 'holders'" in line


def test_a_kernel_bound_by_itself_warns_too(capsys: pytest.CaptureFixture[str]) -> None:
    square, x = squares(), torch.randn(N, requires_grad=True)
    square.bind((x,))(x)
    assert len(warnings_of(capsys)) == 1


def test_inside_of_an_operator_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    square = squares()

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return square(x)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    @torch.library.custom_op("helion_test::square", mutates_args=())
    def operator(x: torch.Tensor) -> torch.Tensor:
        return square(x)

    operator.register_autograd(
        lambda ctx, grad: 2 * ctx.saved_tensors[0] * grad,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    for function in (Square.apply, operator):
        x = torch.randn(N, requires_grad=True)
        (function(x) + x).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, 2 * x.detach() + 1)
    with torch._C._AutoDispatchBelowAutograd():
        square(torch.randn(N, requires_grad=True))
    assert warnings_of(capsys) == []


# --- tensors that are overwritten ------------------------------------------------------------------------------------------

WRITERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "the argument": increment,
    "a view of a view of it": increment_through_views,
    "an atomic operation": lambda x: add_at(x, torch.tensor([0, 1, 1])),
    "a tensor in a list": lambda x: scaled_into(torch.ones_like(x), [torch.ones_like(x), x]),
}


@WAYS
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_a_saved_tensor_that_was_overwritten_is_not_used(write: Callable[[torch.Tensor], Any], way: Any) -> None:
    with way():
        for _ in range(3):  # the full way, and twice what was written for such calls
            weight, saved = torch.ones(12, requires_grad=True), torch.ones(12)
            result = (weight * saved).sum()
            version = saved._version
            write(saved)
            assert saved._version > version
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                result.backward()


def test_tensors_that_are_only_read_keep_their_version() -> None:
    x, places = torch.ones(12), torch.tensor([0, 1])
    squares()(x)
    add_at(torch.zeros(12), places)
    assert x._version == 0 and places._version == 0


def test_outputs_of_its_own_are_nobody_elses_business() -> None:
    x = torch.ones(N)
    assert "overwrites" not in two_outputs.bind((x,)).to_triton_code()
    assert "overwrites" not in squares().bind((x,)).to_triton_code()
    assert "_helion_runtime.overwrites('increment', ('x',), x)" in increment.bind((x,)).to_triton_code()
    first, second = two_outputs(x)
    assert first.tolist() == [[1.0] * N] * 2 and second.sum() == N


@WAYS
def test_writing_what_requires_a_gradient_is_refused(way: Any) -> None:
    leaf = torch.ones(12, requires_grad=True)
    inner = leaf * 2
    with way():
        for x, what in ((leaf, "a leaf Variable that requires grad"), (inner, "which requires grad")):
            for _ in range(2):
                with pytest.raises(exc.InPlaceOnGradient, match=f"'increment' writes into 'x', {what}"):
                    increment(x)
            with pytest.raises(exc.InPlaceOnGradient, match="'increment_through_views' writes into 'second'"):
                increment_through_views(x)
            for _ in range(3):
                with torch.no_grad():
                    increment(x)
            with pytest.raises(RuntimeError, match="which requires grad|a leaf Variable"):
                increment(x)
            increment(x.detach())


@pytest.mark.parametrize("kernel", [increment, increment_through_views])
def test_eager_mode_warns_and_bumps_versions(kernel: helion.Kernel, capsys: pytest.CaptureFixture[str]) -> None:
    eager = helion.kernel(kernel.fn, ref_mode=helion.RefMode.EAGER)
    leaf, saved = torch.ones(12, requires_grad=True), torch.ones(12)
    result = (leaf * saved).sum()
    eager(saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()
    assert warnings_of(capsys) == []
    eager(leaf)
    assert leaf._version > 0 and len(warnings_of(capsys)) == 1


def test_nothing_is_written_before_the_refusal() -> None:
    leaf = torch.ones(12, requires_grad=True)
    with pytest.raises(exc.InPlaceOnGradient):
        increment(leaf)
    assert leaf.tolist() == [1.0] * 12 and leaf._version == 0


@WAYS
def test_inference_tensors_have_no_version(way: Any) -> None:
    with way():
        with torch.inference_mode():
            x = torch.ones(N)
            for _ in range(3):
                increment(x)
        for _ in range(3):
            increment(x)
    overwrites("increment", ("x",), x)


def test_a_module_without_helion_tells_autograd_too() -> None:
    options = helion.OutputCodeOptions(allow_helion_deps=False)
    namespace: dict[str, Any] = {}
    text = increment.bind((torch.ones(N),)).to_triton_code(options=options)
    exec(text.replace("@triton.jit", ""), namespace)
    x = torch.ones(N)
    namespace["increment"](x, _launcher=lambda *args, **kwargs: None)
    assert x._version == 1


# --- views that are not their memory ---------------------------------------------------------------------------------------


@WAYS
def test_negated_and_conjugated_views_are_refused(way: Any) -> None:
    square, z = squares(), torch.randn(N, dtype=torch.complex64)
    plain = torch.view_as_real(z)[:, 1]  # as the view below, but for the sign
    negated = z.conj().imag
    assert negated.is_neg() and plain.stride() == negated.stride()
    with way():
        for _ in range(2):
            for _ in range(3):
                square(plain)
            with pytest.raises(
                exc.UnsupportedTensor, match=r"'square': argument 'x' is .*negation.*x\.resolve_neg\(\)"
            ):
                square(negated)
            with pytest.raises(exc.UnsupportedTensor, match=r"argument 'x' is .*conjugation.*x\.resolve_conj\(\)"):
                square(z.conj())
    torch.testing.assert_close(square(negated.resolve_neg()), z.imag.square())


def test_a_negated_view_that_reaches_a_launch_is_refused() -> None:
    z = torch.randn(N, dtype=torch.complex64)
    run = squares().bind((z.real,)).compile_config()
    run(z.real)
    with pytest.raises(exc.UnsupportedTensor, match="'square': argument 'x' is .*negation"):
        run(z.conj().imag)


# --- tracers, transforms and other tensors ---------------------------------------------------------------------------------


def _dual(square: helion.Kernel, x: torch.Tensor) -> None:
    with forward_ad.dual_level():
        square(forward_ad.make_dual(x, x))


def _inside_of_grad(square: helion.Kernel, x: torch.Tensor) -> None:
    torch.func.grad(lambda y: (y * square(x)).sum())(x)


def _inside_of_jvp(square: helion.Kernel, x: torch.Tensor) -> None:
    torch.func.jvp(lambda y: y * square(x), (x,), (x,))


TRACERS: dict[str, tuple[Callable[[helion.Kernel, torch.Tensor], Any], str]] = {
    "grad": (lambda k, x: torch.func.grad(lambda y: k(y).sum())(x), "inside torch.func.grad.*register_autograd"),
    "jvp": (lambda k, x: torch.func.jvp(k, (x,), (x,)), "inside torch.func.grad.*register_autograd"),
    "grad of another tensor": (_inside_of_grad, "inside torch.func.grad.*register_autograd"),
    "jvp of another tensor": (_inside_of_jvp, "inside torch.func.grad.*register_autograd"),
    "functionalize": (lambda k, x: torch.func.functionalize(k)(x), "functionalize.*mutates_args"),
    "jit.trace": (lambda k, x: torch.jit.trace(k, (x,)), "inside torch.jit.trace.*register_fake"),
    "a dual tensor": (_dual, "'x' is a dual tensor.*torch.autograd.Function with a jvp"),
}


@WAYS
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", TRACERS.values(), ids=TRACERS)
def test_tracers_are_refused_by_the_name_of_the_kernel(
    case: tuple[Callable[[helion.Kernel, torch.Tensor], Any], str], way: Any
) -> None:
    trace, message = case
    square, x = squares(), torch.randn(N)
    with way():
        for _ in range(2):
            with pytest.raises(exc.UnsupportedTracer, match=f"Kernel 'square' was called .*{message}"):
                trace(square, x)
            for _ in range(3):
                square(x)
    torch.testing.assert_close(square(x), x * x)


@pytest.mark.filterwarnings("ignore")
def test_eager_mode_refuses_them_too() -> None:
    square = squares(ref_mode=helion.RefMode.EAGER, config=None)
    with pytest.raises(exc.UnsupportedTracer, match="'square' was called inside torch.jit.trace"):
        torch.jit.trace(square, (torch.randn(N),))


class Wrapper(torch.Tensor):
    """A subclass that computes in its own way."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError("not reached")


class Named(torch.Tensor):
    """A subclass that only has another name."""


KINDS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "sparse": (lambda x: x.to_sparse(), r"a tensor with layout torch\.sparse_coo.*to_dense"),
    "nested": (lambda x: torch.nested.nested_tensor([x, x]), "a nested tensor.*offsets"),
    "jagged": (lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged), "a nested tensor.*offsets"),
    "quantized": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), r"a quantized tensor.*int_repr\(\)"),
    "wrapper": (lambda x: x.as_subclass(Wrapper), "a Wrapper, a tensor subclass.*plain tensors"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", KINDS.values(), ids=KINDS)
def test_tensors_that_are_not_memory_with_strides_are_refused(
    case: tuple[Callable[[torch.Tensor], torch.Tensor], str],
) -> None:
    make, message = case
    with pytest.raises(exc.UnsupportedTensor, match=f"Kernel 'square': argument 'x' is {message}"):
        squares()(make(torch.randn(N)))


def test_tensors_of_several_processes_are_refused() -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    message = r"argument 'x' is a DTensor, a tensor subclass .* \(a DTensor's to_local\(\)\)"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for placement in (Shard(0), Replicate()):
            x = distribute_tensor(torch.randn(N), mesh, [placement])
            square, reference = squares(), squares(ref_mode=helion.RefMode.EAGER, config=None)
            plain = square.bind((x.to_local(),))
            for call in (square, reference, plain, plain.compile_config(plain.default_config()), square.autotune):
                with pytest.raises(exc.UnsupportedTensor, match=message):
                    call((x,)) if call == square.autotune else call(x)  # type: ignore[operator]
            with pytest.raises(exc.UnsupportedTensor, match=message):
                square.bind((x,))
            torch.testing.assert_close(square(x.to_local()), x.to_local() ** 2)
    finally:
        dist.destroy_process_group()


def test_parameters_buffers_and_named_subclasses_are_tensors() -> None:
    x = torch.randn(N)
    for same in (torch.nn.Parameter(x, requires_grad=False), torch.nn.Buffer(x), x.as_subclass(Named)):
        torch.testing.assert_close(torch.Tensor(squares()(same)), x * x)


@pytest.mark.prove
def test_calls_import_no_tracer() -> None:
    code = (
        "import sys, torch\nimport helion\nfrom helion.runtime.call import argument_checks, signature\n"
        "class K: name, signature, warned_no_gradient = 'k', type('S', (), {'parameters': ['x']}), False\n"
        "K.settings, K.usual_inputs = helion.Settings(), signature.UsualInputs()\n"
        "argument_checks.check_call(K, (torch.ones(3, requires_grad=True),))\n"
        "argument_checks.overwrites('k', ('x',), torch.ones(3))\n"
        "print([m for m in ('torch._dynamo', 'torch._inductor', 'triton', 'helion.pipeline', 'helion._compiler.ir') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]" and "GradientNotRecorded" in done.stderr


def test_torch_compile_runs_kernels_between_its_graphs() -> None:
    square, x = squares(), torch.randn(N)
    compiled = torch.compile(lambda y: square(y + 1) * 2, backend="eager")
    torch.testing.assert_close(compiled(x), (x + 1).square() * 2)
