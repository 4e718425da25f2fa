"""The product runs on the oldest Python that ``pyproject.toml`` names: syntax, and names of the standard library."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import helion

ROOT = Path(helion.__file__).parents[1]
OLDEST = (3, 10)
#: Modules, and names of modules and builtins, that came after the oldest version: those that code like ours might want.
LATER: dict[str, frozenset[str] | None] = {
    "tomllib": None,
    "builtins": frozenset(("ExceptionGroup", "BaseExceptionGroup", "EncodingWarning", "PythonFinalizationError")),
    "asyncio": frozenset(("TaskGroup", "Runner", "timeout", "Barrier")),
    "contextlib": frozenset(("chdir",)),
    "copy": frozenset(("replace",)),
    "datetime": frozenset(("UTC",)),
    "enum": frozenset(("StrEnum", "ReprEnum", "EnumCheck", "FlagBoundary", "verify", "member", "nonmember", "property")),
    "hashlib": frozenset(("file_digest",)),
    "inspect": frozenset(("getmembers_static", "markcoroutinefunction", "BufferFlags")),
    "itertools": frozenset(("batched",)),
    "logging": frozenset(("getLevelNamesMapping", "getHandlerByName", "getHandlerNames")),
    "math": frozenset(("cbrt", "exp2", "sumprod", "fma")),
    "operator": frozenset(("call", "is_none", "is_not_none")),
    "os": frozenset(("process_cpu_count",)),
    "sys": frozenset(("exception", "monitoring", "activate_stack_trampoline", "_is_gil_enabled")),
    "types": frozenset(("get_original_bases", "CapsuleType")),
    "typing": frozenset(
        (
            "Self", "Never", "LiteralString", "assert_never", "assert_type", "reveal_type", "TypeVarTuple", "Unpack", "Required",
            "NotRequired", "dataclass_transform", "override", "TypeAliasType", "TypeIs", "ReadOnly", "NoDefault", "get_overloads",
            "clear_overloads", "get_protocol_members", "is_protocol",
        )
    ),
    "warnings": frozenset(("deprecated",)),
}  # fmt: skip
#: Any of these names, in code or in prose: a file without them needs no closer look.
LATER_WORDS = re.compile(
    r"\b(?:" + "|".join(sorted({name for module, names in LATER.items() for name in names or (module,)})) + r")\b"
)


def sources() -> list[Path]:
    return [path for room in ("helion", "examples") for path in sorted((ROOT / room).rglob("*.py"))]


def later_names(text: str) -> Iterator[str]:
    """What a module names of the standard library that its oldest version lacks, outside of blocks for type checkers."""
    tree = ast.parse(text, feature_version=OLDEST)
    if not LATER_WORDS.search(text):
        return
    nodes = [*ast.walk(tree)]
    checked = [n for n in nodes if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    skipped = {id(inner) for block in checked for part in block.body for inner in ast.walk(part)}
    for node in nodes:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if LATER.get(alias.name, ()) is None)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = LATER.get(node.module or "", frozenset())
            yield from (f"{node.module}.{a.name}" for a in node.names if names is None or a.name in names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.attr in (LATER.get(node.value.id) or ()):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Name) and node.id in (LATER["builtins"] or ()):
            yield node.id


def test_the_oldest_version_is_the_one_that_is_checked() -> None:
    found = re.search(r'requires-python = ">=(\d+)\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert found is not None and (int(found[1]), int(found[2])) == OLDEST


def test_nothing_is_newer() -> None:
    found = {path.relative_to(ROOT).as_posix(): [*later_names(path.read_text())] for path in sources()}
    assert len(found) > 300 and {path: names for path, names in found.items() if names} == {}


def test_what_is_newer_is_noticed() -> None:
    text = "import tomllib\nfrom typing import Self, Any\nimport math\nmath.exp2(3)\nraise ExceptionGroup('', [])"
    assert set(later_names(text)) == {"tomllib", "typing.Self", "math.exp2", "ExceptionGroup"}
    assert not list(later_names("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from typing import Self"))
    for newer in ("try:\n    pass\nexcept* ValueError:\n    pass", "def f[T](x: T) -> T: ...", "type X = int"):
        with pytest.raises(SyntaxError):
            list(later_names(newer))
