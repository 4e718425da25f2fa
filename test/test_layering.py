"""The architecture, as a test over the source text of `helion/`.

A module may import what stands above it in the tables below, at the top of its file. Imports under
`if TYPE_CHECKING:` do not run; only circles count them. Nothing here imports helion.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from source_trees import nodes_of

PACKAGE = "helion"

# The rooms of the package, top to bottom: each imports only itself and what stands above it.
LAYERS = (
    "exc",
    "knobs",
    "_names",
    "_support",
    "_compatibility",
    "_exact",
    "_shapes",
    "hardware",
    "fields",
    "config",
    "settings",
    "language",
    "_compiler",
    "autotuner",
    "backends",
    "pipeline",
    "runtime",
    "distributed",
    "experimental",
    "__init__",
    "testing",
    "ops",  # a client of the public names
    "_compat",  # names that users' kernels import
    "_testing_unittest",
    "_testing",  # a client of the public names, as users' tests are
    "cli",
    "__main__",
)
# The same inside a room. A dotted entry stands apart from its folder; a room's own `__init__` comes last.
INNER = {
    "_support": (
        "locks",
        "collecting",
        "later",
        "switching",
        "syntax",
        "lazy",
        "records",
        "terms",
        "distribution",
        "logs",
        "tracebacks",
        "files",
        "ranks",
        "symmetric",
        "nested",
        "pages",
        "agreement",
        "philox",
    ),
    "hardware": ("records", "rows", "lookup"),
    "_compiler": (
        "context",
        "decisions",
        "source",
        "ir",
        "host",
        "sizes",
        "frontend",
        "passes",
        "rewrites",
        "facts",
        "autodiff",
        "pipeline",
    ),
    # The search space turns a heuristic's proposal into lists, so what these are stands above it.
    "autotuner": (
        "margins",
        "proposal",
        "space",
        "pretuned",
        "legalise",
        "seeds",
        "default",
        "outcome",
        "options",
        "search",
        "leaders",
        "pool",
        "measure",
        "tuner",
        "cache",
        "progress",
        "report",
        "searches",  # these three are for users
        "benchmarking",
        "config_fragment",
    ),
    "runtime": (
        "bind_times",
        "call",
        "generated",
        "checked",
        "ref_mode",
        "specialization",
        "tuning",
        "explanation",
        "dispatch",
        "variants",
        "views",
        "bound",
        "torch_interop",
        "kernel",
        "settings",  # from here on names of the public API
        "config",
        "triton",
    ),
}
# Each folder in here is one backend; nobody outside names one.
BACKENDS = "backends"
# Where a backend must not even be mentioned, outside of its folder and of the list of all backends.
NEUTRAL_ROOMS = ("_compiler", "autotuner", "backends", "pipeline")
# What a backend is written with, and who may import it.
BACKEND_LIBRARIES = ("triton", "cutlass")
LIBRARY_ROOMS = (BACKENDS, "_testing")
# The folder of a backend that prints what was decided, and what decides and therefore is not imported there, for types
# neither.
PRINTING_ROOM = "codegen"
DECIDING = (
    "_compiler.facts",
    "_compiler.frontend",
    "_compiler.passes",
    "_compiler.pipeline",
    "_compiler.rewrites",
    "_compiler.ir.host_module",
    "_compiler.ir.grammar.Program",
    "autotuner",
    "pipeline",
)
# Names that begin with an underscore and are for everybody.
PUBLIC_NAMES = frozenset({"_fields", "_replace", "_asdict"})
# Functions that import the module whose name they are given.
IMPORTERS = frozenset({"import_module", "__import__", "lazy"})
# The only file that imports what it is told to.
COMPUTED_IMPORT_ROOMS = ("_support.lazy",)
LARGEST_CIRCLE = 3
# Modules of a folder, lines of a file, lines of a function.
MOST_MODULES, MOST_LINES, LONGEST_FUNCTION = 20, 600, 60
# Folders, files and functions (as ``path:name``) that are over a limit, and the limit of each. The numbers may only
# sink; `make prove` reports entries that are not needed any more.
OVER: Mapping[str, int] = {}
ENVIRONMENT_ROOM = "knobs"
ENVIRONMENT_NAMES = frozenset({"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"})
LOCK_ROOM = "_support.locks"  # whose locks a forked process makes anew
LOCK_NAMES = frozenset({"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"})
DEVICE_ROOM = "hardware"
# Shared memory per block and per SM in bytes, and SM counts: numbers that mean one device and hardly anything else.
# Rooms that still have such numbers of their own.
WITH_OWN_NUMBERS = ("backends.triton.heuristics",)
DEVICE_NUMBERS = frozenset({101376, 102400, 166912, 167936, 232448, 233472, 132, 148})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Violation:
    path: str  # relative to the package
    line: int
    kind: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}" + (f": {self.detail}" if self.detail else "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Module:
    name: str  # dotted, without the package: "config", "_compiler.ir.grammar", "_compiler.ir.__init__", "__init__"
    path: str
    text: str
    tree: ast.Module

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        return nodes_of(self.tree)

    @functools.cached_property
    def imports(self) -> list[Import]:
        return list(imports(self))

    def inside(self, *rooms: str) -> bool:
        return any(self.name == room or self.name.startswith(room + ".") for room in rooms)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Import:
    target: str  # full dotted name of what is imported, "" if that is known only when it runs
    line: int
    in_function: bool
    runs: bool = True


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def read_modules(root: Path) -> dict[str, Module]:
    modules = {}
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        name = ".".join(path.with_suffix("").parts)
        text = file.read_text()
        modules[name] = Module(name=name, path=path.as_posix(), text=text, tree=ast.parse(text, filename=str(file)))
    return modules


def absolute(module: Module, level: int, name: str) -> str:
    """The full name of a relative import (`level` dots, then `name`) seen from `module`."""
    if level == 0:
        return name
    here = [PACKAGE, *module.name.split(".")]
    return ".".join([*here[: len(here) - level], *([name] if name else [])])


def is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def importers(module: Module) -> frozenset[str]:
    """What the functions in IMPORTERS are called in a module."""
    nodes = [node for node in module.nodes if isinstance(node, ast.ImportFrom)]
    return IMPORTERS | {a.asname for node in nodes for a in node.names if a.name in IMPORTERS and a.asname}


def called(call: ast.Call) -> str:
    """The last part of what is called: "lazy" of `lazy(...)`, "import_module" of `importlib.import_module(...)`."""
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def named_module(module: Module, call: ast.Call) -> str:
    """The full name in a call of a function in IMPORTERS, "" where it is computed."""
    given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "name")]
    name = given[0].value if given and isinstance(given[0], ast.Constant) else None
    if not isinstance(name, str):
        return ""
    bare = name.lstrip(".")
    return absolute(module, len(name) - len(bare), bare)


def imports(module: Module) -> Iterator[Import]:
    """Every import, those by `importlib.import_module("...")` and `lazy("...")` included."""
    names = importers(module)
    calls = any(name in module.text for name in names)  # otherwise only statements import

    def visit(node: ast.AST, in_function: bool, runs: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and is_type_checking(node.test):
            for child, does in [*((n, False) for n in node.body), *((n, runs) for n in node.orelse)]:
                yield from visit(child, in_function, does)
            return
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node.level, node.module or "")
            targets = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and called(node) in names:
            targets = [named_module(module, node)]
        for target in targets:
            assert isinstance(node, ast.stmt | ast.expr)
            yield Import(target=target, line=node.lineno, in_function=in_function, runs=runs)
        deeper = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            if calls or isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                yield from visit(child, deeper, runs)

    return visit(module.tree, False, True)


def resolve(target: str, modules: dict[str, Module]) -> str | None:
    """The module of ours that importing `target` runs ("helion.config.Config" -> "config"), None if not ours."""
    head, *rest = target.split(".")
    if head != PACKAGE:
        return None
    folders = folders_of(frozenset(modules))
    for end in range(len(rest), 0, -1):
        name = ".".join(rest[:end])
        if name in modules:
            return name
        if name in folders:
            return name + ".__init__"
    return "__init__"


@functools.cache
def folders_of(modules: frozenset[str]) -> frozenset[str]:
    parts = [name.split(".") for name in modules]
    return frozenset(".".join(each[:end]) for each in parts for end in range(1, len(each)))


def rank(name: str, order: tuple[str, ...]) -> int | None:
    """Place of a module in a table by its longest entry; None when it has none."""
    entries = [entry for entry in order if name == entry or name.startswith(entry + ".")]
    if entries:
        return order.index(max(entries, key=len))
    return len(order) if name == "__init__" else None


# ---------------------------------------------------------------------------------------------------------------------
# The rules


def unlisted(module: Module) -> Iterator[Violation]:
    room, _, inner = module.name.partition(".")
    if rank(room, LAYERS) is None:
        yield Violation(path=module.path, line=0, kind="not in the table", detail=f"add {room!r} to LAYERS")
    elif room in INNER and inner and rank(inner, INNER[room]) is None:
        yield Violation(path=module.path, line=0, kind="not in the table", detail=f"add {inner!r} to INNER[{room!r}]")


def points_down(module: Module, target: str) -> bool:
    """Does `target` stand below `module` in LAYERS or, in one room, in INNER?"""
    (room, _, inner), (to_room, _, to_inner) = module.name.partition("."), target.partition(".")
    here, there = rank(room, LAYERS), rank(to_room, LAYERS)
    if room == to_room and room in INNER:
        here, there = rank(inner, INNER[room]), rank(to_inner, INNER[room])
    return here is not None and there is not None and there > here


def wrong_imports(module: Module, modules: dict[str, Module]) -> Iterator[Violation]:
    for each in module.imports:

        def violation(kind: str, each: Import = each) -> Violation:
            return Violation(path=module.path, line=each.line, kind=kind, detail=each.target)

        if not each.runs:
            continue
        if not each.target:
            if not module.inside(*COMPUTED_IMPORT_ROOMS):
                yield violation("import of a computed name")
            continue
        target = resolve(each.target, modules)
        if target is None:
            if each.target.split(".")[0] in BACKEND_LIBRARIES and not module.inside(*LIBRARY_ROOMS):
                yield violation("backend library")
            continue
        if each.in_function:
            yield violation("import inside a function")
        if points_down(module, target):
            yield violation("import from below")
        in_backend = target.startswith(BACKENDS + ".") and target.count(".") > BACKENDS.count(".") + 1
        if in_backend and not module.inside(BACKENDS):
            yield violation("backend named")


def deciding_printers(module: Module) -> Iterator[Violation]:
    """Imports of what decides, and looks at the program behind a plan, in the folders that print."""
    _, _, inner = module.name.removeprefix(BACKENDS + ".").partition(".")
    if not module.inside(BACKENDS) or not inner.startswith(PRINTING_ROOM + "."):
        return
    for each in module.imports:
        target = each.target.removeprefix(PACKAGE + ".")
        if any(target == name or target.startswith(name + ".") for name in DECIDING):
            yield Violation(path=module.path, line=each.line, kind="printing decides", detail=each.target)
    for node in module.nodes:
        text = ast.unparse(node) if isinstance(node, ast.Attribute) and node.attr == "program" else ""
        if text == "plan.program" or text.endswith(".plan.program"):
            assert isinstance(node, ast.Attribute)
            yield Violation(path=module.path, line=node.lineno, kind="printing decides", detail=text)


def inexact_zeros(module: Module) -> Iterator[Violation]:
    """Comparisons of an offset with a number, which raise for an offset that is known only at launch."""
    for node in module.nodes:
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "shift":
            if isinstance(node.ops[0], ast.Eq | ast.NotEq) and isinstance(node.comparators[0], ast.Constant):
                detail = f"use fixed_at({ast.unparse(node.left)}, {ast.unparse(node.comparators[0])})"
                yield Violation(path=module.path, line=node.lineno, kind="inexact zero", detail=detail)


def environment_reads(module: Module) -> Iterator[Violation]:
    if module.inside(ENVIRONMENT_ROOM):
        return
    nodes = module.nodes
    names = [a for n in nodes if isinstance(n, ast.Import) for a in n.names if a.name == "os"]
    aliases = {alias.asname or alias.name for alias in names}
    for node in nodes:
        found: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            found = [alias.name for alias in node.names if alias.name in ENVIRONMENT_NAMES]
        elif isinstance(node, ast.Attribute) and node.attr in ENVIRONMENT_NAMES:
            found = [node.attr] if isinstance(node.value, ast.Name) and node.value.id in aliases else []
        for name in found:
            assert isinstance(node, ast.stmt | ast.expr)
            yield Violation(path=module.path, line=node.lineno, kind="environment", detail=f"os.{name}")


def other_locks(module: Module) -> Iterator[Violation]:
    """Locks that a forked process would find held for ever."""
    if module.inside(LOCK_ROOM):
        return
    for node in module.nodes:
        found: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module == "threading":
            found = [alias.name for alias in node.names if alias.name in LOCK_NAMES]
        elif isinstance(node, ast.Attribute) and node.attr in LOCK_NAMES:
            found = [node.attr] if isinstance(node.value, ast.Name) and node.value.id == "threading" else []
        for name in found:
            assert isinstance(node, ast.stmt | ast.expr)
            yield Violation(path=module.path, line=node.lineno, kind="lock", detail=f"threading.{name}")


def device_numbers(module: Module) -> Iterator[Violation]:
    if module.inside(DEVICE_ROOM):
        return
    for node in module.nodes:
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value in DEVICE_NUMBERS:
            yield Violation(path=module.path, line=node.lineno, kind="device number", detail=str(node.value))


def circles(modules: dict[str, Module]) -> list[frozenset[str]]:
    """The paths of modules that import each other, in one step or several: sets with more than LARGEST_CIRCLE."""
    reached = {name: set(_imported(module, modules)) for name, module in modules.items()}
    for via in modules:
        for name in modules:
            if via in reached[name]:
                reached[name] |= reached[via]
    sets = {frozenset(b for b in reached[a] if a in reached[b]) for a in modules if a in reached[a]}
    large = sorted((each for each in sets if len(each) > LARGEST_CIRCLE), key=sorted)
    return [frozenset(modules[name].path for name in each) for each in large]


def _imported(module: Module, modules: dict[str, Module]) -> Iterator[str]:
    for each in module.imports:
        target = resolve(each.target, modules)
        if target is not None and target != module.name:
            yield target


def large_circles(modules: dict[str, Module]) -> Iterator[Violation]:
    for each in circles(modules):
        yield Violation(path=min(each), line=0, kind="circle of imports", detail=", ".join(sorted(each)))


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC_NAMES


def private_names(module: Module) -> set[str]:
    """Names with an underscore that a module gives to functions, classes, variables and attributes of its objects."""
    names: set[str] = set()
    for node in module.nodes:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=slots):
                names |= {n.value for n in ast.walk(slots) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    return set(filter(is_private, names))


def private_accesses(modules: Mapping[str, Module]) -> Iterator[Violation]:
    """Modules that read or write what is another module's own: attributes of objects that they are not, and imports."""
    own = {name: private_names(module) for name, module in modules.items()}
    ours = set().union(*own.values())
    for name, module in modules.items():
        foreign = ours - own[name]
        for node in module.nodes:
            found: list[str] = []
            match node:
                case ast.Attribute(value=ast.Name(id="self" | "cls")):
                    pass
                case ast.Attribute(attr=attribute) if attribute in foreign:
                    found = [attribute]
                case ast.ImportFrom():
                    base = absolute(module, node.level, node.module or "")
                    private = [alias.name for alias in node.names if is_private(alias.name)]
                    found = [each for each in private if _is_name_of_ours(f"{base}.{each}", modules)]
            for each in found:
                assert isinstance(node, ast.stmt | ast.expr)
                yield Violation(path=module.path, line=node.lineno, kind="private name", detail=each)


def _is_name_of_ours(target: str, modules: Mapping[str, Module]) -> bool:
    """Whether an import is of something in a module of ours, and no module itself."""
    bare = target.removeprefix(PACKAGE + ".")
    is_module = bare in modules or f"{bare}.__init__" in modules
    return resolve(target, dict(modules)) is not None and not is_module


def numbers_of(module: Module) -> Iterator[tuple[str, int]]:
    """Yield the constants of a module that are numbers, without leading underscores, and their lines."""
    for node in module.tree.body:
        if isinstance(node, ast.Assign):
            (target, *_), value = node.targets, node.value
            pairs = (
                zip(target.elts, value.elts, strict=False)
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
                else [(target, value)]
            )
            for each, number in pairs:
                if isinstance(each, ast.Name) and isinstance(number, ast.Constant) and type(number.value) is int:
                    yield each.id.lstrip("_"), node.lineno


def second_numbers(modules: Mapping[str, Module]) -> Iterator[Violation]:
    """Numbers of the architecture that a second module defines under the same name."""
    own = (module for module in modules.values() if module.inside(DEVICE_ROOM))
    once = {name for module in own for name, _ in numbers_of(module) if name.isupper()}
    for module in modules.values():
        for name, line in numbers_of(module) if not module.inside(DEVICE_ROOM, *WITH_OWN_NUMBERS) else ():
            if name in once:
                yield Violation(path=module.path, line=line, kind="second number", detail=f"import {name}")


def sizes(modules: Mapping[str, Module]) -> Iterator[tuple[str, int, int, int]]:
    """Yield folders, files and functions as path and name, line, size and limit."""
    folders = Counter(module.path.rpartition("/")[0] for module in modules.values())
    for folder, count in folders.items():
        yield f"{folder}/", 0, count, MOST_MODULES
    for module in modules.values():
        yield module.path, 0, module.text.count("\n"), MOST_LINES
        for node in module.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                length = node.end_lineno - node.lineno + 1
                yield f"{module.path}:{node.name}", node.lineno, length, LONGEST_FUNCTION


def too_large(modules: Mapping[str, Module], over: Mapping[str, int]) -> Iterator[Violation]:
    """Report what is over its limit, or over its number in ``over``."""
    for name, line, size, limit in sizes(modules):
        most = max(limit, over.get(name, 0))
        if size > most:
            path = name.partition(":")[0]
            yield Violation(
                path=path, line=line, kind="too large", detail=f"{name} has {size} of at most {most}; split it"
            )


def no_exceptions(modules: Mapping[str, Module], over: Mapping[str, int]) -> list[str]:
    """The entries of ``over`` whose subject is gone or within its limit."""
    return sorted(over.keys() - {name for name, _, size, limit in sizes(modules) if size > limit})


def backend_names(modules: dict[str, Module]) -> set[str]:
    depth = BACKENDS.count(".") + 2
    return {
        name.split(".")[depth - 1] for name, m in modules.items() if m.inside(BACKENDS) and name.count(".") >= depth
    }


def backend_mentions(modules: dict[str, Module]) -> Iterator[Violation]:
    """Files that mention a backend, in code, text, comments or their own names."""
    for backend in sorted(backend_names(modules)):
        for module in modules.values():
            named = re.compile(rf"(?<![a-z]){backend}")  # not the end of another word, such as "execute"
            lines = [i for i, line in enumerate(module.text.splitlines(), 1) if named.search(line.lower())]
            lines += [0] if named.search(module.path) else []
            if not module.inside(*NEUTRAL_ROOMS) or module.inside(f"{BACKENDS}.{backend}") or not lines:
                continue
            if module.name.rpartition(".")[0] == BACKENDS:
                continue
            yield Violation(path=module.path, line=min(lines), kind="backend mentioned", detail=backend)


def violations(root: Path, over: Mapping[str, int] = {}) -> list[Violation]:
    """Everything under `root` that breaks a rule; a tree without a package in it breaks one too."""
    modules = read_modules(root)
    if "__init__" not in modules:
        return [Violation(path=".", line=0, kind="no package", detail=f"{root} has no __init__.py")]
    found: list[Violation] = []
    for module in modules.values():
        found += [*unlisted(module), *wrong_imports(module, modules)]
        found += [*environment_reads(module), *device_numbers(module), *deciding_printers(module), *other_locks(module)]
        found += inexact_zeros(module)
    found += [
        *private_accesses(modules),
        *large_circles(modules),
        *backend_mentions(modules),
        *too_large(modules, over),
    ]
    found += second_numbers(modules)
    return sorted(found, key=lambda v: (v.path, v.line, v.kind))


def test_layering() -> None:
    root = Path(__file__).resolve().parents[1] / PACKAGE
    found = violations(root, OVER)
    assert not found, "\n".join(["", *map(str, found)])


# ---------------------------------------------------------------------------------------------------------------------
# The test's own test

# A tree that breaks nothing and has in it what is allowed only in one place.
CLEAN = {
    "__init__.py": "from helion.config import Config\nfrom helion.runtime.kernel import kernel",
    "__main__.py": "import helion",
    "exc.py": "class Error(Exception): ...",
    "knobs.py": "import os\nCACHE = os.environ.get('HELION_CACHE_DIR')",
    "hardware.py": "from helion import exc\nSMEM = 232448",
    "config.py": "from .exc import Error\nfrom helion import hardware",
    "_compiler/__init__.py": "from helion._compiler import pipeline",
    "_compiler/context.py": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from helion._compiler.ir.grammar import Op
        else:
            from helion.config import Config
        """,
    "_compiler/ir/__init__.py": "",
    "_compiler/ir/grammar.py": "from ..context import Context\nfrom . import verify",
    "_compiler/ir/verify.py": "import math",
    "_compiler/facts/__init__.py": "",
    "_compiler/facts/axes.py": "from helion._compiler.ir.grammar import Op",
    "backends/__init__.py": "from helion.backends import registry",
    "backends/registry.py": "from helion.backends.triton import emit",
    "backends/triton/__init__.py": "",
    "backends/triton/codegen/emit.py": "from helion._compiler.ir.grammar import Op\ndef f():\n    import triton",
    "backends/triton/lower/steps.py": "from helion._compiler.facts import axes",
    "pipeline.py": "from helion.backends import registry",
    "autotuner/__init__.py": "",
    "backends/triton/heuristics/__init__.py": "from helion.backends.triton.heuristics import matmul",
    "autotuner/proposal.py": "from helion._compiler.facts.axes import Axis",
    "backends/triton/heuristics/matmul.py": "from helion.autotuner.proposal import Seed",
    "autotuner/space.py": "from helion.autotuner.proposal import Seed",
    "runtime/__init__.py": "",
    "runtime/kernel.py": "json = importlib.import_module('json')\nimport helion.autotuner.space",
}

# file, its text, what must be reported of it
PLANTED = [
    # import from below, between rooms
    ("exc.py", "import helion.config", "1: import from below"),
    ("exc.py", "from helion import config", "1: import from below"),
    ("exc.py", "from . import config", "1: import from below"),
    ("config.py", "from .runtime.kernel import kernel", "1: import from below"),
    ("config.py", "import helion", "1: import from below"),
    ("config.py", "from helion import Config", "1: import from below"),
    ("config.py", "class A:\n    from helion.runtime import kernel", "2: import from below"),
    ("config.py", "try:\n    import helion.runtime\nexcept ImportError:\n    pass", "2: import from below"),
    ("config.py", "if not TYPE_CHECKING:\n    import helion.runtime", "2: import from below"),
    ("_compiler/facts/axes.py", "from ...autotuner import space", "1: import from below"),
    ("__init__.py", "from helion import __main__", "1: import from below"),
    # import from below, inside a room
    ("_compiler/context.py", "from helion._compiler.ir import grammar", "1: import from below"),
    ("_compiler/ir/grammar.py", "from ..facts.axes import Axis", "1: import from below"),
    ("_compiler/ir/grammar.py", "from helion import _compiler", "1: import from below"),
    ("_compiler/facts/axes.py", "from helion.backends import registry", "1: import from below"),
    ("autotuner/space.py", "from helion.backends import registry", "1: import from below"),
    ("autotuner/proposal.py", "from helion.autotuner.space import Space", "1: import from below"),
    # import inside a function
    ("config.py", "def f():\n    from helion import exc", "2: import inside a function"),
    ("config.py", "async def f():\n    from .exc import Error", "2: import inside a function"),
    ("config.py", "def f():\n    if x:\n        import helion.exc", "3: import inside a function"),
    ("config.py", "def f():\n    return importlib.import_module('helion.exc')", "2: import inside a function"),
    ("config.py", "f = lambda: import_module('.exc', __package__)", "1: import inside a function"),
    ("__init__.py", "def __getattr__(name):\n    return __import__('helion.runtime')", "2: import inside a function"),
    # imports by string
    ("config.py", "later = lazy('helion.runtime.kernel')", "1: import from below"),
    ("config.py", "from .exc import lazy as late\nlater = late(name='helion.runtime')", "2: import from below"),
    ("config.py", "later = importlib.import_module('.runtime', __package__)", "1: import from below"),
    ("runtime/kernel.py", "x = lazy('helion.backends.triton.codegen.emit')", "1: backend named"),
    ("runtime/kernel.py", "def f():\n    return lazy('helion.config')", "2: import inside a function"),
    ("config.py", "x = importlib.import_module(f'helion.{name}')", "1: import of a computed name"),
    ("_compiler/ir/verify.py", "x = lazy(name=NAME)", "1: import of a computed name"),
    ("autotuner/space.py", "x = lazy()", "1: import of a computed name"),
    # not in the table
    ("utils.py", "", "0: not in the table"),
    ("utils/text.py", "", "0: not in the table"),
    ("_compiler/utils.py", "", "0: not in the table"),
    ("_compiler/lowering/dots.py", "", "0: not in the table"),
    ("autotuner/base.py", "", "0: not in the table"),
    # environment
    ("config.py", "import os\nX = os.environ['X']", "2: environment"),
    ("config.py", "import os\ndef f():\n    return os.getenv('X')", "3: environment"),
    ("config.py", "import os as _os\n_os.environ['X'] = '1'", "2: environment"),
    ("config.py", "from os import environ as e", "1: environment"),
    ("runtime/kernel.py", "import os.path, os\nos.putenv('X', '1')", "2: environment"),
    # locks
    ("config.py", "import threading\nX = threading.Lock()", "2: lock"),
    ("runtime/kernel.py", "import threading\ndef f():\n    return field(default_factory=threading.RLock)", "3: lock"),
    ("config.py", "from threading import Condition as C", "1: lock"),
    # backends
    ("pipeline.py", "from helion.backends.triton import emit", "1: backend named"),
    ("pipeline.py", "from helion.backends import triton", "1: backend named"),
    ("runtime/kernel.py", "import helion.backends.triton.codegen.emit", "1: backend named"),
    ("config.py", "import triton", "1: backend library"),
    ("runtime/kernel.py", "from triton.errors import TritonError", "1: backend library"),
    ("__main__.py", "import triton", "1: backend library"),
    ("_compiler/facts/axes.py", "def f():\n    from triton.language import dot", "2: backend library"),
    ("autotuner/space.py", "import cutlass.cute as cute", "1: backend library"),
    # printing
    ("backends/triton/codegen/emit.py", "from helion._compiler.facts import axes", "1: printing decides"),
    ("backends/triton/codegen/emit.py", "from helion._compiler.passes.always.masks import mask", "1: printing decides"),
    ("backends/triton/codegen/emit.py", "from ...._compiler.ir.grammar import Op, Program", "1: printing decides"),
    ("backends/triton/codegen/emit.py", "if TYPE_CHECKING:\n    from helion import pipeline", "2: printing decides"),
    ("backends/triton/codegen/emit.py", "def f(plan):\n    return plan.program.roots", "2: printing decides"),
    ("backends/triton/codegen/emit.py", "facts = lazy('helion._compiler.facts')", "1: printing decides"),
    # offsets
    ("_compiler/facts/axes.py", "def f(index):\n    return index.shift == 0", "2: inexact zero"),
    # device numbers
    ("config.py", "def f(smem=232448):\n    return smem", "1: device number"),
    ("autotuner/space.py", "x = 1\nwaves = 4 * 132", "2: device number"),
]


# Of which a planted line may be one too; they have tests of their own.
CONSEQUENCES = ("circle of imports", "backend mentioned")


def plant(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return root


def test_clean_tree(tmp_path: Path) -> None:
    assert violations(plant(tmp_path, CLEAN)) == []


@pytest.mark.parametrize(("path", "text", "expected"), PLANTED, ids=[f"{p}-{w}" for p, _, w in PLANTED])
def test_planted_violation(tmp_path: Path, path: str, text: str, expected: str) -> None:
    found = violations(plant(tmp_path, {**CLEAN, path: text}))
    assert [f"{v.path}:{v.line}: {v.kind}" for v in found if v.kind not in CONSEQUENCES] == [f"{path}:{expected}"]


def test_one_line_may_break_several_rules(tmp_path: Path) -> None:
    line = "def f():\n    from helion.backends.triton import emit"
    found = violations(plant(tmp_path, {**CLEAN, "_compiler/facts/axes.py": line}))
    found = [v for v in found if v.kind not in CONSEQUENCES]
    assert [v.kind for v in found] == ["backend named", "import from below", "import inside a function"]
    assert {str(v) for v in found} == {
        f"_compiler/facts/axes.py:2: {v.kind}: helion.backends.triton.emit" for v in found
    }


# Four files that import each other, one step each: as it runs, for types alone, by string, and when called.
CIRCLE = {
    "_compiler/ir/a.py": "from .b import B",
    "_compiler/ir/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .c import C",
    "_compiler/ir/c.py": "d = lazy('helion._compiler.ir.d')",
    "_compiler/ir/d.py": "if typing.TYPE_CHECKING:\n    from . import a",
}


def test_a_circle_of_imports_is_reported(tmp_path: Path) -> None:
    (found,) = violations(plant(tmp_path, {**CLEAN, **CIRCLE}))
    assert str(found) == f"_compiler/ir/a.py:0: circle of imports: {', '.join(CIRCLE)}"


def test_a_circle_of_three_and_a_chain_are_no_circle(tmp_path: Path) -> None:
    small = {**CIRCLE, "_compiler/ir/c.py": "if TYPE_CHECKING:\n    from . import a", "_compiler/ir/d.py": ""}
    assert violations(plant(tmp_path, {**CLEAN, **small})) == []
    assert violations(plant(tmp_path, {**CLEAN, **CIRCLE, "_compiler/ir/d.py": "import math"})) == []


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        ("_compiler/ir/verify.py", "import math\n# as Triton does", 2),
        ("_compiler/pipeline.py", "KEY = '_TRITON_config'", 1),
        ("autotuner/space.py", "class TritonSpace: ...", 1),
        ("pipeline.py", '"""Through triton."""', 1),
        ("_compiler/ir/triton_ops.py", "", 0),
        ("backends/cute/emit.py", "triton = 1", 1),
    ],
)
def test_a_mention_of_a_backend_is_reported(tmp_path: Path, path: str, text: str, line: int) -> None:
    root = plant(tmp_path, {**CLEAN, path: text})
    assert [str(v) for v in violations(root)] == [f"{path}:{line}: backend mentioned: triton"]


def test_backends_may_be_mentioned_elsewhere(tmp_path: Path) -> None:
    free = {
        "backends/triton/codegen/emit.py": "# Triton",
        "backends/registry.py": "from helion.backends.triton import emit  # Triton",
        "runtime/kernel.py": "# Triton launches it",
        "config.py": "PREFIX = '_triton_config_'",
    }
    assert violations(plant(tmp_path, {**CLEAN, **free})) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("from helion.exc import Error\nError._known = 1", 2),
        ("def f(error):\n    return error.cause()._known", 2),
        ("from .exc import _hidden", 1),
        ("from helion.exc import Error, _hidden as hidden", 1),
    ],
)
def test_a_private_name_of_another_module_is_reported(tmp_path: Path, text: str, line: int) -> None:
    exc = "class Error(Exception):\n    _known = 0\ndef _hidden():\n    return Error._known"
    (found,) = violations(plant(tmp_path, {**CLEAN, "exc.py": exc, "config.py": text}))
    assert (found.path, found.line, found.kind) == ("config.py", line, "private name")


def test_private_names_of_a_module_are_its_own(tmp_path: Path) -> None:
    free = {
        "exc.py": "class Error(Exception):\n    _known = 0\ndef f(error):\n    return error._known",
        "config.py": "from . import _names\nclass A:\n    def f(self):\n        return self._known, self.x._fields",
        "_names.py": "_fields = 2",
        "settings.py": "class B:\n    __slots__ = ('_known',)\n    def same(self, other):\n        return other._known",
    }
    assert violations(plant(tmp_path, {**CLEAN, **free})) == []


LINES = "x = 1\n" * MOST_LINES
BODY = "def f():\n" + "    x = 1\n" * (LONGEST_FUNCTION - 1)
FULL = {f"_compiler/ir/m{i}.py": "" for i in range(MOST_MODULES - 3)}  # the folder has three in CLEAN
LARGE = [
    ("_compiler/ir/", {**FULL, "_compiler/ir/one_more.py": ""}),
    ("config.py", {"config.py": LINES + "y = 1\n"}),
    ("config.py:f", {"config.py": BODY + "    y = 1\n"}),
    ("config.py:g", {"config.py": "class A:\n    async def g(self):\n" + "        x = 1\n" * LONGEST_FUNCTION}),
]


def test_what_is_just_within_the_limits_is_fine(tmp_path: Path) -> None:
    assert violations(plant(tmp_path, {**CLEAN, **FULL, "config.py": LINES, "knobs.py": BODY})) == []


@pytest.mark.parametrize(("name", "files"), LARGE, ids=[name for name, _ in LARGE])
def test_what_is_too_large_is_reported(tmp_path: Path, name: str, files: dict[str, str]) -> None:
    (found,) = violations(plant(tmp_path, {**CLEAN, **files}))
    assert found.kind == "too large" and found.detail.startswith(f"{name} has ")


def test_exceptions_have_a_number_that_holds(tmp_path: Path) -> None:
    root = plant(tmp_path, {**CLEAN, "config.py": LINES + "y = 1\n"})
    assert violations(root, {"config.py": MOST_LINES + 1}) == []
    assert [v.kind for v in violations(root, {"config.py": MOST_LINES})] == ["too large"]
    over = {"config.py": MOST_LINES + 1, "knobs.py": MOST_LINES + 1, "gone.py": 700}
    assert no_exceptions(read_modules(root), over) == ["gone.py", "knobs.py"]


@pytest.mark.prove
def test_all_exceptions_are_needed() -> None:
    assert no_exceptions(read_modules(Path(__file__).resolve().parents[1] / PACKAGE), OVER) == []


@pytest.mark.parametrize("text", ["VECTOR_BYTES = 16", "_VECTOR_BYTES = 8", "A, _VECTOR_BYTES = 1, 16"])
def test_a_second_number_of_the_architecture_is_reported(tmp_path: Path, text: str) -> None:
    rest = {name: each for name, each in CLEAN.items() if name != "hardware.py"}
    files = {
        "hardware/__init__.py": "",
        "hardware/records.py": "VECTOR_BYTES = 16",
        "config.py": text,
        "settings.py": "from .hardware.records import VECTOR_BYTES",
    }
    (found,) = violations(plant(tmp_path, {**rest, **files}))
    assert str(found) == "config.py:1: second number: import VECTOR_BYTES"


@pytest.mark.parametrize(
    "files", [{}, {"notes.txt": "no Python"}, {"config.py": ""}], ids=["empty", "other", "no-init"]
)
def test_tree_without_package(tmp_path: Path, files: dict[str, str]) -> None:
    assert [v.kind for v in violations(plant(tmp_path, files))] == ["no package"]


def test_missing_folder(tmp_path: Path) -> None:
    assert [v.kind for v in violations(tmp_path / "helion")] == ["no package"]


def test_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SyntaxError, match=r"config\.py"):
        violations(plant(tmp_path, {**CLEAN, "config.py": "def"}))
