"""The seed that runs is the one whose binary keeps what was predicted, and the next process knows it."""

from __future__ import annotations

import dataclasses
import errno
import inspect
import itertools
import json
import math
import os
import pathlib
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from backends.cute import products
from triton.backends.nvidia.compiler import get_ptxas
from triton.runtime.errors import OutOfResources

import helion
import helion.language as hl
from helion import Config, exc
from helion._support import files, logs
from helion.autotuner.proposal import Predicted, Seed
from helion.autotuner.seeds import SeedReport
from helion.backends.cute.toolchain import chain
from helion.backends.cute.toolchain.audit import Audit
from helion.backends.cute.toolchain.errors import CompilationFailed, ToolMissing
from helion.backends.triton.toolchain import offline
from helion.backends.triton.toolchain.chain import TritonToolchain
from helion.backends.triton.toolchain.ending import ending_assembler
from helion.runtime import stub_driver
from helion.runtime.specialization import binary_check, compiled
from helion.runtime.specialization.binary_check import (
    ALLOWED_SPILL_BYTES,
    MAX_SLOW,
    MORE_TRIES,
    BinaryResources,
    Rejected,
    Verdict,
    decide,
)
from helion.runtime.variants.variant import Variant


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """A cache of its own, and time for as many seeds as are tried, however busy the machine is."""
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(binary_check, "PATIENCE_SECONDS", math.inf)
    return tmp_path


# --- the rule ------------------------------------------------------------------------------------------------------------

PREDICTED = Predicted(
    registers_per_thread=64,
    spill_risk=0.0,
    shared_bytes=0,
    tensor_memory_columns=0,
    waves=1.0,
    occupancy_blocks=1,
    fits=True,
    bytes_moved=0,
    flops=0,
    time_us=10.0,
    register_limit=255,
)


def options(*microseconds: float) -> list[tuple[Config, Predicted]]:
    return [(Config(num_warps=at), dataclasses.replace(PREDICTED, time_us=us)) for at, us in enumerate(microseconds)]


def spills(count: int) -> BinaryResources:
    return BinaryResources(spill_bytes=count)


def strict(count: int) -> BinaryResources:
    return BinaryResources(spill_bytes=count, never_spills=True)


UNFIT = BinaryResources(refusal="does not fit: 3 columns, there are 2")
EVEN = (10.0,) * 7


@pytest.mark.parametrize(
    ("times", "taken", "chosen", "rejected", "measured"),
    [
        (EVEN, [spills(0)], 0, [], 1),
        (EVEN, [spills(ALLOWED_SPILL_BYTES)], 0, [], 1),
        (EVEN, [spills(ALLOWED_SPILL_BYTES + 1), spills(0)], 1, [0], 2),
        (EVEN, [spills(500), spills(600), UNFIT, spills(400), spills(0)], 3, [0, 1, 2], 1 + MORE_TRIES),
        (EVEN, [spills(500), spills(500), spills(500), spills(500)], 0, [], 4),
        (EVEN, [UNFIT, UNFIT, UNFIT, UNFIT, UNFIT, UNFIT, spills(300)], 6, [0, 1, 2, 3, 4, 5], 7),
        (EVEN, [UNFIT, spills(300), spills(64)], 2, [0, 1], 3),
        (EVEN, [strict(12), strict(8), strict(0)], 2, [0, 1], 3),
        ((10.0, 39.0), [strict(12), strict(0)], 1, [0], 2),
        ((10.0, 41.0, 40.0), [spills(500), spills(0), spills(65)], 2, [0], 2),
        ((10.0, 1e6), [UNFIT, spills(100)], 1, [0], 2),
        (EVEN[:2], [UNFIT, UNFIT], 0, [], 2),
        (EVEN, [spills(500), None, spills(0)], 2, [0], 3),
    ],
)
def test_which_config_runs(
    times: Sequence[float], taken: Sequence[BinaryResources | None], chosen: int, rejected: list[int], measured: int
) -> None:
    asked: list[int] = []

    def measure(config: Config) -> BinaryResources | None:
        asked.append(config["num_warps"])
        return taken[config["num_warps"]]

    found = decide(options(*times), measure, lambda: True)
    assert found is not None
    assert found.config["num_warps"] == chosen
    assert [each.config["num_warps"] for each in found.rejected] == rejected
    assert len(asked) == measured
    assert all(each.fits == (each.reason != UNFIT.refusal) for each in found.rejected)


@pytest.mark.parametrize(("spilled", "us", "chosen"), [(184, 14.0, 0), (184, 11.5, 1), (512, 14.0, 1), (9999, 39.0, 1)])
def test_products_that_spill_little_give_way_to_what_is_hardly_slower(spilled: int, us: float, chosen: int) -> None:
    taken = [spills(spilled), spills(0)]
    found = decide(options(10.0, us), lambda config: taken[config["num_warps"]], lambda: True, multiplies=True)
    assert found is not None and found.config["num_warps"] == chosen


@pytest.mark.parametrize(("us", "chosen"), [(11.0, 0), (10.1, 1)])
def test_products_that_all_spill_run_with_the_least_time(us: float, chosen: int) -> None:
    taken = [spills(532), spills(452)]
    found = decide(options(10.0, us), lambda config: taken[config["num_warps"]], lambda: True, multiplies=True)
    assert found is not None and found.config["num_warps"] == chosen


def test_kernels_that_never_spill_give_way_to_slower_ones() -> None:
    taken = [strict(12), strict(0)]
    found = decide(options(10.0, 20.0), lambda config: taken[config["num_warps"]], lambda: True, multiplies=True)
    assert found is not None and found.config["num_warps"] == 1


def test_nothing_is_said_of_a_first_config_that_cannot_be_measured() -> None:
    assert decide(options(*EVEN), lambda config: None, lambda: True) is None
    assert decide([], lambda config: spills(0), lambda: True) is None


def test_time_runs_out_for_spills_only() -> None:
    taken = [UNFIT, UNFIT, spills(100), spills(0)]
    found = decide(options(*EVEN[:4]), lambda config: taken[config["num_warps"]], lambda: False)
    assert found is not None and found.config["num_warps"] == 2


@pytest.mark.parametrize(
    ("registers", "taken", "chosen", "measured"),
    [
        ((210, 210, 109, 110), (5120, 5036, 0, 0), 2, [0, 2]),
        ((203, 221, 221, 116), (260, 2200, 2200, 0), 3, [0, 3]),
        ((210, 200, 200, 190, 180, 170), (900, 800, 700, 600, 500, 0), 4, [0, 1, 3, 4]),
        ((210, 210, 220, 211), (900, 0, 0, 0), 0, [0]),
        ((None, 180, 200, 170), (0, 900, 0, 0), 3, [0, 1, 3]),
    ],
)
def test_seeds_of_fewer_registers_are_compiled_when_time_has_run_out(
    registers: Sequence[int | None], taken: Sequence[int], chosen: int, measured: list[int]
) -> None:
    asked: list[int] = []

    def measure(config: Config) -> BinaryResources:
        at = config["num_warps"]
        asked.append(at)
        return UNFIT if registers[at] is None else spills(taken[at])

    given = [
        (config, dataclasses.replace(predicted, registers_per_thread=count or 1))
        for (config, predicted), count in zip(options(*(10.0,) * len(registers)), registers, strict=True)
    ]
    found = decide(given, measure, lambda: False, multiplies=True)
    assert found is not None and found.config["num_warps"] == chosen
    assert asked == measured


# --- first calls, with real binaries -------------------------------------------------------------------------------------


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([x.size(0), y.size(1)]):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc.to(x.dtype)
    return out


X, Y = (torch.randn(512, 512, dtype=torch.bfloat16) for _ in range(2))
#: An accumulator of 8192 numbers takes all 255 registers of 32 threads: it spills; four stages of the next do not fit.
SPILLS = {"block_sizes": [64, 128, 16], "num_warps": 1, "num_stages": 1}
TOO_BIG = {"block_sizes": [128, 256, 128], "num_warps": 8, "num_stages": 4}
GOOD = {"block_sizes": [64, 64, 32], "num_warps": 4, "num_stages": 2}


def planted(monkeypatch: pytest.MonkeyPatch, *configs: dict[str, Any], **options: Any) -> helion.Kernel:
    """A kernel whose seeds, in this order and the first the default, are ``configs``."""
    kernel = helion.kernel(product, backend="triton", **options)
    ordinary = Variant.__init__

    def bind(variant: Variant, *args: Any) -> None:
        ordinary(variant, *args)
        analysis = variant.analysis
        full = [analysis.space.normalize(config) for config in configs]
        seeds = tuple(Seed(config=c, heuristic="Planted", reason="", predicted=PREDICTED) for c in full)
        analysis.__dict__["seeds"] = SeedReport(seeds=seeds, declined=())
        analysis.__dict__["default_config"] = full[0]
        predict = analysis.predict
        monkeypatch.setattr(analysis, "predict", lambda config: PREDICTED if config in full else predict(config))

    monkeypatch.setattr(Variant, "__init__", bind)
    return kernel


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """The configs whose binaries were looked at."""
    found: list[Config] = []
    ordinary = compiled.Compiled.resources

    def resources(self: compiled.Compiled, config: Config, **options: Any) -> Any:
        found.append(config)
        return ordinary(self, config, **options)

    monkeypatch.setattr(compiled.Compiled, "resources", resources)
    return found


def sizes(configs: Sequence[Config]) -> list[Any]:
    return [config["block_sizes"] for config in configs]


def test_a_seed_that_spills_and_one_that_does_not_fit_give_way(
    monkeypatch: pytest.MonkeyPatch, measured: list[Config], capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = planted(monkeypatch, SPILLS, TOO_BIG, GOOD, print_output_code=True)
    with stub_driver() as stub:
        kernel(X, Y)
        kernel(X, Y)
    bound = kernel.bind((X, Y))
    assert sizes(measured) == [SPILLS["block_sizes"], TOO_BIG["block_sizes"], GOOD["block_sizes"]]
    assert bound.config is not None and bound.config["block_sizes"] == GOOD["block_sizes"]
    assert bound.default_config()["block_sizes"] == SPILLS["block_sizes"]
    assert {launch.grid for launch in stub.launches} == {(64, 1, 1)}
    printed = capsys.readouterr().err
    assert "using seed 3 of 3" in printed and "bytes per thread" in printed and "bytes of shared memory" in printed
    assert printed.count("# Output code written to") == 1, "only what runs is shown"
    text = bound.explain()
    assert (
        "runs       seed 3" in text
        and "not run    seed 1: spills" in text
        and "not run    seed 2: does not fit" in text
    )
    data = json.loads(bound.explain("json"))["verdict"]
    assert data["config"]["block_sizes"] == GOOD["block_sizes"]
    assert [each["fits"] for each in data["rejected"]] == [True, False]
    # the next process
    measured.clear()
    kernel.reset()
    with stub_driver():
        kernel(X, Y)
    assert kernel.bind((X, Y)).config == bound.config and not measured


def test_the_launch_finds_the_binary_that_was_looked_at(monkeypatch: pytest.MonkeyPatch, cache: pathlib.Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache / "triton"))
    kernel = planted(monkeypatch, GOOD)
    bound = kernel.bind((X, Y))
    binary_check.verdict_of(bound.variant.compiled)
    made = set((cache / "triton").rglob("*.cubin"))
    with stub_driver():
        kernel(X, Y)
    assert set((cache / "triton").rglob("*.cubin")) == made and len(made) == 1


@pytest.mark.parametrize("given", ["config", "configs", "set_config", "cpu", "empty"])
def test_what_is_not_checked(given: str, monkeypatch: pytest.MonkeyPatch, measured: list[Config]) -> None:
    decorated = {"config": {"config": GOOD}, "configs": {"configs": [GOOD]}}.get(given, {})
    kernel = planted(monkeypatch, SPILLS, GOOD, **decorated)
    if given == "cpu":
        x = torch.eye(16, dtype=torch.bfloat16)
        assert torch.equal(kernel(x, x), x)
    else:
        x = X[:0] if given == "empty" else X
        if given == "set_config":
            kernel.bind((x, Y)).set_config(GOOD)
        with stub_driver():
            kernel(x, Y)
    assert not measured


def test_threads_check_once(monkeypatch: pytest.MonkeyPatch, measured: list[Config]) -> None:
    kernel = planted(monkeypatch, SPILLS, GOOD)
    bound = kernel.bind((X, Y))
    start = threading.Barrier(6)

    def call(at: int) -> Any:
        start.wait()
        bound.variant.ensure_config_exists((X, Y))
        return bound.config

    with stub_driver(), ThreadPoolExecutor(6) as pool:
        found = set(pool.map(call, range(6)))
    assert len(found) == 1 and len(measured) == 2


def test_a_compiler_that_refuses_a_seed_and_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    ordinary = TritonToolchain.resources

    def resources(self: TritonToolchain, names: Any, plan: Any, target: Any, **options: Any) -> Any:
        if dict(plan.launch.options)["num_warps"] == 1:
            raise RuntimeError("PassManager::run failed")
        return ordinary(self, names, plan, target, **options)

    monkeypatch.setattr(TritonToolchain, "resources", resources)
    kernel = planted(monkeypatch, SPILLS, GOOD)
    found = binary_check.verdict_of(kernel.bind((X, Y)).variant.compiled)
    assert found.config["block_sizes"] == GOOD["block_sizes"]
    assert found.rejected[0].reason == "does not compile: PassManager::run failed" and not found.rejected[0].fits

    def missing(*args: Any, **options: Any) -> Any:
        raise FileNotFoundError("cuobjdump")

    monkeypatch.setattr(TritonToolchain, "resources", missing)
    kernel = planted(monkeypatch, GOOD, SPILLS)
    bound = kernel.bind((X, Y))
    assert binary_check.verdict_of(bound.variant.compiled) == Verdict(config=bound.default_config())
    assert binary_check.kept(bound.variant.specialized, {bound.default_config()}) is None, (
        "nothing is known for the next process"
    )


@pytest.fixture
def slow_assembler(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Callable[[int], pathlib.Path]:
    """Make the first compilations never leave ptxas, and the limit reach only these. Return the file with a line for each
    compilation.
    """
    real, calls, script = get_ptxas(90), tmp_path / "calls", tmp_path / "bin" / "ptxas"
    never, hangs = tmp_path / "never", tmp_path / "hangs"
    os.mkfifo(never)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))

    def make(slow: int) -> pathlib.Path:
        script.parent.mkdir()
        script.write_text(
            "#!/bin/sh\n"
            f'case "$*" in *--version*|*--help*) exec {real.path} "$@";; esac\n'
            f"if [ -e {hangs} ]; then read line < {never}; fi\n"
            f'exec {real.path} "$@"\n'
        )
        script.chmod(0o755)
        tool = type(real)(str(script), real.version)
        monkeypatch.setattr("triton.backends.nvidia.compiler.get_ptxas", lambda arch: tool)
        monkeypatch.setattr(
            offline, "ending_assembler", lambda path, seconds, _: ending_assembler(path, only(slow, seconds))
        )
        return calls

    def only(slow: int, seconds: float | None) -> float | None:
        """Compilations that end have no limit, since a machine may be busy."""
        with calls.open("a+") as file:
            file.seek(0)
            made = len(file.readlines())
            file.write("compiled\n")
        if made < slow:
            hangs.touch()
            return seconds
        hangs.unlink(missing_ok=True)
        return None

    return make


def test_a_seed_that_compiles_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch, slow_assembler: Callable[[int], pathlib.Path], capsys: pytest.CaptureFixture[str]
) -> None:
    calls = slow_assembler(1)
    monkeypatch.setenv("HELION_COMPILE_LIMIT_SECONDS", "1")
    kernel = planted(monkeypatch, SPILLS, GOOD)
    with stub_driver():
        kernel(X, Y)
    assert calls.read_text().count("\n") >= 2
    bound = kernel.bind((X, Y))
    assert bound.config is not None and bound.config["block_sizes"] == GOOD["block_sizes"]
    found = binary_check.verdict_of(bound.variant.compiled)
    assert [each.reason for each in found.rejected] == ["does not compile: ptxas was ended after 1 s"]
    assert "ptxas was ended after 1 s" in capsys.readouterr().err
    monkeypatch.setenv("HELION_COMPILE_LIMIT_SECONDS", "7")
    assert binary_check.kept(bound.variant.specialized, {bound.config}) is None, "another limit has verdicts of its own"


def test_after_two_that_are_given_up_the_last_one_compiles_as_long_as_it_takes(
    monkeypatch: pytest.MonkeyPatch, slow_assembler: Callable[[int], pathlib.Path]
) -> None:
    slow_assembler(MAX_SLOW)
    monkeypatch.setenv("HELION_COMPILE_LIMIT_SECONDS", "1")
    kernel = planted(monkeypatch, SPILLS, TOO_BIG, GOOD)
    bound = kernel.bind((X, Y))
    given: list[float | None] = []
    ordinary = compiled.Compiled.resources

    def resources(self: compiled.Compiled, config: Config, **options: Any) -> Any:
        given.append(options["seconds"])
        return ordinary(self, config, **options)

    monkeypatch.setattr(compiled.Compiled, "resources", resources)
    found = binary_check.verdict_of(bound.variant.compiled)
    assert found.config == bound.conservative_config() and given == [1, 1, None]
    reasons = [each.reason for each in found.rejected]
    assert reasons[:2] == ["does not compile: ptxas was ended after 1 s"] * 2
    assert reasons[2] == "was not compiled: 2 configs before it took longer than 1 s"


def test_without_a_limit_ptxas_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, slow_assembler: Callable[[int], pathlib.Path]
) -> None:
    slow_assembler(0)
    monkeypatch.setenv("HELION_COMPILE_LIMIT_SECONDS", "0")
    given: list[float | None] = []
    ordinary = compiled.Compiled.resources

    def resources(self: compiled.Compiled, config: Config, **options: Any) -> Any:
        given.append(options["seconds"])
        return ordinary(self, config, **options)

    monkeypatch.setattr(compiled.Compiled, "resources", resources)
    bound = planted(monkeypatch, GOOD).bind((X, Y))
    assert binary_check.verdict_of(bound.variant.compiled).config["block_sizes"] == GOOD["block_sizes"] and given == [
        None
    ]


def test_only_processes_of_the_assembler_are_ended(tmp_path: pathlib.Path) -> None:
    other = subprocess.Popen(["sleep", "1000"])  # of this thread, as servers and loaders of the user's are
    try:
        with ending_assembler("/somewhere/sleep", 0.1) as ending:
            assert subprocess.run(["sleep", "1000"], check=False).returncode == -signal.SIGKILL
        assert ending.ended and other.poll() is None
        with ending_assembler("/somewhere/ptxas", 0.1) as ending:
            assert subprocess.run(["sleep", "0.5"], check=False).returncode == 0
        assert not ending.ended and other.poll() is None
        with ending_assembler("/somewhere/sleep", None) as ending:
            assert subprocess.run(["sleep", "0.2"], check=False).returncode == 0
        assert not ending.ended
        for seconds in (None, 1e4):
            with ending_assembler("/somewhere/sleep", seconds, lambda: False) as ending:
                assert subprocess.run(["sleep", "0.2"], check=False).returncode == 0
            assert not ending.ended
            over = threading.Event()
            threading.Timer(0.1, over.set).start()
            with ending_assembler("/somewhere/sleep", seconds, over.is_set) as ending:
                assert subprocess.run(["sleep", "1000"], check=False).returncode == -signal.SIGKILL
            assert ending.ended and other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_what_the_device_refuses_is_known_to_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = planted(monkeypatch, GOOD, SPILLS)
    bound = kernel.bind((X, Y))
    first, second = (seed.config for seed in bound.seeds)
    assert (
        binary_check.replace_failed(bound.variant.compiled, first, str(OutOfResources(3, 2, "shared memory"))) == second
    )
    kernel.reset()
    again = kernel.bind((X, Y))
    found = binary_check.verdict_of(again.variant.compiled)
    assert found.config == second and "Required: 3" in found.rejected[0].reason
    assert binary_check.replace_failed(again.variant.compiled, second, "") == again.conservative_config()
    assert binary_check.replace_failed(again.variant.compiled, again.conservative_config(), "") is None


# --- on disk -------------------------------------------------------------------------------------------------------------


def verdict_files(cache: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in (cache / "verdicts").rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"config": 3, "rejected": []}',
        b'{"config": {}, "rejected": [1]}',
        b'{"config": {"block_sizes": [1, 1, 1]}, "rejected": []}',
    ],
)
def test_what_is_no_verdict_is_made_again(content: bytes, monkeypatch: pytest.MonkeyPatch, cache: pathlib.Path) -> None:
    bound = planted(monkeypatch, GOOD).bind((X, Y))
    expected = binary_check.verdict_of(bound.variant.compiled)
    (file,) = verdict_files(cache)
    file.write_bytes(content)
    bound.variant.compiled.verdict = None
    assert binary_check.verdict_of(bound.variant.compiled) == expected
    assert Verdict.from_dict(json.loads(file.read_text())) == expected


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_disk_that_takes_nothing_costs_one_line(
    number: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: pathlib.Path
) -> None:
    bound = planted(monkeypatch, GOOD).bind((X, Y))
    expected = bound.compile_config(GOOD)

    def fails(*args: Any, **options: Any) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(files, "write_whole", fails)
    logs.say_once.cache_clear()
    assert binary_check.verdict_of(bound.variant.compiled).config["block_sizes"] == GOOD["block_sizes"]
    assert "other processes check their seeds again" in capsys.readouterr().err
    assert not verdict_files(cache) and expected is bound.compile_config(GOOD)


def test_no_cache_is_asked_for(monkeypatch: pytest.MonkeyPatch, cache: pathlib.Path, measured: list[Config]) -> None:
    monkeypatch.setenv("HELION_SKIP_CACHE", "1")
    for _ in range(2):
        binary_check.verdict_of(planted(monkeypatch, GOOD).bind((X, Y)).variant.compiled)
    assert not verdict_files(cache) and len(measured) == 2


def test_verdicts_are_apart_by_code_target_and_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(target: str, *args: torch.Tensor) -> str:
        return binary_check._key(helion.kernel(product).bind(args, target=target).variant.specialized)

    keys = {
        key("sm_90", X, Y),
        key("h200", X, Y),
        key("sm_100", X, Y),
        key("sm_90", X[:64], Y),
        key("sm_90", X.float(), Y.float()),
    }
    assert len(keys) == 5 and key("sm_90", X, Y) in keys
    monkeypatch.setattr(TritonToolchain, "compiler", lambda self, target: "another")
    assert key("sm_90", X, Y) not in keys


def test_readers_see_whole_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes write while this one reads."""
    bound = planted(monkeypatch, GOOD, SPILLS).bind((X, Y))
    first, second = (seed.config for seed in bound.seeds)
    written = [
        Verdict(config=first),
        Verdict(config=second, rejected=(Rejected(config=first, reason="spills " * 2000, fits=True),)),
    ]
    binary_check.keep(bound.variant.specialized, written[0])
    done = threading.Event()

    def write() -> None:
        for each in itertools.islice(itertools.cycle(written), 200):
            binary_check.keep(bound.variant.specialized, each)
        done.set()

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write) for _ in range(2)]
        while not done.is_set():
            assert binary_check.kept(bound.variant.specialized, {first, second}) in written
        for writer in writers:
            writer.result()


# --- the cute backend ----------------------------------------------------------------------------------------------------


@pytest.fixture
def binaries(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[list[Audit | Exception]]:
    """What the binaries of the cute backend take, in the order in which they are compiled."""
    queue: list[Audit | Exception] = []

    def folder(kernel: Any) -> pathlib.Path:
        if isinstance(queue[0], Exception):
            raise queue.pop(0)
        (tmp_path / chain.CUBIN).write_bytes(b"")
        return tmp_path

    monkeypatch.setattr(chain, "folder", folder)
    monkeypatch.setattr(chain, "tool", lambda name: name)
    monkeypatch.setattr(chain.audit, "audit", lambda *args, **options: queue.pop(0))
    yield queue


def binary(instructions: int) -> Audit:
    return Audit(registers=168, stack_bytes=8, opcodes={"STL": instructions}, mainloop=0)


def test_products_of_the_cute_backend_are_checked_too(binaries: list[Audit | Exception]) -> None:
    a = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    kernel = helion.kernel(products.matmul.fn, backend="cute")
    bound = kernel.bind((a, a), target="h200")
    configs = [seed.config for seed in bound.seeds]
    assert len(configs) > 2 and bound.default_config() == configs[0]
    binaries += [binary(100), CompilationFailed("ptxas gave up"), binary(3)]
    found = binary_check.verdict_of(bound.variant.compiled)
    assert found.config == configs[2]
    assert [each.reason for each in found.rejected] == [
        "spills 400 bytes per thread",
        "does not compile: ptxas gave up",
    ]
    assert not binaries
    kernel.reset()
    again = kernel.bind((a, a), target="h200")
    assert binary_check.verdict_of(again.variant.compiled) == found


def test_without_the_dsl_the_default_is_left_to_its_launch(binaries: list[Audit | Exception]) -> None:
    a = torch.empty(64, 64, dtype=torch.bfloat16, device="meta")
    bound = helion.kernel(products.matmul.fn, backend="cute").bind((a, a), target="h200")
    binaries += [ToolMissing("no DSL"), ToolMissing("no DSL")]
    assert binary_check.verdict_of(bound.variant.compiled) == Verdict(config=bound.default_config())
    with pytest.raises(exc.BaseError):
        bound.resources()


def test_a_product_that_does_not_fit_says_so(binaries: list[Audit | Exception]) -> None:
    a = torch.empty(4096, 4096, dtype=torch.bfloat16, device="meta")
    target = helion.hardware.target("h200")
    bound = helion.kernel(products.matmul.fn, backend="cute").bind((a, a), target=target)
    binaries.append(binary(0))
    assert bound.resources().fits
    less = dataclasses.replace(target, smem_per_block_bytes=1000)
    plan = bound.plan()
    binaries.append(binary(0))
    found = chain.TOOLCHAIN.resources(inspect.unwrap(bound.compile_config()).__globals__, plan, less)
    assert not found.fits and "bytes of shared memory per block" in found.overflow[0]


# --- on a GPU ------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_first_call_on_a_gpu_runs_the_seed_that_was_looked_at(
    monkeypatch: pytest.MonkeyPatch, measured: list[Config], cache: pathlib.Path
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache / "triton"))
    kernel = planted(monkeypatch, SPILLS, TOO_BIG, GOOD)
    x, y = X.cuda(), Y.cuda()
    expected = x.double() @ y.double()
    binaries = []
    for _ in range(2):
        for _ in range(3):
            torch.testing.assert_close(kernel(x, y).double(), expected, rtol=2e-2, atol=0.5)
        config = kernel.bind((x, y)).config
        assert config is not None and config["block_sizes"] == GOOD["block_sizes"]
        binaries.append(len(list((cache / "triton").rglob("*.cubin"))))
        kernel.reset()
    assert binaries == [3, 3], "no binary is compiled twice"
    assert len(measured) == 3, "what runs is known after a reset"
