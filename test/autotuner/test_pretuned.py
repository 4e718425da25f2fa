"""Measured configs of kernels with the same structure: how they are found, kept and tried."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import hardware
from helion._testing import import_path
from helion.autotuner import pretuned
from helion.autotuner.cache.rows import Entry, Key, Row
from helion.autotuner.options import Options
from helion.cli import tune
from helion.cli.work import Report, Work
from helion.runtime.bound import measured_row
from helion.runtime.tuning import candidates, first_call

ROOT = pathlib.Path(__file__).parents[2]
ENDLESS = first_call.Times(compiling=0.0, predicting=float("inf"), timing=float("inf"), end=float("inf"))
H200, H100 = hardware.target("h200"), hardware.target("h100")


@helion.kernel()
def normalized(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A root-mean-square norm that no benchmark has."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].float()
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-5) * weight[:].float()).to(x.dtype)
    return out


@helion.kernel()
def renamed(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The same loops and accesses with other names and another elementwise function."""
    result = torch.empty_like(values)
    for part in hl.tile(values.size(0)):
        read = values[part, :].float()
        mean = torch.mean(read * read, -1, keepdim=True)
        result[part, :] = (scale[:].float() * torch.sigmoid(read) * torch.rsqrt(mean + 0.5)).to(values.dtype)
    return result


@helion.kernel()
def centred(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Another chain of reductions."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :].float()
        row = row - row.mean(-1, keepdim=True)
        out[tile, :] = (row * torch.rsqrt((row * row).mean(-1, keepdim=True)) * weight[:].float()).to(x.dtype)
    return out


def bound(kernel: Any = normalized, rows: int = 4096, dtype: torch.dtype = torch.bfloat16, **other: Any) -> Any:
    x, weight = torch.empty(rows, 5003, dtype=dtype, device="meta"), torch.empty(5003, dtype=dtype, device="meta")
    return kernel.bind((other.get("x", x), weight), target="h200")


def structure(of: Any) -> str:
    return pretuned.structure(of.variant.analysis.facts)


def row(of: Any, config: helion.Config, microseconds: float = 10.0) -> pretuned.Row:
    analysis = of.variant.analysis
    return pretuned.row_of(analysis.facts, H200, "triton", config, microseconds, 12.0)


@pytest.fixture
def rows_of(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[pathlib.Path]:
    path = tmp_path / "rows.json"
    monkeypatch.setenv("HELION_PRETUNED", str(path))
    pretuned._rows.cache_clear()
    yield path
    pretuned._rows.cache_clear()


# --- finding ----------------------------------------------------------------------------------------------------------


def test_names_sizes_and_elementwise_work_do_not_change_the_structure() -> None:
    known = structure(bound())
    assert known == structure(bound(renamed)) == structure(bound(rows=77)) == structure(bound(dtype=torch.float16))


def test_reductions_layouts_and_widths_do() -> None:
    turned = torch.empty(5003, 4096, dtype=torch.bfloat16, device="meta").t()
    others = [bound(centred), bound(dtype=torch.float32), bound(x=turned)]
    assert len({structure(each) for each in (bound(), *others)}) == 4


def test_the_nearest_rows_come_first_and_far_ones_not_at_all() -> None:
    def at(extents: tuple[int, ...], warps: int, **other: Any) -> pretuned.Row:
        made = row(bound(), helion.Config(num_warps=warps))
        return dataclasses.replace(made, extents=extents, **other)

    rows = [
        at((4096, 2048), 1),
        at((4096, 1024), 2),
        at((4000, 1000), 4),
        at((4096, 1024 << 5), 8),
        at((4096, 1024), 16, arch="sm_100"),
        at((4096, 1024), 32, backend="cute"),
    ]
    found = [config["num_warps"] for config in pretuned.nearest(rows, (4096, 1024), H200, "triton")]
    assert found == [2, 4] and len(found) == pretuned.MOST
    other = at((4096, 1024), 8, sms=H100.num_sms, gb_per_s=H100.bandwidth_gb_per_s)
    assert [c["num_warps"] for c in pretuned.nearest([other, rows[1]], (4096, 1024), H100, "triton")] == [8, 2]
    assert pretuned.nearest(rows, (4096, 1 << 20), H200, "triton") == []


def test_extents_that_depend_on_data_count_as_equal() -> None:
    made = dataclasses.replace(row(bound(), helion.Config(num_warps=4)), extents=(0, 1024))
    assert made.distance((0, 1024), H200) == 0.0 and made.distance((0, 512), H200) == 1.0


# --- trying -----------------------------------------------------------------------------------------------------------


def test_the_package_knows_kernels_with_the_structure_of_a_new_one() -> None:
    """If this fails since facts have changed, run scripts/pretuned.py."""
    of = bound()
    assert candidates.measured_elsewhere(of.variant.specialized)
    assert pretuned.PACKAGED.stat().st_size < 200_000


def test_first_calls_and_searches_begin_with_measured_configs(rows_of: pathlib.Path) -> None:
    of = bound()
    config = of.config_spec.normalize({**of.default_config(), "block_sizes": [4], "num_warps": 16})
    specialized, default = of.variant.specialized, of.default_config()
    rows_of.write_text(pretuned.formatted([row(of, specialized.short_config(config))]))
    assert first_call.contenders(specialized, default, ENDLESS)[0] == config
    starts = candidates.start_configs(specialized, Options(), None, None)
    assert starts[:2] == [default, config]


def test_rows_that_a_space_refuses_are_left_out(rows_of: pathlib.Path) -> None:
    of = bound()
    rows_of.write_text(pretuned.formatted([row(of, helion.Config(block_sizes=[4, 4, 4])), row(of, helion.Config(x=1))]))
    found = candidates.measured_elsewhere(of.variant.specialized)
    assert all(len(config["block_sizes"]) == 1 for config in found)


def test_no_rows_are_used_if_they_are_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_PRETUNED", "0")
    assert candidates.measured_elsewhere(bound().variant.specialized) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "no format"),
        ('{"format": "helion-pretuned", "version": 99}', "version 99"),
        ('{"format": "helion-pretuned", "version": 1, "rows": [["a", [1]]]}', "other values"),
        (None, "No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_once(
    text: str | None, said: str, rows_of: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        rows_of.write_text(text)
    assert candidates.measured_elsewhere(bound().variant.specialized)  # the package's own
    printed = capsys.readouterr().err
    assert f"{rows_of} are not used (HELION_PRETUNED)" in printed and said in printed


# --- files ------------------------------------------------------------------------------------------------------------


def test_rows_are_the_same_after_a_file() -> None:
    rows = [
        row(bound(), helion.Config(block_sizes=[2], indexing=["pointer", "block_ptr"]), 3.25),
        row(bound(centred), helion.Config()),
    ]
    text = pretuned.formatted([*rows, rows[0]])
    assert sorted(pretuned.parsed(text), key=repr) == sorted(rows, key=repr)
    assert pretuned.formatted(reversed(rows)) == text and "normalized" not in text


def test_a_measured_entry_becomes_a_row_without_names() -> None:
    of = bound()
    key = Key(
        kernel="normalized", source="s", specialization="", target="sm_90 132 triton", versions="v", space="p", dtypes="", shapes=()
    )  # fmt: skip
    config = of.config_spec.normalize({**of.default_config(), "num_warps": 16})
    entry = Entry(row=Row(key=key, config=config, microseconds=9.04, baseline_microseconds=11.0))
    found = measured_row(of, entry)
    assert found.structure == structure(bound(renamed)) and found.extents == (4096, 5003)
    assert (found.microseconds, found.untuned, found.config["num_warps"]) == (9.0, 11.0, 16)
    assert "normalized" not in pretuned.formatted([found])


def test_contributions_are_added_to_a_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    path = tmp_path / "ours.json"
    for warps in (4, 8):
        measured = pretuned.formatted([row(bound(), helion.Config(num_warps=warps))])
        report = Report(worked=True, message="done", measured=measured)
        monkeypatch.setattr(tune, "_each", lambda works, options, measuring, report=report: [(works[0], report)])
        assert tune._measured([Work(kernel="f.py::k", args=())], argparse.Namespace(contribute=str(path))) == 0
    assert sorted(each.config["num_warps"] for each in pretuned.parsed(path.read_text())) == [4, 8]
    assert f"HELION_PRETUNED={path}" in capsys.readouterr().out


def test_contributions_need_times_of_a_gpu(tmp_path: pathlib.Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text("")
    parser = argparse.ArgumentParser()
    tune.COMMAND.configure(parser)
    with pytest.raises(ValueError, match="times of a GPU"):
        tune.COMMAND.run(parser.parse_args([str(spec), "--offline", "--contribute", str(tmp_path / "out.json")]))
    (other := tmp_path / "other.json").write_text('{"rows": []}')
    for path, why in ((other, "there is no format"), (tmp_path / "missing" / "out.json", "there is no folder")):
        with pytest.raises(ValueError, match=f"--contribute .*{path.name}: .*{why}"):  # before anything is measured
            tune.COMMAND.run(parser.parse_args([str(spec), "--contribute", str(path)]))


@pytest.mark.prove
def test_the_packaged_file_is_made_from_the_kept_sweeps() -> None:
    made = import_path(ROOT / "scripts" / "pretuned.py")
    rows = [*(each.row for each in made.swept()), *made.contributed()]
    assert pretuned.formatted(rows) == pretuned.PACKAGED.read_text(encoding="utf-8")
