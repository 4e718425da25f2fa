"""The table of GPUs, and looking one up."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import types
from pathlib import Path

import pytest

from helion import hardware
from helion.hardware import Target, from_driver, known_targets, target
from helion.hardware.rows import ROWS


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("sm_80", "A100 SXM 80 GB"),
        ("A100", "A100 SXM 80 GB"),
        ("sm_86", "A10"),
        ("RTX 3090", "RTX 3090"),
        ("sm_89", "L40S"),
        ("rtx-4090", "RTX 4090"),
        ("sm_90", "H100 SXM"),
        ("sm90", "H100 SXM"),
        ("SM_90a", "H100 SXM"),
        ("h100", "H100 SXM"),
        ("H200", "H200"),
        ("b200", "B200"),
        ("sm_100f", "B200"),
        ("b300", "B300"),
        ("sm_103a", "B300"),
        ("sm_120", "RTX 5090"),
        ("gfx942:sramecc+:xnack-", "MI300X"),
        ("mi300x", "MI300X"),
        ("gfx950", "MI355X"),
        ("mi355x", "MI355X"),
        ("pvc", "Data Center GPU Max 1550"),
    ],
)
def test_names_and_aliases(name: str, device: str) -> None:
    assert target(name).device == device


def test_h200_differs_from_h100_in_memory_only() -> None:
    h100, h200 = target("h100"), target("h200")
    assert h100.name == h200.name == "sm_90"
    assert (h100.bandwidth_gb_per_s, h200.bandwidth_gb_per_s) == (3350, 4800)
    assert (h100.l2_bytes, h200.l2_bytes) == (50 * 2**20, 60 * 2**20)
    same = {"device": h100.device, "bandwidth_gb_per_s": 3350, "l2_bytes": h100.l2_bytes, "l2_slices": h100.l2_slices}
    assert dataclasses.replace(h200, **same) == h100


def test_caches_have_slices() -> None:
    """Slices of an A100 read 64 of its 5120 bytes in a cycle; each XCD of an MI300X has 16 of 256 KiB."""
    assert target("a100").l2_slices == 5120 // 64 and target("mi300x").l2_slices == 4 * 2**20 // (256 * 2**10)
    assert all(16 <= each.l2_slices <= 128 for each in map(target, known_targets()))


@pytest.mark.parametrize("row", [row for _, row in ROWS], ids=str)
def test_gpus_with_clusters_have_sizes_of_gpcs(row: Target) -> None:
    assert bool(row.gpc_sms) == row.has("clusters")
    assert all(0 < sms <= 18 for sms in row.gpc_sms)


def test_clusters_of_an_h200_are_as_many_as_were_measured() -> None:
    counts = {ctas: sum(sms // ctas for sms in target("h200").gpc_sms) for ctas in (4, 8, 16)}
    assert counts == {4: 30, 8: 15, 16: 7}


def test_a_target_is_returned_as_it_is() -> None:
    own = dataclasses.replace(target("sm_90"), num_sms=7)
    assert target(own) is own


@pytest.mark.parametrize(
    ("name", "expected", "capability", "arch", "relative"),
    [
        ("sm_88", "sm_88", 88, 88, "A10"),
        ("sm_87", "sm_87", 87, 87, "A10"),
        ("sm_121a", "sm_121", 121, 121, "RTX 5090"),
        ("sm_110", "sm_110", 110, 110, "B300"),
        ("gfx951:xnack-", "gfx951", 0, "gfx951", "MI355X"),
        ("gfx943", "gfx943", 0, "gfx943", "MI300X"),
    ],
)
def test_later_relative(name: str, expected: str, capability: int, arch: int | str, relative: str) -> None:
    got = target(name)
    assert (got.name, got.capability, got.arch, got.device) == (expected, capability, arch, f"as {relative}")
    own = {"name": got.name, "device": got.device, "capability": got.capability, "arch": got.arch}
    assert dataclasses.replace(next(r for _, r in ROWS if r.device == relative), **own) == got


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sm_75", "'sm_75' has no older relative in the table"),
        ("gfx90a", "'gfx90a' has no older relative in the table"),
        ("gfx1100", "'gfx1100' has no older relative in the table"),
        ("hopper", "'hopper' names no GPU"),
        ("sm_", "'sm_' names no GPU"),
        ("sm_90x", "'sm_90x' names no GPU"),
        ("90", "'90' names no GPU"),
        ("", "'' names no GPU"),
    ],
)
def test_unknown_names_list_the_known_ones(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"names no GPU|has no older relative") as caught:
        target(name)
    assert isinstance(caught.value, hardware.UnknownTargetName)
    message = str(caught.value)
    assert message.startswith(reason)
    assert "sm_80, a100" in message
    assert "gfx942, mi300x" in message


def test_known_targets_selects_every_row_once() -> None:
    names = known_targets()
    assert names[:2] == ("sm_80", "sm_86")
    assert [target(name) for name in names] == [row for _, row in ROWS]


def test_the_page_of_support_lists_every_name() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "support.md").read_text()
    first = page.split("```text\n")[1].split("\n")[0].split(", ")
    others = page.split("Names of devices")[1].split("\n\n")[0].split("`")[1::2]
    assert sorted(first + others) == sorted(name for names, _ in ROWS for name in names)


def test_rows_are_consistent() -> None:
    rows = [target(name) for name in known_targets()]
    assert len(set(rows)) == len(rows)  # hashable, and all different
    for row in rows:
        assert row.features <= hardware.FEATURES
        assert row.smem_per_block_bytes <= row.smem_per_sm_bytes
        assert row.max_threads_per_block <= row.max_warps_per_sm * row.warp_size
        assert (row.tensor_memory_columns > 0) == row.has("tcgen05")
        assert row.tensor_memory_bytes_per_sm == 128 * 4 * row.tensor_memory_columns
        assert row.matrix_tflops_for("bfloat16") == row.matrix_tflops_for("float16") > row.fp32_tflops
        assert row.kind == {"sm": "cuda", "gf": "hip", "xp": "xpu"}[row.name[:2]]
        assert row.capability == (row.arch if row.kind == "cuda" else 0)


def test_numbers_of_the_data_sheets() -> None:
    h100, b200, mi300x = target("sm_90"), target("sm_100"), target("gfx942")
    assert (h100.num_sms, h100.registers_per_sm, h100.max_warps_per_sm) == (132, 65536, 64)
    assert [target(t).smem_per_block_bytes for t in ("sm_80", "sm_89", "sm_90")] == [166912, 101376, 232448]
    assert (b200.num_sms, b200.tensor_memory_bytes_per_sm, b200.tensor_memory_columns) == (148, 262144, 512)
    assert (mi300x.num_sms, mi300x.warp_size, mi300x.registers_per_sm) == (304, 64, 131072)
    assert mi300x.smem_per_block_bytes == 65536
    assert [target(t).matrix_tflops_for("tf32") for t in ("sm_80", "sm_90", "sm_100")] == [156, 495, 1100]
    assert [target(t).matrix_tflops_for("bfloat16") for t in ("sm_80", "sm_90", "sm_100")] == [312, 989, 2250]


def test_matrix_rate_of_types_that_the_units_lack() -> None:
    assert target("a100").matrix_tflops_for("float8_e5m2") == 312  # widened to 16 bits
    assert target("h100").matrix_tflops_for("float8_e4m3fn") == 1979
    assert target("mi300x").matrix_tflops_for("float8_e4m3fnuz") == 2615
    assert target("mi300x").matrix_tflops_for("float8_e4m3fn") == 1307
    assert target("h100").matrix_tflops_for("float32") == 67
    assert target("mi355x").matrix_tflops_for("tf32") == 157


def test_features() -> None:
    assert target("sm_90").has("wgmma")
    assert not target("sm_90").has("tcgen05")
    assert target("sm_103").has("tcgen05")
    assert not target("sm_120").has("tcgen05")
    assert not target("sm_86").has("tensor_descriptor")
    with pytest.raises(ValueError, match=r"'tma' is no feature of a GPU; the features are clusters, cp_async"):
        target("sm_90").has("tma")


def test_min_dot() -> None:
    assert target("sm_90").min_dot(2) == (1, 1, 16)
    assert target("sm_90").min_dot(1) == (1, 1, 32)
    assert target("sm_90").min_dot(4) == (1, 1, 16)
    assert target("gfx942").min_dot(2) == (16, 16, 16)
    assert target("gfx942").min_dot(1) == (16, 16, 32)


H200_PROPERTIES = types.SimpleNamespace(
    name="NVIDIA H200",
    gcnArchName="NVIDIA H200",
    major=9,
    minor=0,
    multi_processor_count=132,
    warp_size=32,
    L2_cache_size=62914560,
    regs_per_multiprocessor=65536,
    shared_memory_per_multiprocessor=233472,
    shared_memory_per_block_optin=232448,
    max_threads_per_multi_processor=2048,
)


def test_driver_agrees_with_the_row() -> None:
    assert dataclasses.replace(from_driver(H200_PROPERTIES), device="H200") == target("h200")


def test_driver_overrides_the_row_and_scales_the_rates() -> None:
    changes = {
        "name": "NVIDIA H100 PCIe",
        "multi_processor_count": 114,
        "memory_clock_rate": 1593000,
        "memory_bus_width": 5120,
    }
    got = from_driver(types.SimpleNamespace(**{**vars(H200_PROPERTIES), **changes}))
    assert (got.name, got.device, got.num_sms, got.l2_bytes) == ("sm_90", "NVIDIA H100 PCIe", 114, 62914560)
    assert got.matrix_tflops_for("bfloat16") == pytest.approx(989 * 114 / 132)
    assert got.fp32_tflops == pytest.approx(67 * 114 / 132)
    assert got.bandwidth_gb_per_s == pytest.approx(2039, rel=1e-3)


def test_bytes_in_flight_follow_from_the_bandwidth_of_an_sm() -> None:
    rows = {name: target(name).in_flight_bytes for name in ("sm_80", "sm_86", "sm_90", "h200", "sm_100", "gfx942")}
    assert rows["sm_86"] < rows["gfx942"] < rows["sm_80"] < rows["sm_90"] < rows["h200"] < rows["sm_100"]
    assert rows["sm_90"] == pytest.approx(3350e9 * 1e-6 / 132)


@pytest.mark.parametrize(
    ("name", "num_sms", "memory_clock_rate", "memory_bus_width", "kilobytes"),
    [
        ("NVIDIA H100 NVL", 132, 2619000, 6016, 29.8),
        ("NVIDIA GH200 144G HBM3e", 132, 3201000, 6144, 37.2),
        ("NVIDIA H20", 78, 2619000, 6144, 51.6),
    ],
)
def test_a_device_without_a_row_has_the_bytes_in_flight_of_its_own_memory(
    name: str, num_sms: int, memory_clock_rate: int, memory_bus_width: int, kilobytes: float
) -> None:
    changes = {
        "name": name,
        "multi_processor_count": num_sms,
        "memory_clock_rate": memory_clock_rate,
        "memory_bus_width": memory_bus_width,
    }
    got = from_driver(types.SimpleNamespace(**{**vars(H200_PROPERTIES), **changes}))
    assert got.in_flight_bytes / 1e3 == pytest.approx(kilobytes, abs=0.1)


def test_driver_of_a_device_outside_of_the_table() -> None:
    architecture = {"name": "NVIDIA GB10", "major": 12, "minor": 1}
    got = from_driver(
        types.SimpleNamespace(**architecture, multi_processor_count=48, shared_memory_per_block_optin=101376)
    )
    assert (got.name, got.capability, got.num_sms, got.smem_per_block_bytes) == ("sm_121", 121, 48, 101376)
    assert got.bandwidth_gb_per_s == target("sm_120").bandwidth_gb_per_s


def test_hip_driver_keeps_the_rows_memory() -> None:
    properties = types.SimpleNamespace(
        name="AMD Instinct MI300X",
        gcnArchName="gfx942:sramecc+:xnack-",
        major=9,
        minor=4,
        multi_processor_count=304,
        warp_size=64,
        memory_clock_rate=1300000,
        memory_bus_width=8192,
        shared_memory_per_block_optin=0,
    )
    assert dataclasses.replace(from_driver(properties), device="MI300X") == target("gfx942")


def test_import_is_light() -> None:
    # The package itself may import torch for its own reasons, so an empty one stands in for it.
    code = f"""
import sys, types
sys.modules["helion"] = types.ModuleType("helion")
sys.modules["helion"].__path__ = [{str(Path(hardware.__file__).parents[1])!r}]
import helion.hardware
print(sorted({{"torch", "triton"}} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_frozen_and_printable() -> None:
    row: Target = target("h200")
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.num_sms = 1  # type: ignore[misc]
    assert str(row) == "sm_90 (H200)"
