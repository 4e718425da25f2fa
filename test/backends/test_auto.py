"""``backend="auto"``: the fastest by prediction of those that take a kernel, and the next one where it fails."""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from backends.cute.products import BF16, matmul
from torch._subclasses.fake_tensor import FakeTensorMode

import helion
import helion.language as hl
from helion import exc
from helion._compiler.decisions import Decisions
from helion._compiler.facts.records import KernelFacts
from helion._shapes import Expr, NeedsValue
from helion.autotuner import PowerOfTwoFragment
from helion.autotuner.margins import PREDICTABLE_LEAD
from helion.autotuner.proposal import Predicted
from helion.backends import BACKENDS
from helion.backends.cute.execute import launcher, seen
from helion.backends.cute.shapes import GENERAL_MATMULS
from helion.backends.cute.toolchain.errors import CompilationFailed, ToolMissing
from helion.backends.cute.verify.state import Fault
from helion.hardware import Target

HOPPER = "h200"


def tensors(*shapes: tuple[int, int]) -> tuple[torch.Tensor, ...]:
    return tuple(torch.empty(shape, dtype=BF16, device="meta") for shape in shapes)


ARGUMENTS = tensors((64, 64), (64, 64))


@pytest.fixture(autouse=True)
def all_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(BACKENDS["cute"]), "is_installed", True)


def times(monkeypatch: pytest.MonkeyPatch, microseconds: dict[str, float]) -> None:
    """Every config of a backend is predicted to take so long."""
    for name, us in microseconds.items():
        backend = type(BACKENDS[name])
        real = backend.predict

        def predict(
            self: Any, facts: KernelFacts, decisions: Decisions, target: Target, us: float = us, real: Any = real
        ) -> Predicted:
            return replace(real(self, facts, decisions, target), time_us=us)

        monkeypatch.setattr(backend, "predict", predict)


@pytest.mark.parametrize(("cute", "triton"), [(10.0, 20.0), (20.0, 10.0), (10.4, 10.0), (10.2, 10.0), (9.6, 10.0)])
def test_the_faster_one_is_taken_and_both_are_explained(
    monkeypatch: pytest.MonkeyPatch, cute: float, triton: float
) -> None:
    """Triton's predictions of matmuls are corrected before the backends compete."""
    times(monkeypatch, {"cute": cute, "triton": triton})
    bound = helion.kernel(matmul.fn, backend="auto").bind(ARGUMENTS, target=HOPPER)
    chosen, other = (
        ("cute", "triton") if cute < PREDICTABLE_LEAD.ratio * GENERAL_MATMULS * triton else ("triton", "cute")
    )
    assert ("gemm_kernel(" in bound.to_code()) == (chosen == "cute")
    us = {"cute": cute, "triton": triton}
    assert f"{chosen}, predicted {us[chosen]:g} µs; not {other}: predicted {us[other]:g} µs" in bound.explain()
    assert f"not {other}: predicted" in bound.explain(format="html")
    data = json.loads(bound.explain(format="json"))
    assert [(each["backend"], each["us"]) for each in data["backends"]] == [(chosen, us[chosen]), (other, us[other])]


def on_gpu(device: str = "cuda") -> tuple[torch.Tensor, ...]:
    with FakeTensorMode():
        return tuple(torch.empty(64, 64, dtype=BF16, device=device) for _ in range(2))


def test_where_none_was_named_backends_compete_for_tensors_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, {"cute": 10.0, "triton": 20.0})
    kernel = helion.kernel(matmul.fn)
    assert [kernel.bind(on_gpu(device), target=HOPPER).backend for device in ("cuda", "cpu")] == ["cute", "triton"]
    assert kernel.bind(ARGUMENTS, target=HOPPER).backend == "triton"
    assert helion.kernel(matmul.fn, backend="triton").bind(on_gpu(), target=HOPPER).backend == "triton"
    given = helion.kernel(matmul.fn, config=helion.Config(block_sizes=[64, 64, 64], num_warps=4))
    assert given.bind(on_gpu(), target=HOPPER).backend == "triton"
    monkeypatch.setenv("HELION_BACKEND", "triton")
    assert helion.kernel(matmul.fn).bind(on_gpu(), target=HOPPER).backend == "triton"


def test_without_the_extra_it_is_triton_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(BACKENDS["cute"]), "is_installed", False)
    bound = helion.kernel(matmul.fn).bind(on_gpu(), target=HOPPER)
    assert bound.backend == "triton" and "\n  backend" not in bound.explain()


def test_a_decorator_names_the_backend_of_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
    for us, named in ((10.0, "backend='cute'"), (30.0, "")):
        times(monkeypatch, {"cute": us, "triton": 20.0})
        line = helion.kernel(matmul.fn).bind(on_gpu(), target=HOPPER).format_kernel_decorator()
        assert (named in line) if named else ("backend" not in line)


def test_one_that_refuses_says_why() -> None:
    numbers = tuple(torch.empty(64, 64, dtype=torch.int8, device="meta") for _ in range(2))
    bound = helion.kernel(matmul.fn, backend="auto").bind(numbers, target=HOPPER)
    assert "@triton.jit" in bound.to_code()
    assert "triton; not cute: Kernel 'matmul' cannot be compiled by the cute backend" in bound.explain()


def test_a_backend_that_was_named_is_not_compared() -> None:
    for name in ("cute", "triton"):
        bound = helion.kernel(matmul.fn, backend=name).bind(ARGUMENTS, target=HOPPER)
        assert "\n  backend" not in bound.explain() and json.loads(bound.explain(format="json"))["backend"] == name


def test_given_configs_are_what_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, {"cute": 10.0, "triton": 20.0})
    own = helion.kernel(matmul.fn, backend="auto", config=helion.Config(block_sizes=[64, 64, 64], num_warps=4))
    assert "@triton.jit" in own.bind(ARGUMENTS, target=HOPPER).to_code()
    both = helion.kernel(matmul.fn, backend="auto", config=helion.Config(block_sizes=[64, 64, 64]))
    assert "gemm_kernel(" in both.bind(ARGUMENTS, target=HOPPER).to_code()


@pytest.mark.prove
def test_a_product_whose_rows_are_normalised_is_cutes() -> None:
    """A program that holds 2048 columns of sums spills, and two kernels take the sums through memory; a cluster does
    neither."""

    @helion.kernel(backend="auto")
    def normalised(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        n = hl.specialize(y.size(1))
        out = torch.empty(x.size(0), n, dtype=x.dtype, device=x.device)
        for rows in hl.tile(x.size(0)):
            sums = hl.zeros([rows, n], dtype=torch.float32)
            for k in hl.tile(x.size(1)):
                sums = torch.addmm(sums, x[rows, k], y[k, :])
            out[rows, :] = (sums * torch.rsqrt((sums * sums).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
        return out

    arguments = (torch.empty(4096, 512, dtype=BF16, device="meta"), torch.empty(512, 2048, dtype=BF16, device="meta"))
    text = normalised.bind(arguments, target=HOPPER).explain(format="json")
    first, second = json.loads(text)["backends"]
    assert first["backend"] == "cute" and second["us"] > 1.25 * first["us"]


# --- a backend that fails ------------------------------------------------------------------------------------------------


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Compiling with the DSL fails, inside of a stub."""

    def fails(kernel: object) -> None:
        raise request.param("the DSL says no")

    times(monkeypatch, {"cute": 10.0, "triton": 20.0})
    for module in (launcher, seen):
        monkeypatch.setattr(module, "folder", fails)
    monkeypatch.setattr("helion.backends.cute.toolchain.chain.folder", fails)
    with helion.runtime.stub_driver():
        yield


@pytest.mark.parametrize("failing", [CompilationFailed, ToolMissing], indirect=True)
def test_the_next_backend_runs_where_the_first_cannot_compile(
    failing: None, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = helion.kernel(matmul.fn, backend="auto")
    arguments = tuple(torch.zeros(64, 64, dtype=BF16) for _ in range(2))
    for _ in range(3):
        kernel(*arguments)
    lines = [line for line in capsys.readouterr().err.splitlines() if "backend cute failed" in line]
    assert lines == ["helion: matmul: the backend cute failed (the DSL says no); using triton"]
    bound = kernel.bind(arguments)
    assert "@triton.jit" in bound.to_code() and "num_warps" in bound.config
    assert "triton, predicted 20 µs; not cute: the DSL says no" in bound.explain()


def test_the_next_backend_runs_where_a_plan_is_faulty(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(program: object) -> None:
        raise Fault("a stage is overwritten")

    times(monkeypatch, {"cute": 10.0, "triton": 20.0})
    monkeypatch.setattr("helion.backends.cute.shapes.verify", faulty)
    arguments = torch.zeros(64, 48, dtype=BF16), torch.zeros(48, 80, dtype=BF16)
    with helion.runtime.stub_driver():
        helion.kernel(matmul.fn, backend="auto")(*arguments)
        assert "the backend cute failed (a stage is overwritten); using triton" in capsys.readouterr().err
        with pytest.raises(Fault, match="a stage is overwritten"):
            helion.kernel(matmul.fn, backend="cute")(*arguments)


def raises(error: Exception) -> Callable[..., Any]:
    def stage(self: Any, *_: Any) -> Any:
        raise error

    return stage


@pytest.mark.parametrize("stage", ["refusal", "plan", "on_request", "lead"])
def test_errors_of_a_backends_own_code_leave_the_kernel_to_the_next(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stage: str
) -> None:
    times(monkeypatch, {"cute": 10.0, "triton": 20.0})
    monkeypatch.setattr(type(BACKENDS["cute"]), stage, raises(AssertionError("two dimensions are one")))
    kernel = helion.kernel(matmul.fn, backend="auto")
    with pytest.raises(AssertionError, match="two dimensions are one"):  # tests find it
        kernel.bind(ARGUMENTS, target=HOPPER)
    monkeypatch.setenv("HELION_VERIFY", "0")
    bound = helion.kernel(matmul.fn, backend="auto").bind(ARGUMENTS, target=HOPPER)
    assert bound.backend == "triton"
    assert "not cute: AssertionError: two dimensions are one" in bound.explain()
    assert "the cute backend failed on kernel 'matmul', which triton compiles: AssertionError" in caplog.text


def test_errors_of_printing_leave_the_kernel_to_the_next(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times(monkeypatch, {"cute": 10.0, "triton": 20.0})
    monkeypatch.setattr(type(BACKENDS["cute"]), "emit", raises(KeyError("a line")))
    monkeypatch.setenv("HELION_VERIFY", "0")
    arguments = torch.zeros(64, 48, dtype=BF16), torch.zeros(48, 80, dtype=BF16)
    with helion.runtime.stub_driver():
        helion.kernel(matmul.fn, backend="auto")(*arguments)
    assert "the backend cute failed (KeyError: 'a line'); using triton" in capsys.readouterr().err


def test_errors_of_the_program_for_one_backend_are_no_errors_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backend's limits may make an error of the program, such as fewer lanes than its matmuls take."""
    monkeypatch.setattr(type(BACKENDS["cute"]), "refusal", raises(exc.TypeInferenceError("A matmul needs 16 lanes")))
    bound = helion.kernel(matmul.fn, backend="auto").bind(ARGUMENTS, target=HOPPER)
    assert bound.backend == "triton" and "not cute: A matmul needs 16 lanes" in bound.explain()
    monkeypatch.setattr(type(BACKENDS["triton"]), "refusal", raises(exc.TypeInferenceError("the user's error")))
    with pytest.raises(exc.TypeInferenceError, match="the user's error"):
        helion.kernel(matmul.fn, backend="auto").bind(ARGUMENTS, target=HOPPER)


@pytest.mark.parametrize("verify", ["0", "1"])
def test_errors_of_the_program_are_raised_as_they_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, verify: str
) -> None:
    monkeypatch.setenv("HELION_VERIFY", verify)
    with pytest.raises(exc.TypeInferenceError, match="only one size can be -1"):
        helion.kernel(of_two_unknown_sizes, backend="auto").bind(ARGUMENTS, target=HOPPER)
    assert not caplog.text


def of_two_unknown_sizes(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t, :] = (x[t, :] * y[t, :]).reshape(-1, -1)
    return out


@pytest.mark.parametrize("failing", [CompilationFailed], indirect=True)
def test_threads_that_call_at_once_leave_it_together(failing: None, capsys: pytest.CaptureFixture[str]) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for columns in range(64, 64 + 8 * 16, 16):
            kernel = helion.kernel(matmul.fn, backend="auto")
            arguments = (torch.zeros(64, 64, dtype=BF16), torch.zeros(64, columns, dtype=BF16))
            with ThreadPoolExecutor(8) as pool:
                for call in [pool.submit(kernel, *arguments) for _ in range(8)]:
                    call.result()
            assert capsys.readouterr().err.count("backend cute failed") == 1
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("failing", [CompilationFailed], indirect=True)
def test_a_backend_or_config_that_was_asked_for_is_not_left(failing: None) -> None:
    arguments = tuple(torch.zeros(64, 64, dtype=BF16) for _ in range(2))
    with pytest.raises(exc.CuteError, match="the DSL says no"):
        helion.kernel(matmul.fn, backend="cute")(*arguments)
    config = helion.Config(block_sizes=[64, 64, 64])
    with pytest.raises(exc.CuteError, match="the DSL says no"):
        helion.kernel(matmul.fn, backend="auto", config=config)(*arguments)


# --- calls that a backend cannot take ------------------------------------------------------------------------------------


@pytest.fixture
def compiled_by_nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Launches of a stub, which find every kernel compiled."""
    times(monkeypatch, {"cute": 10.0, "triton": 20.0})
    for module in (launcher, seen):
        monkeypatch.setattr(module, "folder", lambda kernel: None)
    monkeypatch.setattr("helion.backends.cute.toolchain.chain.folder", lambda kernel: None)
    with helion.runtime.stub_driver() as stub:
        yield stub


def test_tensors_that_begin_elsewhere_are_the_next_backends(
    compiled_by_nobody: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Call by call, and the others stay where they are."""
    kernel = helion.kernel(matmul.fn, backend="auto")
    square, apart = torch.zeros(64, 64, dtype=BF16), torch.zeros(64 * 64 + 1, dtype=BF16)[1:].view(64, 64)
    for x, y in ((square, square), (apart, square), (square, square), (square, apart), (square, square)):
        kernel(x, y)
    bound = kernel.bind((square, square))
    assert "wgmma_ab_stages" in bound.config and bound.variant.specialized.analysis.backend.name == "cute"
    assert len(compiled_by_nobody.launches) == 5 and "failed" not in capsys.readouterr().err
    helion.kernel(matmul.fn, backend="cute")(apart, square)
    assert len(compiled_by_nobody.launches) == 6


def test_the_next_backend_runs_where_the_first_cannot_launch(
    compiled_by_nobody: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(kernel: object) -> None:
        raise launcher.LaunchFailed("matmul could not be launched: CUDA error 912")

    monkeypatch.setattr(seen, "folder", fails)
    kernel = helion.kernel(matmul.fn, backend="auto")
    arguments = tuple(torch.zeros(64, 64, dtype=BF16) for _ in range(2))
    for _ in range(3):
        kernel(*arguments)
    assert len(compiled_by_nobody.launches) == 3
    assert capsys.readouterr().err.count("the backend cute failed (matmul could not be launched: CUDA error 912)") == 1
    assert "@triton.jit" in kernel.bind(arguments).to_code()
    for asked in ({"backend": "cute"}, {"backend": "auto", "config": helion.Config(block_sizes=[64, 64, 64])}):
        with pytest.raises(exc.CuteError, match="CUDA error 912"):
            helion.kernel(matmul.fn, **asked)(*arguments)


# --- configs that are another backend's ----------------------------------------------------------------------------------

OF_TRITON = {"block_sizes": [32, 32, 32], "num_warps": 2}
OF_CUTE = {"block_sizes": [128, 64, 64], "wgmma_cluster_m": 1}
CALL = (
    torch.arange(100 * 64).sin().add(1).reshape(100, 64).bfloat16(),
    torch.arange(64 * 72).cos().reshape(64, 72).bfloat16(),
)


def left_open(monkeypatch: pytest.MonkeyPatch, chosen: str) -> Any:
    times(monkeypatch, {"cute": 10.0 if chosen == "cute" else 30.0, "triton": 20.0})
    bound = helion.kernel(matmul.fn, backend="auto").bind(CALL, target=HOPPER)
    assert bound.variant.specialized.analysis.backend.name == chosen
    return bound


@pytest.mark.parametrize("chosen", ["cute", "triton"])
def test_methods_take_configs_of_the_backend_that_takes_them(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    bound = left_open(monkeypatch, chosen)
    expected = CALL[0].double() @ CALL[1].double()
    for config, mark, key in ((OF_TRITON, "@triton.jit", "num_warps=2"), (OF_CUTE, "gemm_kernel(", "backend='cute'")):
        assert mark in bound.to_code(config)
        assert (bound.compile_config(config)(*CALL).double() - expected).norm() < 5e-3 * expected.norm()
        assert key in bound.format_kernel_decorator(config)
        assert bound.short_config(config).block_sizes == config["block_sizes"]
        assert pathlib.Path(bound.get_cached_path(config)).read_text() == bound.to_code(config)
        assert config["block_sizes"][0] in bound.plan(config).gemm.tile if config is OF_CUTE else bound.plan(config)
    assert bound.config is None and bound.variant.specialized.analysis.backend.name == chosen
    assert bound.compile_config(OF_TRITON) is bound.compile_config(OF_TRITON)


@pytest.mark.parametrize("chosen", ["cute", "triton"])
def test_code_of_one_backend_is_that_of_its_default(monkeypatch: pytest.MonkeyPatch, chosen: str) -> None:
    bound = left_open(monkeypatch, chosen)
    alone = {name: helion.kernel(matmul.fn, backend=name).bind(CALL, target=HOPPER) for name in BACKENDS}
    assert bound.to_triton_code() == alone["triton"].to_code()
    assert bound.to_cute_code() == alone["cute"].to_code()
    assert bound.to_code() == alone[chosen].to_code()
    with pytest.raises(exc.InvalidConfig, match="'wgmma_cluster_m' belongs to the cute backend"):
        bound.to_triton_code(OF_CUTE)
    with pytest.raises(exc.InvalidConfig, match="num_warps cannot be 2"):
        bound.to_cute_code(OF_TRITON)
    with pytest.raises(exc.InvalidAPIUsage, match=r"has the backend 'triton'; call to_code\(\)"):
        alone["triton"].to_cute_code()
    refused = helion.kernel(matmul.fn, backend="auto").bind(tensors((64, 64), (64, 63)), target=HOPPER)
    assert "@triton.jit" in refused.to_triton_code()


@pytest.mark.parametrize("chosen", ["cute", "triton"])
def test_a_config_that_is_set_leaves_the_backend_for_one_that_takes_it(
    monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    bound = left_open(monkeypatch, chosen)
    expected = CALL[0].double() @ CALL[1].double()
    for config, name in ((OF_TRITON, "triton"), (OF_CUTE, "cute"), (OF_CUTE, "cute"), (OF_TRITON, "triton")):
        bound.set_config(config)
        assert (
            bound.variant.specialized.analysis.backend.name == name
            and bound.config.block_sizes == config["block_sizes"]
        )
        assert ("@triton.jit" in bound.to_code()) == (name == "triton")
        for run in (bound, bound.kernel):
            assert (run(*CALL).double() - expected).norm() < 5e-3 * expected.norm()


def test_a_config_that_nobody_takes_is_refused_by_the_backend_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = left_open(monkeypatch, "cute")
    for config in ({**OF_TRITON, **OF_CUTE}, {"block_sizes": [128, 64, 64], "num_warps": 3}):
        for method in (bound.to_code, bound.compile_config, bound.set_config, bound.resources, bound.plan):
            with pytest.raises(exc.InvalidConfig, match="num_warps cannot be"):
                method(config)
    assert bound.config is None
    with pytest.raises(exc.InvalidConfig, match="num_warps cannot be 2"):
        helion.kernel(matmul.fn, backend="cute").bind(ARGUMENTS, target=HOPPER).set_config(OF_TRITON)


def test_sizes_of_one_class_follow_a_config_to_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, {"cute": 10.0, "triton": 20.0})
    kernel = helion.kernel(matmul.fn, backend="auto", static_shapes=False)
    few, many = ((torch.randn(m, 64).bfloat16(), torch.randn(64, 72).bfloat16()) for m in (40, 4000))
    first, second = kernel.bind(few), kernel.bind(many)
    first.set_config(OF_TRITON)
    for arguments, bound in ((few, first), (many, second)):
        expected = arguments[0].double() @ arguments[1].double()
        assert (kernel(*arguments).double() - expected).norm() < 5e-3 * expected.norm()
        assert bound.config["num_warps"] == 2


def test_calls_that_begin_elsewhere_stay_right_behind_a_config_that_was_set(compiled_by_nobody: Any) -> None:
    kernel = helion.kernel(matmul.fn, backend="auto")
    square, apart = torch.zeros(64, 64, dtype=BF16), torch.zeros(64 * 64 + 1, dtype=BF16)[1:].view(64, 64)
    bound = kernel.bind((square, square))
    for config in (OF_TRITON, OF_CUTE):
        bound.set_config(config)
        kernel(square, square)
        kernel(apart, square)
    assert len(compiled_by_nobody.launches) == 4


# --- auto is total -------------------------------------------------------------------------------------------------------


@helion.kernel
def tiles_of_a_tunable(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    rows = hl.register_tunable("rows", PowerOfTwoFragment(16, 256, 64))
    for m, n in hl.tile(out.size(), block_size=[rows, None]):
        acc = hl.zeros([m, n])
        for k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[m, k], y[k, n])
        out[m, n] = acc.to(x.dtype)
    return out


@pytest.mark.parametrize("target", (HOPPER, "b200"))
@pytest.mark.parametrize("static", (True, False))
def test_tiles_that_tunables_decide_are_the_next_backends(target: str, static: bool) -> None:
    kernel = helion.kernel(tiles_of_a_tunable.fn, backend="auto", static_shapes=static)
    bound = kernel.bind(ARGUMENTS, target=target)
    assert bound.backend == "triton" and "@triton.jit" in bound.to_code()
    assert "not cute: Kernel 'tiles_of_a_tunable' cannot be compiled by the cute backend" in bound.explain()
    with pytest.raises(exc.CuteUnsupported, match="tunables of its own: rows"):
        helion.kernel(tiles_of_a_tunable.fn, backend="cute").bind(ARGUMENTS, target=target).to_code()


def test_a_backend_without_a_plan_is_out_of_question(monkeypatch: pytest.MonkeyPatch) -> None:
    times(monkeypatch, {"cute": 10.0, "triton": 20.0})
    for error in (NeedsValue(Expr("tunable", ("n",), 3)), exc.InvalidConfig("no such plan")):
        monkeypatch.setattr(type(BACKENDS["cute"]), "plan", raises(error))
        bound = helion.kernel(matmul.fn, backend="auto").bind(ARGUMENTS, target=HOPPER)
        assert bound.backend == "triton" and f"not cute: {error}" in bound.explain()


def test_where_all_refuse_all_reasons_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusal(self: Any, program: Any, target: Target) -> exc.Base:
        return exc.BackendUnsupported(what=f"What {self.name} lacks", backend=self.name, remedy="")

    for backend in BACKENDS.values():
        monkeypatch.setattr(type(backend), "refusal", refusal)
    with pytest.raises(exc.BackendUnsupported, match=r"What triton lacks.* Not cute either: What cute lacks"):
        helion.kernel(matmul.fn, backend="auto").bind(ARGUMENTS, target=HOPPER)


def scaled_rows(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size(), dtype=scale.dtype, device=x.device)
    for t in hl.tile(x.size(0)):
        v = x[t, :].to(torch.float32)
        out[t, :] = (v * torch.rsqrt((v * v).mean(-1) + 1)[:, None] * scale[t, :].to(torch.float32)).to(scale.dtype)
    return out


def product_and_other(x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), x.size(0)], dtype=torch.float32, device=x.device)
    for a, b in hl.tile([x.size(0), x.size(0)]):
        acc = hl.zeros([a, b])
        for c in hl.tile(x.size(1)):
            acc = hl.dot(x[a, c], x[b, c].T, acc=acc)
        out[a, b] = acc + other[a, b].to(torch.float32)
    return out


@pytest.mark.parametrize("dtype", [torch.float64, torch.uint16, torch.uint32, torch.uint64], ids=str)
def test_dtypes_that_one_backend_lacks_are_the_others(dtype: torch.dtype) -> None:
    given = torch.empty(256, 256, dtype=BF16, device="meta")
    other = given.to(dtype)
    for function, arguments in ((scaled_rows, (other, given)), (product_and_other, (given, other))):
        assert helion.kernel(function, backend="auto").bind(arguments, target=HOPPER).backend == "triton"
        with pytest.raises(exc.CuteUnsupported, match=f"tensors of {dtype} are not implemented".replace("torch.", "")):
            helion.kernel(function, backend="cute").bind(arguments, target=HOPPER)


def test_one_reason_of_all_is_said_once() -> None:
    with pytest.raises(exc.BackendUnsupported) as refused:
        helion.kernel(turned, backend="auto").bind(tensors((64, 16)), target=HOPPER)
    assert str(refused.value).count("tiles would change their order") == 2  # each backend names itself
    with pytest.raises(exc.BackendUnsupported) as refused:
        helion.kernel(summed_along_tiles, backend="auto").bind(tensors((64, 16)), target=HOPPER)
    assert str(refused.value).count("cumsum along a tile") == 1


def turned(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([16, x.size(0)], device=x.device)
    for i in hl.tile(x.size(0)):
        out[:, i] = x[i, :].reshape(16, i)
    return out


def summed_along_tiles(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for i, j in hl.tile(x.size()):
        out[i, j] = torch.cumsum(x[i, j], -1)
    return out


@pytest.mark.parametrize("backend", (None, "auto", "triton", "cute"))
def test_a_kernel_bound_without_a_gpu_says_what_a_call_there_runs(
    monkeypatch: pytest.MonkeyPatch, backend: str | None
) -> None:
    times(monkeypatch, {"cute": 10.0, "triton": 20.0})
    bound = helion.kernel(matmul.fn, backend=backend).bind(ARGUMENTS, target=HOPPER)
    called = helion.kernel(matmul.fn, backend=backend).bind(on_gpu(), target=HOPPER)
    expected = "triton" if backend == "triton" else "cute"
    assert bound.backend_on_gpu == called.backend == called.backend_on_gpu == expected
    assert "@triton.jit" in helion.kernel(matmul.fn).bind(ARGUMENTS, target=HOPPER).to_triton_code()
    text = bound.explain()
    assert ("on a GPU   cute, predicted 10 µs; not triton: predicted 20 µs; below is triton" in text) == (
        backend is None
    )
