"""Every setting, environment variable and error does something, or is listed as accepted for compatibility alone."""

from __future__ import annotations

import ast
import copy
import functools
import textwrap
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import source_trees

import helion
from helion import _compatibility, exc, knobs

ROOT = Path(helion.__file__).parent
#: Where a setting's name decides nothing: its own table, what shows it, and what tests import.
SHOWING = (
    "_compatibility.py",
    "knobs.py",
    "settings.py",
    "runtime/specialization/repro.py",
    "_testing.py",
    "_testing_unittest.py",
)
ERRORS = dict.fromkeys(name for name, _, _ in exc._TABLE)


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    return {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text()) for path in ROOT.rglob("*.py")}


@functools.cache
def nodes_of(tree: ast.Module) -> list[ast.AST]:
    """All nodes of a file, which several tests ask for."""
    return source_trees.nodes_of(tree)


@functools.cache
def attributes_of(tree: ast.Module) -> tuple[ast.Attribute, ...]:
    """The attributes that a file reads."""
    return tuple(n for n in nodes_of(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))


def attributes(trees: Mapping[str, ast.Module], owner: str, but: Collection[str] = ()) -> Iterator[str]:
    """The names read as ``owner.NAME`` or ``....owner.NAME``, and used for something."""
    for path, tree in trees.items():
        if path in but:
            continue
        read = [n for n in attributes_of(tree) if getattr(n.value, "id", getattr(n.value, "attr", None)) == owner]
        idle = {id(node.value) for node in nodes_of(tree) if isinstance(node, ast.Expr)} if read else ()
        yield from (node.attr for node in read if id(node) not in idle)


def unused(known: Collection[str], used: Collection[str], listed: Collection[str]) -> dict[str, list[str]]:
    """What is neither used nor listed, what is listed and used, and what is listed and unknown."""
    return {
        "neither": sorted(set(known) - set(used) - set(listed)),
        "both": sorted(set(used) & set(listed)),
        "unknown": sorted(set(listed) - set(known)),
    }


NONE: dict[str, list[str]] = {"neither": [], "both": [], "unknown": []}


def test_every_setting_is_read_or_listed(trees: dict[str, ast.Module]) -> None:
    known = helion.Settings().to_dict()
    assert unused(known, {*attributes(trees, "settings", SHOWING)} & set(known), _compatibility.SETTINGS) == NONE


def test_every_environment_variable_is_read(trees: dict[str, ast.Module]) -> None:
    known = [name for name, value in vars(knobs).items() if isinstance(value, knobs.Knob)]
    assert set(known) <= {*attributes(trees, "knobs")}


def raised(tree: ast.Module) -> set[str]:
    """Errors that a file names anywhere but where they are caught, told from others or said to be given or returned."""
    names = [n for n in nodes_of(tree) if isinstance(n, (ast.Name, ast.Attribute)) and _name(n) in ERRORS]
    if not names:
        return set()
    apart = [n.type for n in nodes_of(tree) if isinstance(n, ast.ExceptHandler) and n.type is not None]
    tests = [n for n in nodes_of(tree) if isinstance(n, ast.Call) and _name(n.func) in ("isinstance", "issubclass")]
    apart += [arg for call in tests for arg in call.args[1:]]
    apart += [n for n in nodes_of(tree) if isinstance(n, ast.Compare)]
    apart += [n.annotation for n in nodes_of(tree) if isinstance(n, (ast.arg, ast.AnnAssign)) and n.annotation]
    apart += [n.returns for n in nodes_of(tree) if isinstance(n, ast.FunctionDef) and n.returns]
    told = {id(n) for each in apart for n in ast.walk(each)}
    return {_name(n) for n in names if id(n) not in told}


def _name(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def with_bases(names: Collection[str]) -> set[str]:
    """Errors with those they derive from: who catches these meets them."""
    return {base.__name__ for name in names for base in getattr(exc, name).__mro__} & set(ERRORS)


def test_every_error_is_raised_or_listed(trees: dict[str, ast.Module]) -> None:
    found = with_bases(set().union(*(raised(tree) for path, tree in trees.items() if path != "exc.py")))
    assert unused(ERRORS, found, _compatibility.ERRORS) == NONE


def test_errors_that_are_only_caught_are_not_raised() -> None:
    text = """
        try:
            raise exc.WrongTarget(a) if b else refuse(exc.NotEnoughConfigs)
        except (exc.WrongDevice, AutotuneError):
            assert not isinstance(error, exc.TritonError) and type(error) is not exc.CantReadOnDevice
        def given(error: exc.MissingEnableTile) -> exc.CacheAssertionError: ...
        held: exc.ReductionOnNonTile
        """
    assert raised(ast.parse(textwrap.dedent(text))) == {"WrongTarget", "NotEnoughConfigs"}
    assert with_bases({"NoFeasibleConfig"}) == {"NoFeasibleConfig", "NoConfigFound"}


def test_what_is_not_used_and_what_is_listed_for_nothing_is_noticed() -> None:
    tree = ast.parse("x = bound.settings.read\nsettings.written = 1\nother.elsewhere\nbound.settings.idle")
    used = {*attributes({"a.py": tree}, "settings")}
    assert used == {"read"} and not {*attributes({"a.py": tree}, "settings", ["a.py"])}
    assert unused(["read", "written", "listed"], used, ["read", "listed", "gone"]) == {
        "neither": ["written"],
        "both": ["read"],
        "unknown": ["gone"],
    }


@pytest.fixture
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compatibility, "_said", set())


#: A value of each that is not its default.
OTHER: dict[type, Any] = {bool: None, int: 7, float: 7.0, str: "7", tuple: ("7",), dict: {"7": 7}, type(None): 7}


def other(name: str) -> Any:
    default = helion.Settings().to_dict()[name]
    if isinstance(default, bool):
        return not default
    return (
        len if name.endswith(("_fn", "_filter")) else [{}] if name == "autotune_seed_configs" else OTHER[type(default)]
    )


@pytest.mark.parametrize("name", _compatibility.SETTINGS)
def test_a_setting_without_an_effect_says_so_once(name: str, unsaid: None, capsys: pytest.CaptureFixture) -> None:
    helion.Settings(**{name: other(name)})
    message = f"The setting {name}={other(name)!r} is accepted for compatibility and has no effect: "
    first = capsys.readouterr().err
    assert first == f"WARNING[SettingHasNoEffect]: {message}{_compatibility.SETTINGS[name]}.\n"
    helion.Settings(**{name: other(name)})
    assert capsys.readouterr().err == ""


def test_assigning_and_the_environment_say_so_too(
    unsaid: None, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = helion.Settings()
    copy.copy(settings).static_shapes = False
    assert capsys.readouterr().err == ""
    settings.fast_math = True
    assert settings.fast_math and "The setting fast_math=True" in capsys.readouterr().err
    monkeypatch.setenv("HELION_DISTRIBUTED", "1")
    helion.Settings()
    assert "The setting distributed=True" in capsys.readouterr().err


def test_defaults_and_unwanted_warnings_say_nothing(unsaid: None, capsys: pytest.CaptureFixture) -> None:
    helion.Settings(fast_math=False, autotune_log=None, autotune_config_overrides={})
    helion.Settings(fast_math=True, ignore_warnings=["SettingHasNoEffect"])
    helion.Settings(fast_math=True, ignore_warnings=[exc.SettingHasNoEffect])
    assert capsys.readouterr().err == ""


def test_assigning_an_unknown_setting_is_refused() -> None:
    settings = helion.Settings()
    with pytest.raises(AttributeError, match="Settings has no field 'fast_maths'"):
        settings.fast_maths = True
    assert not hasattr(settings, "fast_maths")


@pytest.mark.parametrize("name", _compatibility.REFUSED)
def test_a_setting_that_is_not_implemented_is_refused_with_the_reason(name: str) -> None:
    assert name not in helion.Settings().to_dict()
    for value in (True, False):
        with pytest.raises(
            TypeError, match=f"^The setting '{name}' is not supported: kernels with fused neighbors are tuned"
        ):
            helion.kernel(len, **{name: value})


class _Nonsense:
    """Of no kind that a setting may have."""


@pytest.mark.parametrize("name", helion.Settings().to_dict())
def test_every_setting_refuses_what_it_cannot_be(name: str, unsaid: None) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{name} must be .*, got <.*_Nonsense object"):
        helion.Settings(**{name: _Nonsense()})
    settings = helion.Settings()
    before = settings.to_dict()
    with pytest.raises((TypeError, ValueError), match=f"^{name} must be "):
        setattr(settings, name, _Nonsense())
    assert settings.to_dict() == before


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("autotune_baseline_atol", 0.01, -1.0),
        ("autotune_baseline_rtol", 0, True),
        ("autotune_baseline_fn", abs, "abs"),
        ("autotune_seed_configs", [{"num_warps": 4}], [4]),
        ("autotune_seed_configs", helion.Config(num_warps=4), "num_warps=4"),
        ("persistent_reserved_sms", 4, -4),
        ("backend", "triton", "a backend"),
        ("static_shapes", False, 0),
    ],
)
def test_settings_are_checked(name: str, good: Any, bad: Any, unsaid: None) -> None:
    assert helion.Settings(**{name: good}).to_dict()[name] is good
    with pytest.raises((TypeError, ValueError), match=f"^{name} must be .*, got "):
        helion.Settings(**{name: bad})


@pytest.mark.parametrize("name", ["block_sizes", "block_size", "num_warps"])
def test_a_config_key_is_no_setting(name: str) -> None:
    expected = name + ("s" if name == "block_size" else "")
    with pytest.raises(TypeError, match=rf"'{name}' is a config key, .*pass config=helion.Config\({expected}=...\)"):
        helion.kernel(**{name: 4})


def test_a_misspelt_setting_is_answered_in_one_line() -> None:
    with pytest.raises(TypeError, match=r"^Unknown setting 'static_shape'; did you mean 'static_shapes'\?$"):
        helion.Settings(static_shape=False)
