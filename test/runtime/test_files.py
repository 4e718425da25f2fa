"""Files: generated modules, the cache folder, configs, and the settings and variables that lead to them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import helion
import helion.language as hl
from helion import knobs
from helion._support import files as _files
from helion._support import logs
from helion.runtime.generated import codecache


@helion.kernel(config=helion.Config(block_sizes=[4]))
def increment(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + 1
    return out


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HELION_CACHE_DIR", str(tmp_path))
    increment.reset()
    return tmp_path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files, with nothing remembered of another one."""
    monkeypatch.setattr(_files.tempfile, "tempdir", str(tmp_path))
    for remembered in (_files.private_folder, logs.say_once):
        remembered.cache_clear()
    yield tmp_path
    _files.private_folder.cache_clear()


# --- generated modules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["", "x = 1\n", None])
def test_a_damaged_file_is_written_again_and_never_runs(cache: Path, damage: str | None) -> None:
    x = torch.arange(6.0)
    assert increment(x).tolist() == (x + 1).tolist()
    (file,) = cache.glob("code/*/*.py")
    text = file.read_text()
    file.write_text(text.replace("+ 1", "+ 2").replace("1.0", "2.0") if damage is None else damage)
    increment.reset()
    assert increment(x).tolist() == (x + 1).tolist()
    assert file.read_text() == text
    assert increment.bind((x,), target="sm_90").resources().registers > 0


def test_code_runs_where_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "a file"
    blocked.write_text("")
    monkeypatch.setenv("HELION_CACHE_DIR", str(blocked / "cache"))
    increment.reset()
    for size in (5, 6):
        x = torch.ones(size)
        assert increment(x).tolist() == [2.0] * size
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(blocked) in said and str(temporary / f"helion-{os.getuid()}") in said


def test_files_and_folders_can_be_read_by_whom_the_cache_can_be_read(cache: Path) -> None:
    cache.chmod(0o2775)
    former = os.umask(0o077)
    try:
        increment(torch.ones(7))
    finally:
        os.umask(former)
    (file,) = cache.glob("code/*/*.py")
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in (file.parent, file.parent.parent)} == {0o2775}


def test_a_private_cache_stays_private(cache: Path) -> None:
    cache.chmod(0o700)
    former = os.umask(0o077)
    try:
        increment(torch.ones(8))
    finally:
        os.umask(former)
    (file,) = cache.glob("code/*/*.py")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_two_threads_write_one_file(cache: Path) -> None:
    text = "x = 1\n" * 5000
    threads = [threading.Thread(target=codecache.load, args=(text, "many", lambda names: None)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codecache.module_path(text, "many").read_text() == text
    assert not list(cache.rglob("*.tmp"))


# --- writing -----------------------------------------------------------------------------------------------------------


def test_a_config_replaces_a_link_and_leaves_what_it_led_to(tmp_path: Path) -> None:
    victim, planted = tmp_path / "victim", tmp_path / "config.json"
    victim.write_text("keep")
    planted.symlink_to(victim)
    (tmp_path / "config.json.tmp").symlink_to(victim)
    config = helion.Config(block_sizes=[8])
    config.save(planted)
    assert victim.read_text() == "keep"
    assert not planted.is_symlink()
    assert helion.Config.load(planted) == config
    assert {file.name for file in tmp_path.iterdir()} == {"victim", "config.json", "config.json.tmp"}


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        helion.Config(block_sizes=[8]).save(tmp_path / "absent" / "config.json")
    assert caught.value.filename == str(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        helion.Config(block_sizes=[8]).save(tmp_path / "file" / "config.json")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    _files.write_whole(path, "old")

    def fail(*paths: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(_files.os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        _files.write_whole(path, "new")
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


# --- folders that nobody else can write to -----------------------------------------------------------------------------


def test_the_private_folder_is_this_users(temporary: Path) -> None:
    folder = _files.private_folder()
    assert folder == temporary / f"helion-{os.getuid()}"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("planted", ["open", "link", "file"])
def test_a_planted_folder_is_not_taken(temporary: Path, planted: str, capsys: pytest.CaptureFixture[str]) -> None:
    there = temporary / f"helion-{os.getuid()}"
    if planted == "open":
        there.mkdir()
        there.chmod(0o777)
    elif planted == "link":
        (temporary / "elsewhere").mkdir(mode=0o700)
        there.symlink_to(temporary / "elsewhere")
    else:
        there.write_text("")
    folder = _files.private_folder()
    assert folder != there and not folder.is_relative_to(there)
    assert _files.is_private(folder)
    assert str(there) in capsys.readouterr().err


def test_what_others_can_exchange_is_not_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    file = tmp_path / "folder" / "file"
    file.parent.mkdir(mode=0o700)
    file.write_text("")
    file.chmod(0o700)
    assert _files.is_trusted(file)
    for each in (file, file.parent):
        each.chmod(0o770)
        assert not _files.is_trusted(file)
        each.chmod(0o700)
    link = tmp_path / "link"
    link.symlink_to(file)
    assert not _files.is_trusted(link)
    assert not _files.is_trusted(tmp_path / "absent")


# --- settings and variables --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"static_shapes": "x"}, "static_shapes must be True or False, got 'x'"),
        ({"fast_math": "no"}, "fast_math must be True or False, got 'no'"),
        ({"print_output_code": 1}, "print_output_code must be True or False, got 1"),
        ({"autotune_effort": "x"}, "autotune_effort must be one of 'none', 'minimal', 'quick', 'full' or None"),
        ({"backend": "a b"}, "backend must be a name or None, got 'a b'"),
        ({"backend": 3}, "backend must be a name or None, got 3"),
        ({"persistent_reserved_sms": "3"}, "persistent_reserved_sms must be an int, got '3'"),
        ({"persistent_reserved_sms": -1}, "persistent_reserved_sms must be 0 or more, got -1"),
        ({"ignore_warnings": "DataRace"}, "ignore_warnings must be a list of names .* got 'DataRace'"),
        ({"ignore_warnings": [3]}, r"ignore_warnings must be a list of names .* got \[3\]"),
        ({"dot_precision": "bf16"}, "dot_precision must be tf32, tf32x3 or ieee, got 'bf16'"),
        ({"dot_precision": ["ieee"]}, r"dot_precision must be .* got \['ieee'\]"),
        ({"index_dtype": torch.int8}, "index_dtype must be .* got torch.int8"),
        ({"ref_mode": "eager"}, "ref_mode must be helion.RefMode.OFF or EAGER, got 'eager'"),
        ({"autotuner_fn": 3}, "autotuner_fn must be a function or None, got 3"),
        ({"autotune_random_seed": True}, "autotune_random_seed must be an int or None, got True"),
        ({"autotune_config_overrides": [1]}, r"autotune_config_overrides must be a dict or None, got \[1\]"),
    ],
)
def test_settings_are_checked(given: dict[str, object], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        helion.Settings(**given)
    settings = helion.Settings()
    ((name, value),) = given.items()
    with pytest.raises((TypeError, ValueError), match=text):
        setattr(settings, name, value)


def test_a_setting_that_is_assigned_is_kept_in_one_form() -> None:
    settings = helion.Settings()
    settings.dot_precision = "highest"
    settings.ignore_warnings = [helion.exc.GradientNotRecorded]
    assert (settings.dot_precision, settings.ignore_warnings) == ("ieee", ("GradientNotRecorded",))


@pytest.mark.parametrize("given", [3, "x", [1]])
def test_configs_of_bound_kernels_are_checked(given: object) -> None:
    bound = increment.bind((torch.ones(3),))
    for take in (bound.set_config, bound.compile_config, bound.to_triton_code):
        with pytest.raises(TypeError, match="a config is a helion.Config or a dict, got"):
            take(given)


def test_every_default_of_a_setting_is_accepted() -> None:
    settings = helion.Settings()
    assert helion.Settings(**settings.to_dict()).to_dict() == settings.to_dict()
    with pytest.raises(AttributeError, match="no field 'statik_shapes'"):
        settings.statik_shapes = True


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"config": [1]}, r"config= takes a helion.Config or a dict, .* got \[1\]"),
        ({"configs": [3]}, "got 3"),
        ({"configs": 3}, "configs= takes a list .* got 3"),
        ({"configs": {"num_warps": 4}}, "configs= takes a list"),
        ({"config": {1: 2}}, "keys of a config are strings, got 1"),
        ({"settings": {"static_shapes": True}}, "settings= takes a helion.Settings"),
        ({"key": 3}, "key= takes a function"),
    ],
)
def test_options_of_the_decorator_are_checked(options: dict[str, object], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        helion.kernel(increment.fn, **options)


def test_bind_takes_a_tuple_and_a_target() -> None:
    with pytest.raises(
        TypeError, match=r"'increment': bind takes a tuple of the arguments, got Tensor; write bind\(\(x,\)\)"
    ):
        increment.bind(torch.ones(1, 4))
    with pytest.raises(helion.exc.UnknownTarget, match="got 90"):
        increment.bind((torch.ones(4),), target=90)


def test_unknown_variables_and_steps_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HELION_STATIC_SHAPE", "1")
    monkeypatch.setenv("HELION_DUMP", "bogus")
    assert knobs.unknown_variables() == ["HELION_STATIC_SHAPE (did you mean HELION_STATIC_SHAPES?)"]
    kernel = helion.kernel(increment.fn)
    for size in (3, 4):
        kernel.bind((torch.ones(size),))
    said = capsys.readouterr().err
    assert said.count("did you mean HELION_STATIC_SHAPES?") == 1
    assert said.count("HELION_DUMP names no step bogus; there are trace, merge_common") == 1


# --- the command line and Triton's interpreter ---------------------------------------------------------------------------

COMMANDS = (
    (("explain", "{file}::increment", "--args", "f32[]"), "is out of range"),
    (("explain", "{file}::increment", "--args", "f32[99999999999999999999]"), "no tensor is so large"),
    (("explain", "{file}::increment", "--args", "f32[4"), "neither a tensor"),
    (("explain", "{broken}::increment", "--args", "f32[4]"), "cannot be imported: ModuleNotFoundError"),
    (("explain", "{file}::increment", "--args", "f32[4]", "--target", "sm"), "names no GPU"),
)


def test_misuse_of_the_command_line_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from helion.__main__ import main

    broken = tmp_path / "broken_module.py"
    broken.write_text("import there_is_no_such_module\n")
    for command, text in COMMANDS:
        assert main([part.format(file=__file__, broken=broken) for part in command]) == 2
        said = capsys.readouterr().err
        assert text in said and "Traceback" not in said


INTERPRETED = """
import torch, triton, helion, helion.language as hl

@helion.kernel(config=helion.Config(block_sizes=[2]))
def rows(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.cumsum(torch.softmax(x[tile, :], -1), -1)
    return out

x = torch.randn(3, 5)
assert torch.allclose(rows(x), x.softmax(-1).cumsum(-1), atol=1e-6)
assert rows.bind((x,), target="sm_90").resources().registers > 0
"""


def test_tritons_interpreter_in_the_environment(tmp_path: Path) -> None:
    script = tmp_path / "interpreted.py"
    script.write_text(INTERPRETED)
    root = Path(helion.__file__).parents[1]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(root)}
    subprocess.run([sys.executable, str(script)], env=environment, check=True, timeout=600)


STOPPED = """
import torch, helion, helion.language as hl

@helion.kernel(config=helion.Config(block_sizes=[8]))
def rows(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        doubled = x[tile] * 2
        {stop}
        out[tile] = doubled
    return out

x = torch.arange(10.0)
print("right:", torch.equal(rows(x), x * 2))
"""


@pytest.mark.prove
@pytest.mark.parametrize("stop", ["breakpoint()", "hl.breakpoint()"])
def test_a_breakpoint_in_device_code_stops_in_tritons_interpreter(tmp_path: Path, stop: str) -> None:
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED.format(stop=stop))
    root = Path(helion.__file__).parents[1]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(root)}
    commands = "p doubled\ncontinue\np doubled.shape\ncontinue\n"
    found = subprocess.run(
        [sys.executable, str(script)], env=environment, input=commands, capture_output=True, text=True, timeout=600
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("-> tl.store(") == 2 and "right: True" in found.stdout
    assert "[ 0.  2.  4.  6.  8. 10. 12. 14.]" in found.stdout
