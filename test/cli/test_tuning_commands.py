"""The subcommands about tuning: what is kept, and the page of a log."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess

import matplotlib.image as plt_image
import pytest

from helion.__main__ import main
from helion.autotuner.cache.rows import Entry, Key, Row, exported, imported
from helion.autotuner.options import Options
from helion.autotuner.outcome import Outcome, Status
from helion.autotuner.progress import Log
from helion.autotuner.report.history import histories
from helion.autotuner.tuner import Result
from helion.config import Config


def entry(kernel: str, microseconds: float) -> Entry:
    key = Key(
        kernel=kernel, source="s", specialization="f32", target="h200", versions="v", space="p", dtypes="float32", shapes=((8, 9),)
    )  # fmt: skip
    return Entry(
        row=Row(key=key, config=Config(num_warps=4), microseconds=microseconds, baseline_microseconds=20.0, when=1.0)
    )


def test_what_is_kept(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    one, two, out = tmp_path / "one.json", tmp_path / "two.json", tmp_path / "out.json"
    one.write_text(exported([entry("a", 10.0), entry("b", 5.0)]))
    two.write_text(exported([entry("a", 8.0)]))
    assert main(["cache", "list"]) == 0 and "no tuned configs" in capsys.readouterr().out
    assert main(["cache", "import", str(one), str(two)]) == 0
    assert capsys.readouterr().out.startswith("2 kept in ")
    main(["cache", "list", "a"])
    assert capsys.readouterr().out == (
        "a  h200  float32  8x9  8.0 us, 2.50 x the seed (, 0 tried)  helion.Config(num_warps=4)\n"
    )
    main(["cache", "show"])
    assert [row["microseconds"] for row in json.loads(capsys.readouterr().out)] == [8.0, 5.0]
    main(["cache", "export", str(out), "b"])
    assert out.read_text() == exported([entry("b", 5.0)])
    main(["cache", "clear", "b"])
    assert "1 deleted" in capsys.readouterr().out.splitlines()[-1]
    assert main(["cache", "import", str(tmp_path / "tuned.sqlite")]) == 2
    one.write_text("[]")
    assert main(["cache", "import", str(one)]) == 2 and "one.json: not made by" in capsys.readouterr().err
    monkeypatch.setenv("HELION_SKIP_CACHE", "1")
    assert main(["cache", "list"]) == 2


def written_log(path: pathlib.Path) -> None:
    log = Log(path, "softmax <b>", Options(), Config(num_warps=4, num_stages=1), lambda config: f"@paste <{config!r}>")
    outcomes = []
    for warps, time in ((4, 20.0), (8, 12.0), (16, 15.0), (2, 40.0)):
        config = Config(num_warps=warps, num_stages=1)
        outcomes.append(Outcome(config=config, status=Status.OK, microseconds=time))
    outcomes.append(Outcome(config=Config(num_warps=32, num_stages=1), status=Status.CRASHED, detail="crashed"))
    for outcome in outcomes:
        log.tried(outcome)
    log.finished(
        Result(
            config=outcomes[1].config, microseconds=12.0, baseline=outcomes[0].config, baseline_microseconds=20.0,
            outcomes=tuple(outcomes), seconds=2.0, why="out of configs",
        )
    )  # fmt: skip


def test_a_log_as_a_page(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "tune.jsonl"
    written_log(log)
    written_log(log)
    assert main(["report", str(log)]) == 0
    text = (tmp_path / "tune.html").read_text()
    assert text.count("1.67 times as fast as the seed") == 2 and "softmax &lt;b&gt;" in text
    assert "@paste &lt;helion.Config(num_warps=8" in text and "softmax &lt;b&gt;, effort full" in text
    fastest = text.split("<h3>The fastest</h3>")[1].split("<h3>")[0]
    assert "<code>num_warps=8</code>" in fastest and "<code>the seed</code>" in fastest and "num_stages" not in fastest
    assert "5 configs: 4 ok, 1 crashed" in text and "num_stages" not in text.split("Which keys mattered")[2]
    assert "src=" in text and 'src="http' not in text and "<script" not in text and "<link" not in text
    names = sorted(path.name for path in tmp_path.glob("*.png"))
    assert names == [f"tune-{at}-{name}.png" for at in range(2) for name in ("keys", "trajectory")]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in tmp_path.glob("*.png"))
    (history, _) = histories(log.read_text().splitlines())
    assert [best for _, best in history.trajectory()] == [20.0, 12.0]
    (matter,) = history.matters()
    assert (matter.key, round(matter.ratio, 3)) == ("num_warps", 3.333)


def test_logs_that_were_cut_off_and_other_files(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "tune.jsonl"
    written_log(log)
    lines = log.read_text().splitlines()
    (history,) = histories([*lines[:3], lines[3][:30]])
    assert len(history.steps) == 2 and history.end is None
    assert histories([]) == []
    log.write_text("{}\n{}\n")
    assert main(["report", str(log)]) == 2 and "line 1 is none of a tuning log" in capsys.readouterr().err


@pytest.mark.browser
def test_the_page_is_seen_in_a_browser(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "tune.jsonl"
    written_log(log)
    main(["report", str(log)])
    browser = next(path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name)))
    picture = tmp_path / "page.png"
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    page = (tmp_path / "tune.html").as_uri()
    subprocess.run(
        [*command, f"--screenshot={picture}", "--window-size=1100,1600", page],
        check=True,
        capture_output=True,
        timeout=600,
    )
    image = plt_image.imread(picture)
    assert image.shape[0] == 1600
    dark = (image[..., :3].mean(-1) < 0.5).mean(1)  # rows with text and lines in them
    assert (dark > 0).mean() > 0.3
    orange = (abs(image[..., 0] - 1.0) < 0.05) & (abs(image[..., 1] - 0.5) < 0.05) & (image[..., 2] < 0.1)
    assert orange.sum() > 100  # the line of the seed


SPEC = """
target = "h200"
[[tune]]
kernel = "kernels.py::twice"
args = [["f32[1000]"], ["bf16[33,65]"], ["f32[10,20,30]"]]
workers = 2
"""
KERNELS = """
import torch, helion
import helion.language as hl

@helion.kernel
def twice(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * 2
    return out
"""


def test_kernels_of_a_file_are_ranked_without_a_gpu(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernels.py").write_text(KERNELS)
    spec = tmp_path / "spec.toml"
    spec.write_text(SPEC)
    assert main(["tune", str(spec), "--configs", "2", "--offline"]) == 0
    said = capsys.readouterr().out
    assert "twice(bf16[33,65]): " in said and "3 of 3 compiled and ranked" in said and "@helion.kernel(config=" in said
    rows = imported((tmp_path / "spec.json").read_text())
    assert len(rows) == 3 and {each.row.effort for each in rows} == {"offline"}
    assert {each.row.key.target.split()[0] for each in rows} == {"sm_90"}
    for text, message in (
        (SPEC + "worker = 3", "Tuning has no option 'worker'"),
        ("[[tune]]\nkernel = 3", "number 1 needs kernel"),
        ("target = ", "spec.toml: "),
        ("kernels = 3", "unknown keys kernels"),
    ):
        spec.write_text(text)
        assert main(["tune", str(spec), "--offline"]) == 2
        assert message in capsys.readouterr().err
