"""The public surface of bound kernels: what users and tools look at."""

from __future__ import annotations

import contextvars
import copy
import json
import pickle
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import _allocation

import helion
import helion.language as hl
from helion import exc
from helion.backends.triton.heuristics.registry import HEURISTICS

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")


@helion.kernel
def scale_rows(x: torch.Tensor, factor: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] * factor
    return out


def test_a_file_of_options_goes_to_the_assembler() -> None:
    x = torch.ones(8, 16)
    bound = scale_rows.bind((x, 2.0))
    config = {"block_sizes": [8], "advanced_controls_file": Path("/tmp/best.acf")}
    assert "ptx_options='--apply-controls /tmp/best.acf'" in bound.to_triton_code(config)
    torch.testing.assert_close(bound.compile_config(config)(x, 2.0), x * 2)
    assert "ptx_options" not in bound.to_triton_code()


@helion.kernel
def row_softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], dim=-1)
    return out


@helion.kernel
def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


BOUND = {
    "pointwise": (scale_rows, (meta(1000, 63), 2.0)),
    "softmax": (row_softmax, (meta(4096, 1000),)),
    "matmul": (product, (meta(777, 1000), meta(1000, 500))),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BOUND)
def test_every_heuristic_either_seeds_or_declines(name: str, target: str) -> None:
    kernel, args = BOUND[name]
    bound = kernel.bind(args, target=target)
    seeding = {seed.heuristic for seed in bound.seeds}
    declining = {heuristic for heuristic, _ in bound.declined}
    assert seeding | declining == {h.name for h in HEURISTICS}
    assert not seeding & declining
    assert all(reason for _, reason in bound.declined)
    assert 1 <= len(bound.seeds) <= 10
    configs = [seed.config for seed in bound.seeds]
    assert len(set(configs)) == len(configs)
    for seed in bound.seeds:
        assert bound.config_spec.normalize(seed.config) == seed.config
        assert seed.reason and seed.predicted.fits
    assert bound.config_spec.default_config() == bound.default_config()
    assert bound.config_spec.normalize(bound.conservative_config()) == bound.conservative_config()


def test_facts_of_each_kind() -> None:
    softmax, matmul, pointwise = (BOUND[n][0].bind(BOUND[n][1]).facts for n in ("softmax", "matmul", "pointwise"))
    assert len(softmax.reductions) == 1 and not softmax.matmuls and softmax.pointwise is None
    assert len(matmul.matmuls) == 1 and not matmul.reductions and len(matmul.accumulators) == 1
    assert matmul.matmul_with_reduction_epilogue is None and matmul.attention is None
    assert pointwise.pointwise is not None and not pointwise.reductions
    assert [op.kind for op in matmul.memory_ops] == ["load", "load", "store"]


def test_the_target_is_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    args = (meta(64, 64), 2.0)
    assert scale_rows.bind(args, target="sm_80") is not scale_rows.bind(args, target="sm_90")
    assert scale_rows.bind(args, target="sm_90") is scale_rows.bind(args, target="sm_90")
    assert scale_rows.bind(args).target.name == "sm_90"
    monkeypatch.setenv("HELION_TARGET", "sm_100")
    assert scale_rows.bind(args).target.name == "sm_100"
    assert scale_rows.bind(args, target=helion.hardware.target("h200")).target.name == "sm_90"
    with pytest.raises(exc.UnknownTarget, match="sm_90"):
        scale_rows.bind(args, target="no such thing")


def test_a_foreign_target_runs_on_cpu_tensors_but_not_on_meta_tensors() -> None:
    x = torch.randn(7, 63) + 3
    bound = scale_rows.bind((x, 2.0), target="gfx942")
    torch.testing.assert_close(bound(x, 2.0), x * 2.0)
    with pytest.raises(exc.WrongTarget, match="meta"):
        scale_rows.bind((meta(7, 63), 2.0), target="sm_80")(meta(7, 63), 2.0)


def test_a_call_without_a_config_says_once_what_it_uses(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = helion.kernel(row_softmax.fn)
    for columns in (63, 77):
        kernel(torch.randn(5, columns))
    lines = [line for line in capsys.readouterr().err.splitlines() if "no config given" in line]
    assert len(lines) == 1 and "@helion.kernel(config=helion.Config(" in lines[0]
    said, _, _ = lines[0].partition(": @helion.kernel")
    assert re.search(r"using seed \d of \d, by Triton\w+$", said) and len(said.split()) <= 12


def test_the_line_about_the_config_can_be_silenced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELION_LOGS", "-default")
    helion.kernel(row_softmax.fn)(torch.randn(5, 63))
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("HELION_LOGS", "-defaults")
    with pytest.raises(ValueError, match="HELION_LOGS='-defaults': .* or -default"):
        helion.kernel(row_softmax.fn)(torch.randn(5, 63))


def test_configs_are_used_as_given() -> None:
    x = torch.randn(5, 63)
    one = helion.kernel(row_softmax.fn, config=helion.Config(block_sizes=[2], num_warps=8))
    assert one.bind((x,)).to_triton_code().count("num_warps=8") == 1
    torch.testing.assert_close(one(x), torch.softmax(x, -1))
    several = helion.kernel(row_softmax.fn, configs=[{"block_sizes": [4]}, {"block_sizes": [2]}])
    torch.testing.assert_close(several(x), torch.softmax(x, -1))
    assert "_BLOCK_SIZE_0 = tl.constexpr(4)" in several.bind((x,)).to_triton_code()
    illegal_first = helion.kernel(row_softmax.fn, configs=[{"block_sizes": [4, 4]}, {"block_sizes": [2]}])
    illegal_first(x)
    assert "_BLOCK_SIZE_0 = tl.constexpr(2)" in illegal_first.bind((x,)).to_triton_code()
    with pytest.raises(exc.NoConfigFound, match="num_warps"):
        helion.kernel(row_softmax.fn, configs=[{"num_warps": 3}, {"num_warps": 5}])(x)


def test_configs_have_attributes_and_travel_between_processes() -> None:
    config = helion.Config(block_size=8, num_warps=2, my_tunable=3)
    assert (config.block_sizes, config.num_warps, config.my_tunable, config.maxnreg) == ([8], 2, 3, None)
    with pytest.raises(AttributeError, match="blok_sizes"):
        config.blok_sizes  # noqa: B018
    hash(config)
    again = pickle.loads(pickle.dumps(config))
    assert again == config == copy.deepcopy(config) and again._hash is None


def test_tuning_without_configs_uses_what_the_rules_propose(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 63)
    plain = helion.kernel(row_softmax.fn)
    assert plain.autotune((x,)) == plain.bind((x,)).default_config()
    monkeypatch.setenv("HELION_DISALLOW_AUTOTUNING", "1")
    with pytest.raises(exc.AutotuningDisallowedInEnvironment, match="HELION_DISALLOW_AUTOTUNING"):
        helion.kernel(row_softmax.fn, configs=[{"block_sizes": [4]}, {"block_sizes": [2]}]).autotune((x,))
    assert helion.kernel(row_softmax.fn, autotune_effort="none").autotune((x,)) == plain.bind((x,)).default_config()
    assert helion.kernel(row_softmax.fn, config={"block_sizes": [4]}).autotune((x,)).block_sizes == [4]


def test_a_search_of_the_users() -> None:
    class Search:
        def __init__(self, bound: Any, args: Any, **options: Any) -> None:
            assert bound.config_spec and len(args) == 1 and options in ({}, {"copies": 3})

        def autotune(self) -> helion.Config:
            return helion.Config(block_sizes=[2])

    x = torch.randn(5, 63)
    kernel = helion.kernel(row_softmax.fn, autotuner_fn=Search)
    torch.testing.assert_close(kernel(x), torch.softmax(x, -1))
    assert "_BLOCK_SIZE_0 = tl.constexpr(2)" in kernel.bind((x,)).to_triton_code()
    assert kernel.autotune((x,), copies=3)["block_sizes"] == [2]


def test_modules_without_helion() -> None:
    x = torch.randn(5, 63)
    for config in ({}, {"pid_type": "persistent_blocked"}):
        text = row_softmax.bind((x,)).to_code(config, options=helion.OutputCodeOptions(allow_helion_deps=False))
        assert not re.search(r"^\s*(import|from) helion", text, re.MULTILINE)
        compile(text, "module", "exec")
    with pytest.raises(exc.InvalidAPIUsage, match="jax_fn"):
        row_softmax.bind((x,)).to_code(options=helion.OutputCodeOptions(jax_fn=True))


def test_the_printed_decorator_gives_the_same_config() -> None:
    for kernel, args in BOUND.values():
        bound = kernel.bind(args)
        line = bound.format_kernel_decorator(bound.default_config())
        again = eval(line.removeprefix("@"), {"helion": helion})(kernel.fn).bind(args)
        assert again.to_triton_code() == bound.to_triton_code(bound.default_config())


def test_reset_forgets_and_set_config_stays() -> None:
    kernel = helion.kernel(row_softmax.fn)
    x = torch.randn(3, 8)
    bound = kernel.bind((x,))
    bound.set_config({"block_sizes": [1]})
    assert kernel.bind((x,)) is bound and "_BLOCK_SIZE_0 = tl.constexpr(1)" in bound.to_triton_code()
    kernel.reset()
    assert kernel.bind((x,)) is not bound


# --- resources against Triton compiled by hand -------------------------------------------------------------------------


@triton.jit
def _scale_by_hand(x, out, factor):
    rows = tl.program_id(0) * 16 + tl.arange(0, 16)
    columns = tl.arange(0, 64)
    mask = (rows < 1000)[:, None] & (columns < 63)[None, :]
    places = rows[:, None] * 63 + columns[None, :]
    value = tl.load(x + places, mask=mask, other=0.0).to(tl.float32) * factor
    tl.store(out + places, value.to(tl.bfloat16), mask=mask)


@triton.jit
def _product_by_hand(x, y, out, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    m = (pid % 8) * BM + tl.arange(0, BM)
    n = (pid // 8) * BN + tl.arange(0, BN)
    acc = tl.full([BM, BN], 0.0, tl.float32)
    for k0 in tl.range(0, 1024, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(x + (m[:, None] * 1024 + k[None, :]))
        b = tl.load(y + (k[:, None] * 1024 + n[None, :]))
        acc = tl.dot(a, b, acc=acc, out_dtype=tl.float32)
    tl.store(out + (m[:, None] * 1024 + n[None, :]), acc.to(tl.bfloat16))


def by_hand(fn: triton.JITFunction, types: dict[str, str], constexprs: dict[str, int], **options: int) -> int:
    pointers = [i for i, t in enumerate(types.values()) if t.startswith("*")]
    signature = {**types, **dict.fromkeys(constexprs, "constexpr")}
    attrs = {(i,): [["tt.divisibility", 16]] for i in pointers}
    source = ASTSource(fn, signature=signature, constexprs=constexprs, attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).metadata.shared


def test_resources_agree_with_hand_compiled_triton_from_two_threads() -> None:
    square = meta(1024, 1024)
    jobs = {
        "scale": lambda: scale_rows.bind((meta(1000, 63), 2.0), target="sm_90").resources({"block_sizes": [16]}),
        "product": lambda: product.bind((square, square), target="sm_90").resources(
            {"block_sizes": [128, 128, 64], "num_warps": 8, "num_stages": 3}
        ),
    }
    answers: dict[str, object] = {}
    threads = [threading.Thread(target=lambda n=n, f=f: answers.update({n: f()})) for n, f in jobs.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pointers = {"x": "*bf16", "out": "*bf16", "factor": "fp32"}
    assert answers["scale"].shared_bytes == by_hand(_scale_by_hand, pointers, {}, num_warps=4, num_stages=1)
    tiles = {"BM": 128, "BN": 128, "BK": 64}
    types = {"x": "*bf16", "y": "*bf16", "out": "*bf16"}
    assert answers["product"].shared_bytes == by_hand(_product_by_hand, types, tiles, num_warps=8, num_stages=3)
    assert answers["product"].registers > answers["scale"].registers > 0
    assert answers["product"].source == "ptxas" and answers["product"].fits


def test_too_much_shared_memory_is_an_answer_and_no_error() -> None:
    square = meta(4096, 4096)
    config = {"block_sizes": [256, 256, 128], "num_warps": 8, "num_stages": 4}
    report = product.bind((square, square), target="sm_90").resources(config)
    assert not report.fits and report.shared_bytes > report.limit_bytes


# --- explain and the command line --------------------------------------------------------------------------------------


def test_explain_as_text_and_as_json() -> None:
    bound = row_softmax.bind((meta(4096, 1000),), target="sm_90")
    data = json.loads(bound.explain("json"))
    assert data["kernel"] == "row_softmax" and data["target"] == "sm_90"
    assert {s["heuristic"] for s in data["seeds"]} == {s.heuristic for s in bound.seeds}
    assert data["seeds"][0]["measured"]["registers"] > 0
    text = bound.explain()
    for seed in bound.seeds:
        assert seed.heuristic in text and seed.reason in text
    lines = {line.partition(": ")[0]: line for line in text.splitlines() if ": Triton" in line}
    for name, reason in bound.declined:
        assert name in lines[f"  {reason}"]
    assert text.count(bound.declined[0][1]) == 1
    with pytest.raises(exc.InvalidAPIUsage, match="text"):
        bound.explain("yaml")


def test_a_process_never_imports_torchs_compiler() -> None:
    code = (
        "import sys, torch; sys.path.insert(0, 'examples'); import softmax as s\n"
        "s.softmax(torch.randn(5, 63)); s.softmax.bind((torch.empty(64, 64, device='meta'),)).seeds\n"
        "bad = [m for m in ('torch._dynamo', 'torch._inductor') if m in sys.modules]; assert not bad, bad"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, env={**__import__("os").environ, "PYTHONPATH": str(ROOT)}
    )


@helion.kernel(config=helion.Config(block_sizes=[16, 16], indexing="tensor_descriptor"))
def doubled_boxes(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * 2
    return out


@helion.kernel(config=helion.Config(block_sizes=[16, 16], indexing="tensor_descriptor"))
def doubled_boxes_of(xs: list[torch.Tensor]) -> torch.Tensor:
    x = xs[0]
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * 2
    return out


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_functions_of_configs_take_tensors_of_any_alignment(dtype: torch.dtype, offset: int) -> None:
    memory = (torch.randn(40 * 32 + 8) + 1).to(dtype)
    x = memory[offset:][: 40 * 32].view(40, 32)
    aligned = memory[:1280].view(40, 32)
    bound = doubled_boxes.bind((aligned,))
    function = bound.compile_config()
    assert "make_tensor_descriptor" in bound.to_code()
    for given in (x, aligned, x):
        assert torch.equal(function(given), given * 2)
        assert torch.equal(bound(given), given * 2)
    of_list = doubled_boxes_of.bind(([aligned],))
    for run in (of_list.compile_config(), of_list, doubled_boxes_of):
        assert torch.equal(run([x]), x * 2)


def test_every_thread_has_what_allocates_for_tensor_descriptors() -> None:
    x = torch.randn(32, 32)
    function = doubled_boxes.bind((x,)).compile_config()
    found: list[object] = []

    def launch(*args: object, **options: object) -> None:
        found.append(_allocation._allocator.get())

    thread = threading.Thread(target=lambda: function(x, _launcher=launch))
    thread.start()
    thread.join()
    assert len(found) == 1 and not isinstance(found[0], _allocation.NullAllocator)


def test_an_allocator_of_the_users_stays() -> None:
    x = torch.randn(32, 32)
    function = doubled_boxes.bind((x,)).compile_config()

    def call() -> object:
        triton.set_allocator(mine)
        function(x, _launcher=lambda *args, **options: None)
        return _allocation._allocator.get()

    def mine(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, dtype=torch.int8)

    assert contextvars.copy_context().run(call) is mine


def test_a_notebook_shows_the_page_of_explain() -> None:
    bound = scale_rows.bind((torch.empty(8, 64, device="meta"), 2.0), target="sm_90")
    shown = bound._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;') and shown.endswith("</iframe>")
    assert "<html" not in shown and "scale_rows" in shown
