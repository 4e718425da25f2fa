"""Checked mode: indices out of range and memory that nobody wrote, on CPU tensors, eagerly, and as code for a GPU."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion._compiler.ir.printer import print_program
from helion._compiler.ir.verifier import verify
from helion._compiler.passes.always.checks import insert_checks
from helion._testing import EXAMPLES_DIR, check, import_path
from helion.backends.triton.toolchain import offline
from helion.backends.triton.toolchain.signature import offline_signature
from helion.language._unwritten import PATTERNS, mark_unwritten, unwritten

CONFIG = helion.Config(block_sizes=[16])
N = 37
WAYS: dict[str, dict[str, Any]] = {
    "compiled": {"config": CONFIG, "checked": True},
    "dynamic": {"config": CONFIG, "checked": True, "static_shapes": False},
    "eager": {"ref_mode": helion.RefMode.EAGER, "checked": True},
}
ways = pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)


# --- kernels that reach past an end, for the wrong arguments ---------------------------------------------------------------


def gather(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(places, dtype=x.dtype)
    for tile in hl.tile(places.size(0)):
        out[tile] = x[places[tile]]
    return out


def gather_rows(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    out = torch.empty([places.size(0), x.size(1)], dtype=x.dtype)
    for tile in hl.tile(places.size(0)):
        out[tile, :] = x[places[tile], :]
    return out


def gather_masked(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(places, dtype=x.dtype)
    for tile in hl.tile(places.size(0)):
        at = places[tile]
        out[tile] = hl.load(x, [at], extra_mask=(at >= 0) & (at < x.size(0)))
    return out


def scatter(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(places.size(0)):
        out[places[tile]] = x[tile]
    return out


def accumulate(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(places.size(0)):
        hl.atomic_add(out, [places[tile]], x[tile])
    return out


def scalar_index(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(places, dtype=x.dtype)
    for row in hl.grid(places.size(0)):
        out[row] = x[places[row]]
    return out


def arithmetic(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(places, dtype=x.dtype)
    for tile in hl.tile(places.size(0)):
        out[tile] = x[tile.index + places[tile] - tile.index]
    return out


KERNELS: dict[Callable[..., torch.Tensor], str] = {
    gather: r"'gather' reads 'x' out of range in dimension 0.*`out\[tile\] = x\[places\[tile\]\]`",
    gather_rows: r"'gather_rows' reads 'x' out of range in dimension 0.*`out\[tile, :\] = x\[places\[tile\], :\]`",
    scatter: r"'scatter' writes 'out' out of range in dimension 0.*`out\[places\[tile\]\] = x\[tile\]`",
    accumulate: r"'accumulate' updates 'out' out of range in dimension 0.*`hl\.atomic_add",
    scalar_index: r"'scalar_index' reads 'x' out of range in dimension 0.*`out\[row\] = x\[places\[row\]\]`",
    arithmetic: r"'arithmetic' reads 'x' out of range in dimension 0.*tile\.index \+ places",
}


def arguments(kernel: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(N, 5) if kernel is gather_rows else torch.randn(N), torch.randperm(N)


def line_of(kernel: Callable[..., Any], message: str) -> int:
    text = re.findall(r"`(.*)`", message)[0]
    lines = Path(__file__).read_text().splitlines()
    return next(i for i in range(kernel.__code__.co_firstlineno, len(lines)) if text in lines[i]) + 1


@ways
@pytest.mark.parametrize("function", KERNELS)
@pytest.mark.parametrize("bad", [N, N + 1000, -1])
def test_indices_out_of_range_are_errors(function: Any, bad: int, options: dict[str, Any]) -> None:
    x, places = arguments(function)
    config = {} if function is not scalar_index or "config" not in options else {"config": helion.Config()}
    kernel = helion.kernel(function, **{**options, **config})
    expected = x[places] if function not in (scatter, accumulate) else torch.zeros_like(x).index_copy(0, places, x)
    torch.testing.assert_close(kernel(x, places), expected)
    places[N - 1] = bad
    with pytest.raises(IndexError, match=KERNELS[function]) as caught:
        kernel(x, places)
    message = str(caught.value)
    assert isinstance(caught.value, exc.IndexOutOfRange)
    assert f"test_checked.py:{line_of(function, message)}: " in message


def picked(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(places, dtype=x.dtype)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.gather(x[tile, :], 1, places[tile, :])
    return out


@ways
@pytest.mark.parametrize("bad", [6, -1])
@pytest.mark.parametrize("width", [3, 6, 9])
def test_places_to_gather_from_are_checked(bad: int, width: int, options: dict[str, Any]) -> None:
    kernel = helion.kernel(picked, **options)
    x, places = torch.randn(N, 6), torch.randint(0, 6, (N, width))
    assert torch.equal(kernel(x, places), torch.gather(x, 1, places))
    places[N - 1, width - 1] = bad
    with pytest.raises((IndexError, RuntimeError), match="out of range along dimension 1|out of bounds"):
        kernel(x, places)


def test_places_to_gather_from_are_checked_on_a_gpu() -> None:
    args = torch.randn(N, 6), torch.zeros(N, 6, dtype=torch.int64)
    text = helion.kernel(picked, checked=True).bind(args, target="sm_90").to_triton_code()
    assert "gathers out of range along dimension 1, which has 6 elements" in text
    assert "gathers" not in helion.kernel(picked).bind(args, target="sm_90").to_triton_code()


@ways
def test_lanes_that_a_mask_turns_off_may_be_anywhere(options: dict[str, Any]) -> None:
    x, places = torch.randn(N), torch.tensor([3, -1, 10**6, N, 0])
    assert torch.equal(helion.kernel(gather_masked, **options)(x, places), torch.stack([x[3], *torch.zeros(3), x[0]]))


def ragged(x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([ends.size(0)], dtype=x.dtype)
    for row in hl.grid(ends.size(0)):
        acc = hl.zeros([], dtype=x.dtype)
        for tile in hl.tile(0, ends[row], block_size=8):
            acc = acc + x[tile].sum()
        out[row] = acc
    return out


@ways
def test_a_loop_may_end_where_the_tensor_does(options: dict[str, Any]) -> None:
    kernel = helion.kernel(ragged, **{k: v for k, v in options.items() if k != "config"})
    x = torch.arange(float(N))
    assert kernel(x, torch.tensor([N, 3])).tolist() == [x.sum(), x[:3].sum()]
    with pytest.raises(
        exc.IndexOutOfRange, match=r"'ragged' reads 'x' out of range.*`acc = acc \+ x\[tile\]\.sum\(\)`"
    ):
        kernel(x, torch.tensor([3, N + 1]))


def long_copy(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.zeros([n], dtype=x.dtype)
    for tile in hl.tile(n):
        out[tile] = x[tile]
    return out


def test_a_tile_that_an_argument_sizes_is_checked() -> None:
    kernel = helion.kernel(long_copy, config=CONFIG, checked=True, static_shapes=False)
    assert torch.equal(kernel(torch.ones(N), N), torch.ones(N))
    with pytest.raises(exc.IndexOutOfRange, match="'long_copy' reads 'x' out of range in dimension 0"):
        kernel(torch.ones(N), N + 1)


@pytest.mark.parametrize("static", [False, True])
def test_tiles_of_a_size_that_only_the_launch_knows_are_chosen_in_checked_mode(static: bool) -> None:
    kernel = helion.kernel(long_copy, checked=True, static_shapes=static)
    assert torch.equal(kernel(torch.ones(N), N - 1), torch.ones(N - 1))
    with pytest.raises(exc.IndexOutOfRange, match="'long_copy' reads 'x' out of range in dimension 0"):
        kernel(torch.ones(N), N + 1)


def column(x: torch.Tensor, at: int) -> torch.Tensor:
    out = torch.empty([x.size(0)], dtype=x.dtype)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, at]
    return out


@pytest.mark.parametrize("options", [{}, *WAYS.values()], ids=["unchecked", *WAYS])
def test_an_argument_as_an_index_counts_from_the_end_as_in_python(options: dict[str, Any]) -> None:
    kernel, x = helion.kernel(column, **options), torch.randn(N, 5)
    for at in (0, 4, -1, -5, 2):
        assert torch.equal(kernel(x, at), x[:, at])
    for at in (5, -6):
        with pytest.raises(exc.BaseError, match="out of range"):
            kernel(x, at)


# --- memory that nobody wrote ----------------------------------------------------------------------------------------------


def reads_scratch(x: torch.Tensor, upto: int) -> torch.Tensor:
    scratch = torch.empty_like(x)
    out = torch.empty_like(x)
    for tile in hl.tile(upto):
        scratch[tile] = x[tile]
    hl.barrier()
    for tile in hl.tile(x.size(0)):
        out[tile] = scratch[tile]
    return out


def writes_part(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    whole = x.new_empty(x.size())
    part = torch.empty([2, x.size(0)], dtype=x.dtype)
    for tile in hl.tile(x.size(0)):
        whole[tile] = x[tile]
        part[1, tile] = x[tile]
    return whole, part


def adds_to_nothing(x: torch.Tensor) -> torch.Tensor:
    total = torch.empty([1], dtype=x.dtype)
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(total, [0], x[tile].sum())
    return total


def host_fills(x: torch.Tensor) -> torch.Tensor:
    scratch = torch.empty_like(x)
    scratch.fill_(2)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = scratch[tile]
    return out


@ways
@pytest.mark.parametrize("dtype", list(PATTERNS))
def test_reading_what_nobody_wrote_is_an_error(dtype: torch.dtype, options: dict[str, Any]) -> None:
    given = options if "ref_mode" in options else {**options, "config": helion.Config(block_sizes=[16, 16])}
    kernel = helion.kernel(reads_scratch, **given)
    x = torch.arange(N).to(dtype)
    assert kernel(x, N).tolist() == list(range(N))
    with pytest.raises(exc.UnwrittenRead, match=r"test_checked.py:\d+: kernel 'reads_scratch' reads .*'scratch'"):
        kernel(x, N - 1)


@ways
def test_results_that_were_not_written_are_warned_about(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    whole, part = helion.kernel(writes_part, **options)(torch.ones(N))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "UnwrittenOutput" in line]
    assert "'writes_part' returns result 1, `part = torch.empty([2, x.size(0)], dtype=x.dtype)`" in line
    assert f"test_checked.py:{writes_part.__code__.co_firstlineno + 2}" in line
    assert f"of which {N} elements were never written, the first at [0, 0]" in line
    assert torch.equal(whole, part[1])
    quiet = helion.kernel(writes_part, **options, ignore_warnings=[exc.UnwrittenOutput])
    quiet(torch.ones(N))
    assert "UnwrittenOutput" not in capsys.readouterr().err


@ways
def test_sums_begin_with_something(options: dict[str, Any]) -> None:
    with pytest.raises(exc.UnwrittenRead, match="'adds_to_nothing' updates .*'total'"):
        helion.kernel(adds_to_nothing, **options)(torch.ones(N))


@ways
def test_what_host_code_filled_is_written(options: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert helion.kernel(host_fills, **options)(torch.ones(N)).tolist() == [2.0] * N
    assert "UnwrittenOutput" not in capsys.readouterr().err


@pytest.mark.parametrize("dtype", list(PATTERNS))
def test_the_mark_is_no_number_that_computing_gives(dtype: torch.dtype) -> None:
    marked = torch.empty(3, 2, dtype=dtype).t()
    mark_unwritten(marked)
    holes = unwritten(marked)
    assert holes is not None and holes.all()
    if dtype.is_floating_point:
        assert marked.isnan().all()
        made = torch.tensor([float("nan"), -float("nan"), 0.0, float("inf")], dtype=dtype)
        for values in (made, made * 0, made - made, made.sqrt()):
            found = unwritten(values)
            assert found is not None and not found.any()
    assert unwritten(torch.zeros(3, dtype=torch.int8)) is None


# --- the code ----------------------------------------------------------------------------------------------------------------


def ptx(kernel: helion.Kernel, *args: Any) -> str:
    bound = kernel.bind(args, target="sm_90")
    code = bound._analysis.code(bound.variant.full(None))
    module = bound.compile_config(allow_print=False)
    (name,) = code.plan.kernel_names
    signature = offline_signature(code.plan, bound.target, 0)
    text = offline.compile_offline(inspect.unwrap(module).__globals__[name], **signature).asm["ptx"]
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("function", [gather, scatter, accumulate])
def test_code_for_a_gpu_has_the_assertions_only_when_checked(function: Any) -> None:
    x, places = arguments(function)
    assert "__assertfail" not in ptx(helion.kernel(function, config=CONFIG), x, places)
    text = ptx(helion.kernel(function, config=CONFIG, checked=True), x, places)
    assert "__assertfail" in text
    encoded = ",".join(str(ord(letter)) for letter in f"kernel '{function.__name__}'")  # PTX spells strings in bytes
    assert encoded in re.sub(r"\s", "", text)


def test_resources_of_a_checked_kernel_are_measured() -> None:
    bound = helion.kernel(gather, config=CONFIG, checked=True).bind(arguments(gather), target="sm_90")
    assert bound.resources().fits


def test_tiles_of_the_tensor_itself_need_no_check() -> None:
    for name, args in (("softmax", (torch.randn(5, 300),)), ("matmul", (torch.randn(70, 40), torch.randn(40, 50)))):
        function = getattr(import_path(EXAMPLES_DIR / f"{name}.py"), name).fn
        text = helion.kernel(function, checked=True).bind(args).to_triton_code()
        assert "out of range" not in text, text


SAMPLED = ("embedding", "gather_gemv", "rope", "segment_reduction", "split_k")
EXAMPLES = sorted(path.stem for path in EXAMPLES_DIR.glob("*.py") if path.stem != "demo")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SAMPLED else pytest.mark.prove) for name in EXAMPLES]
)
def test_examples_pass_every_check(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = import_path(EXAMPLES_DIR / f"{name}.py")
    checked: dict[str, helion.Kernel] = {}
    for case, kernel, args in module.cases():
        if kernel.name not in checked:
            settings = helion.Settings(**{**kernel.settings.to_dict(), "checked": True})
            checked[kernel.name] = helion.Kernel(kernel.fn, configs=kernel.configs, settings=settings, key=kernel.key)
            check(case, checked[kernel.name], module.reference, args)
    assert "UnwrittenOutput" not in capsys.readouterr().err


def test_a_check_is_an_op_of_its_own() -> None:
    program = helion.kernel(gather).bind(arguments(gather))._analysis.program
    checked = insert_checks(program)
    verify(checked, "insert_checks")
    lines = [line.strip() for line in print_program(checked).splitlines()]
    assert [line for line in lines if line.startswith("check")] == ["check 0 <= %0@0 < 37"], lines
    assert insert_checks(program) is not program and "check" not in print_program(program)


def test_flattened_and_rolled_programs_are_checked_too() -> None:
    @helion.kernel(checked=True, config=helion.Config(block_sizes=[8, 8], flatten_loops=[True]))
    def flat(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        out = torch.empty([rows.size(0), x.size(1)])
        for i, j in hl.tile(out.size()):
            out[i, j] = x[rows[i], j]
        return out

    @helion.kernel(checked=True, config=helion.Config(block_sizes=[1], reduction_loops=[8]))
    def rolled(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        out = torch.empty([rows.size(0)])
        for i in hl.tile(rows.size(0)):
            out[i] = x[rows[i], :].sum(-1)
        return out

    x, rows = torch.randn(6, 20), torch.tensor([1, 5, 0])
    assert torch.equal(flat(x, rows), x[rows])
    torch.testing.assert_close(rolled(x, rows), x[rows].sum(-1))
    for kernel in (flat, rolled):
        with pytest.raises(exc.IndexOutOfRange, match="reads 'x' out of range in dimension 0, which has 6 elements"):
            kernel(x, torch.tensor([1, 6, 0]))


def test_the_setting_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    x, places = torch.randn(N), torch.full((5,), N)
    kernel = helion.kernel(gather, config=CONFIG)
    plain = kernel.bind((x, places))
    kernel.settings.checked = True
    assert kernel.bind((x, places)) is not plain
    with pytest.raises(exc.IndexOutOfRange, match="'gather' reads 'x' out of range in dimension 0"):
        kernel(x, places)
    kernel.settings.checked = False
    assert kernel.bind((x, places)) is plain
    monkeypatch.setenv("HELION_CHECKED", "1")
    assert helion.kernel(gather).settings.checked


def test_calls_inside_of_a_stub_driver_notice_the_setting() -> None:
    x, places = torch.randn(N), torch.arange(5)
    kernel = helion.kernel(gather, config=CONFIG)
    with helion.runtime.stub_driver():
        for _ in range(3):
            kernel(x, places)
        written = kernel.__call__
        kernel.settings.checked = True
        assert kernel.__call__ is not written
        for _ in range(3):
            kernel(x, places)
        assert kernel.__call__ == kernel._call


# --- without checked mode --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comments", [True, False])
def test_the_interpreter_names_the_line_where_it_leaves_memory(comments: bool) -> None:
    x, places = torch.randn(N), torch.full((5,), 10**9)
    with pytest.raises(IndexError) as caught:
        helion.kernel(gather, config=CONFIG, output_origin_lines=comments)(x, places)
    message = str(caught.value)
    assert isinstance(caught.value, exc.IndexOutOfRange)
    assert f"test_checked.py:{gather.__code__.co_firstlineno + 3}: kernel 'gather' reaches outside" in message
    assert "out[tile] = x[places[tile]]" in message and "HELION_CHECKED=1" in message


@pytest.mark.parametrize("bad", [N, -1])
def test_eager_mode_hides_no_index_out_of_range(bad: int) -> None:
    eager: dict[str, Any] = {"ref_mode": helion.RefMode.EAGER}
    for function in (gather, scatter, accumulate, scalar_index):
        x, places = arguments(function)
        places[0] = bad
        with pytest.raises(exc.IndexOutOfRange, match=rf"out of range in dimension 0, .* at index {bad}, in"):
            helion.kernel(function, **eager)(x, places)
    places = torch.tensor([bad, 3])
    assert helion.kernel(gather_masked, **eager)(x, places).tolist() == [0.0, x[3]]


# --- on a GPU ----------------------------------------------------------------------------------------------------------------

_CALLS = """
import pathlib, helion
from helion._testing import import_path
t = import_path(pathlib.Path({file!r}))
kernel = helion.kernel(getattr(t, {name!r}), config=t.CONFIG, checked=True)
x, places = (a.to({device!r}) for a in t.arguments(getattr(t, {name!r})))
kernel(x, places)
places[3] = {bad}
try:
    kernel(x, places)
except helion.exc.CheckFailed as error:
    print("caught", error, flush=True)
"""


def stopped(name: str, bad: int, device: str) -> subprocess.CompletedProcess[str]:
    """Runs a kernel with right and with wrong indices in a process of its own: a failed assertion on a GPU leaves no
    context to go on with."""
    code = _CALLS.format(file=__file__, name=name, bad=bad, device=device)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_a_process_of_its_own_catches_the_error() -> None:
    done = stopped("gather", N, "cpu")
    assert re.match(r"caught test_checked.py:\d+: kernel 'gather' reads 'x' out of range", done.stdout), done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["gather", "scatter", "accumulate"])
@pytest.mark.parametrize("bad", [N, -1])
def test_a_gpu_stops_at_the_access(name: str, bad: int) -> None:
    done = stopped(name, bad, "cuda")
    assert f"caught Kernel '{name}'" in done.stdout, done.stdout + done.stderr
    assert re.search(rf"test_checked.py:\d+: kernel '{name}' \w+ '\w+' out of range in dimension 0", done.stderr)


@helion.kernel(config=helion.Config(block_sizes=[2], num_warps=4))
def counted(x: torch.Tensor, counts: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(counts, [x[tile]], 1.0)


def test_an_access_outside_of_all_memory_names_the_tensor_of_its_line() -> None:
    with pytest.raises(exc.IndexOutOfRange, match=r"reads 4 bytes at address 0x0, outside of 'counts'\."):
        counted(torch.tensor([0, 1]), torch.ones(0))
    with pytest.raises(exc.IndexOutOfRange, match=r"4 bytes before argument 'counts' \(16 bytes\)\."):
        counted(torch.tensor([0, -1]), torch.ones(4))
