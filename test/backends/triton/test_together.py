"""One cooperative launch for the grid loops on both sides of a barrier."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.backends.stub import stub_driver
from helion.backends.triton.codegen.together import called_between_barriers
from helion.backends.triton.execute import launcher
from helion.backends.triton.execute.executor import EXECUTOR
from helion.backends.triton.execute.interpreter.races import detect_races


@helion.kernel(static_shapes=False)
def centred_columns(x: torch.Tensor, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Three phases: sums of columns, the columns less their mean, and sums of the rows of that."""
    m, n = x.size()
    sums = torch.empty([n], dtype=torch.float32, device=x.device)
    centred = torch.empty_like(x)
    rows = torch.empty([m], dtype=torch.float32, device=x.device)
    for tile_n in hl.tile(n):
        acc = hl.zeros([tile_n], dtype=torch.float32)
        for tile_m in hl.tile(m):
            acc += x[tile_m, tile_n].to(torch.float32).sum(0)
        sums[tile_n] = acc
    hl.barrier()
    for tile_m, tile_n in hl.tile([m, n]):
        centred[tile_m, tile_n] = (x[tile_m, tile_n] - sums[tile_n][None, :] / m) * factor
    hl.barrier()
    for tile_m in hl.tile(m):
        total = hl.zeros([tile_m], dtype=torch.float32)
        for tile_n in hl.tile(n):
            total += centred[tile_m, tile_n].to(torch.float32).sum(-1)
        rows[tile_m] = total
    return centred, rows


@helion.kernel()
def halved_twice(x: torch.Tensor) -> torch.Tensor:
    """Two parts of the host code, of which the second has two phases."""
    first, second, out = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        first[tile] = x[tile] / 2
    doubled = first * 2
    for tile in hl.tile(x.size(0)):
        second[tile] = doubled[tile] / 2
    hl.barrier()
    for tile in hl.tile(x.size(0)):
        out[tile] = second[x.size(0) - 1 - tile.index] / 2
    return out


def config(kernel: Any, args: tuple[Any, ...], **changes: Any) -> helion.Config:
    bound = kernel.bind(args)
    options = {"pid_type": "persistent_interleaved", "cooperative_launch": True, **changes}
    found: helion.Config = bound.config_spec.normalize({**bound.default_config(), **options})
    return found


@pytest.mark.parametrize("pid_type", ["persistent_interleaved", "persistent_blocked"])
@pytest.mark.parametrize("shape", [(37, 61), (5, 300), (1, 1)])
def test_phases_see_what_those_before_have_written(shape: tuple[int, int], pid_type: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape) + 0.5
    run = centred_columns.bind((x, 0.5)).compile_config(config(centred_columns, (x, 0.5), pid_type=pid_type))
    centred, rows = run(x, 0.5)
    exact = (x.double() - x.double().mean(0)) * 0.5
    torch.testing.assert_close(centred.double(), exact, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rows.double(), exact.sum(1), atol=1e-4, rtol=1e-5)


def test_a_barrier_orders_accesses_of_different_programs() -> None:
    """The detector of races sees each phase by itself."""
    x = torch.randn(37, 61)
    run = centred_columns.bind((x, 0.5)).compile_config(config(centred_columns, (x, 0.5)))
    with detect_races():
        run(x, 0.5)


def test_one_kernel_calls_all_phases_of_a_place() -> None:
    x = torch.randn(40, 50)
    text = centred_columns.bind((x, 0.5)).to_triton_code(config(centred_columns, (x, 0.5)))
    kernel = text[text.index("def _helion_centred_columns_together(") : text.index("def centred_columns(")]
    called = called_between_barriers(f"@triton.jit\n{kernel.strip()}")
    assert [name for name, _ in called] == [
        "_helion_centred_columns",
        "_helion_centred_columns_1",
        "_helion_centred_columns_2",
    ]
    assert kernel.count("_grid_barrier(_ARRIVED)") == 2
    host = text[text.index("def centred_columns(") :]
    assert host.count("_launcher(") == 1 and "launch_cooperative_grid=True" in host


def test_places_with_a_single_phase_keep_their_launch() -> None:
    x = torch.randn(77)
    full = config(halved_twice, (x,))
    bound = halved_twice.bind((x,))
    torch.testing.assert_close(bound.compile_config(full)(x), x.flip(0) / 4)
    host = bound.to_triton_code(full)
    host = host[host.index("def halved_twice(") :]
    assert host.count("_launcher(") == 2 and host.count("launch_cooperative_grid=True") == 1


def test_the_kernel_is_compiled_and_launched_as_one() -> None:
    x = torch.randn(64, 96)
    full = config(centred_columns, (x, 0.5))
    resources = centred_columns.bind((x, 0.5), target="h200").resources(full)
    assert resources.fits and not resources.spill_bytes
    run = centred_columns.bind((x, 0.5)).compile_config(full)
    with stub_driver():
        run(x, 0.5)


def test_a_module_without_helion_has_a_counter_of_its_own() -> None:
    x = torch.randn(40, 50)
    options = helion.OutputCodeOptions(allow_helion_deps=False)
    text = centred_columns.bind((x, 0.5)).to_code(config(centred_columns, (x, 0.5)), options=options)
    assert "import helion" not in text and "def arrived_programs(device)" in text


def test_programs_that_are_not_resident_are_refused() -> None:
    bound = centred_columns.bind((torch.randn(40, 50), 0.5))
    with pytest.raises(exc.InvalidConfig, match="cooperative_launch=True needs programs that are all resident"):
        bound.config_spec.normalize({**bound.default_config(), "pid_type": "flat", "cooperative_launch": True})
    flat = {**bound.default_config(), "pid_type": "flat", "cooperative_launch": True}
    assert not bound.config_spec.repair(flat)["cooperative_launch"]


@pytest.mark.parametrize(("warps", "registers", "most"), [(32, None, 2), (16, None, 4), (16, 64, 2), (32, 256, 1)])
def test_an_sm_holds_all_of_its_programs(warps: int, registers: int | None, most: int) -> None:
    bound = helion.kernel(centred_columns.fn).bind((torch.empty(256, 512, device="meta"), 0.5), target="h200")
    options = {
        "pid_type": "persistent_interleaved",
        "cooperative_launch": True,
        "num_warps": warps,
        "maxnreg": registers,
    }
    asked = {**bound.default_config(), **options, "num_sm_multiplier": 16}
    with pytest.raises(
        exc.InvalidConfig, match=f"more programs of {warps} warps than an SM of .* holds; use at most {most}"
    ):
        bound.config_spec.normalize(asked)
    assert bound.config_spec.repair(asked)["num_sm_multiplier"] == most
    assert bound.config_spec.repair({**asked, "num_sm_multiplier": most})["cooperative_launch"]
    apart = bound.config_spec.repair({**asked, "cooperative_launch": False})
    assert apart["num_sm_multiplier"] == 16


def test_a_refused_launch_names_the_remedy() -> None:
    """The driver refuses what only the binary tells, such as registers."""
    error = RuntimeError("Triton Error [CUDA]: too many blocks in cooperative launch")
    assert EXECUTOR.is_failure(error) and not EXECUTOR.is_failure(RuntimeError("an illegal memory access"))
    assert EXECUTOR.reason(error).endswith("use a smaller num_sm_multiplier, or cooperative_launch=False")


def test_accesses_are_through_pointers() -> None:
    x = torch.empty(256, 512, device="meta")
    bound = helion.kernel(centred_columns.fn).bind((x, 0.5), target="h200")
    sizes = [32] * len(bound.default_config()["block_sizes"])
    full = {**bound.default_config(), "block_sizes": sizes, "pid_type": "persistent_interleaved"}
    full["cooperative_launch"] = False
    boxed = {**full, "indexing": ["tensor_descriptor"] * len(full["indexing"])}
    assert "tensor_descriptor" in bound.config_spec.normalize(boxed)["indexing"]
    assert set(bound.config_spec.normalize({**boxed, "cooperative_launch": True})["indexing"]) == {"pointer"}


def test_other_targets_have_a_launch_for_each_phase() -> None:
    bound = centred_columns.bind((torch.empty(64, 96, device="meta"), 0.5), target="gfx942")
    with pytest.raises(exc.InvalidConfig, match="cooperative launches are CUDA's, and the target is gfx942"):
        bound.config_spec.normalize({**bound.default_config(), "cooperative_launch": True})


def test_a_checked_kernel_drops_the_key() -> None:
    x = torch.randn(7, 9)
    full = config(centred_columns, (x, 0.5))
    bound = helion.kernel(centred_columns.fn, static_shapes=False, checked=True).bind((x, 0.5))
    assert "cooperative_launch" not in bound.config_spec.normalize(full)
    torch.testing.assert_close(bound.compile_config(full)(x, 0.5)[0], (x - x.mean(0)) * 0.5)


def test_a_kernel_without_a_barrier_has_no_such_launch() -> None:
    @helion.kernel()
    def add(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] + 1
        return out

    bound = add.bind((torch.randn(30),))
    with pytest.raises(exc.InvalidConfig, match="no grid loops on both sides of a barrier"):
        bound.config_spec.normalize({**bound.default_config(), "cooperative_launch": True})


def test_launches_on_a_cpu_have_a_counter_each() -> None:
    one, other = (launcher.arrived_programs(torch.device("cpu")) for _ in range(2))
    assert one.tolist() == [0] and one.data_ptr() != other.data_ptr()


@pytest.mark.gpu
def test_streams_and_graphs_have_counters_of_their_own() -> None:
    x = torch.randn(300, 500, device="cuda")
    run = centred_columns.bind((x, 0.5)).compile_config(config(centred_columns, (x, 0.5)))
    expected = run(x, 0.5)
    torch.testing.assert_close(expected[0], (x - x.mean(0)) * 0.5, atol=1e-4, rtol=1e-4)
    streams = [torch.cuda.Stream() for _ in range(2)]
    places = {launcher.arrived_programs(x.device).data_ptr()}
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            places.add(launcher.arrived_programs(x.device).data_ptr())
            found = [run(x, 0.5) for _ in range(50)]
        torch.cuda.synchronize()
        assert all(torch.equal(each[0], expected[0]) for each in found)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(x, 0.5)
        places.add(launcher.arrived_programs(x.device).data_ptr())
    assert len(places) == 4
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured[1], expected[1])
