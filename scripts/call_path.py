"""Count the modules that the arguments of a kernel's call pass, by the source with all branches taken.

    python scripts/call_path.py [--list]

The walk begins at ``Kernel._call`` and enters each function that gets the arguments, in the order of the source, once.
A stay is a run of functions of one module; a return is a stay in a module that had one before. ``--list`` prints the
functions. Operations of torch and the generated code are no part of it.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START = ("helion.runtime.kernel", "Kernel._call")
#: Packages whose functions are on the path of a call, rather than of a compilation or a search.
ROOMS = ("helion.runtime.",)
#: Functions whose result is the arguments again.
PASSING = frozenset(("normalize_args", "tuple", "list", "dict", "zip", "enumerate", "reversed", "map", "filter"))
#: Methods with the names of those of containers, which are not looked up by name.
COMMON = frozenset(("add", "append", "get", "items", "keys", "values", "pop", "update", "of", "join", "index", "copy"))


@dataclass
class Module:
    """A parsed module: its functions by qualified name, tables of functions, and the paths of imported names."""

    name: str
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)


def parse(path: Path) -> Module:
    parts = path.relative_to(ROOT).with_suffix("").parts
    module = Module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    tree = ast.parse(path.read_text(encoding="utf-8"))
    package = parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            base = ".".join((*package[: len(package) - node.level + 1], *([node.module] if node.module else [])))
            base = base if node.level else node.module or ""
            module.names.update({a.asname or a.name: f"{base}.{a.name}" for a in node.names})
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            call, target = node.value, node.targets[0]
            if isinstance(call.func, ast.Name) and call.func.id == "lazy" and isinstance(target, ast.Name):
                module.names[target.id] = ast.literal_eval(call.args[0])
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            module.functions[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Tuple):
            module.tables[ast.unparse(node.target)] = [e.id for e in node.value.elts if isinstance(e, ast.Name)]
        elif isinstance(node, ast.ClassDef):
            module.classes[node.name] = node
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    module.functions[f"{node.name}.{inner.name}"] = inner
    return module


class Walk:
    """A walk over the functions that get the arguments."""

    def __init__(self) -> None:
        self.modules = {m.name: m for m in map(parse, sorted((ROOT / "helion").rglob("*.py")))}
        self.methods: dict[str, list[tuple[str, str]]] = {}
        for module in self.modules.values():
            if module.name.startswith(ROOMS):
                for name in module.functions:
                    if "." in name:
                        self.methods.setdefault(name.split(".")[1], []).append((module.name, name))
        self.seen: dict[tuple[str, str], None] = {}

    def enter(self, module: str, function: str, tainted: frozenset[str]) -> None:
        if (module, function) in self.seen or not module.startswith(ROOMS):
            return
        node = self.modules[module].functions[function]
        if _is_stub(node):
            return
        self.seen[module, function] = None
        _Body(self, module, function, set(tainted)).visit_all(node.body)

    def resolve(self, module: str, function: str, called: ast.expr) -> Iterator[tuple[str, str]]:
        """Yield the functions that a call may run."""
        known = self.modules[module]
        if isinstance(called, ast.Name) and called.id.upper() == called.id:
            return
        if isinstance(called, ast.Name):
            yield from self._table(module, function, called.id)
            yield from self._named(known.names.get(called.id, f"{module}.{called.id}"))
        elif isinstance(called, ast.Attribute):
            owner = called.value
            if isinstance(owner, ast.Name) and owner.id == "self" and "." in function:
                yield from self._method(module, function.split(".")[0], called.attr)
            elif isinstance(owner, ast.Name) and known.names.get(owner.id) in self.modules:
                yield from self._named(f"{known.names[owner.id]}.{called.attr}")
            elif called.attr not in COMMON:
                yield from self._by_name(module, ast.unparse(owner).split(".")[-1], self.methods.get(called.attr, []))

    def _table(self, module: str, function: str, variable: str) -> Iterator[tuple[str, str]]:
        """Yield the functions of a table of the module, if a loop over it assigns the variable."""
        known = self.modules[module]
        for node in ast.walk(known.functions[function]):
            if isinstance(node, ast.For) and isinstance(node.iter, ast.Name) and ast.unparse(node.target) == variable:
                for name in known.tables.get(node.iter.id, ()):
                    yield from self._named(f"{module}.{name}")

    def _by_name(self, module: str, owner: str, named: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Return the methods of a class called like the variable, else those of the module, else the only one."""
        for found in (
            [each for each in named if each[1].split(".")[0].lower() == owner.strip("_").lower()],
            [each for each in named if each[0] == module],
        ):
            if found:
                return found
        return named if len(named) == 1 else []

    def _named(self, path: str) -> Iterator[tuple[str, str]]:
        module, _, name = path.rpartition(".")
        known = self.modules.get(module)
        if known is None:
            return
        if name in known.functions:
            yield module, name
        elif f"{name}.__init__" in known.functions:
            yield module, f"{name}.__init__"
        elif name in known.names:
            yield from self._named(known.names[name])

    def _method(self, module: str, owner: str, name: str) -> Iterator[tuple[str, str]]:
        if f"{owner}.{name}" in self.modules[module].functions:
            yield module, f"{owner}.{name}"
            return
        for base in self.modules[module].classes[owner].bases:
            text = ast.unparse(base).split("[")[0]
            path = self.modules[module].names.get(text, f"{module}.{text}")
            there, _, name_of_base = path.rpartition(".")
            if there in self.modules and name_of_base in self.modules[there].classes:
                yield from self._method(there, name_of_base, name)


def _is_stub(node: ast.FunctionDef) -> bool:
    """Return whether a function belongs to a protocol: it has no statements but a docstring and ``...``."""
    return all(isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) for s in node.body)


class _Body(ast.NodeVisitor):
    """A visitor of one function's body, with the names that hold the arguments."""

    def __init__(self, walk: Walk, module: str, function: str, tainted: set[str]) -> None:
        self.walk = walk
        self.at = (module, function)
        self.tainted = tainted

    def visit_all(self, body: list[ast.stmt]) -> None:
        for node in body:
            self.visit(node)

    def holds(self, node: ast.expr) -> bool:
        """Return whether an expression is the arguments, or some of them."""
        if isinstance(node, ast.Name):
            return node.id in self.tainted
        if isinstance(node, (ast.Starred, ast.Subscript)):
            return self.holds(node.value)
        if isinstance(node, (ast.Tuple, ast.List)):
            return any(map(self.holds, node.elts))
        if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
            return any(self.holds(g.iter) for g in node.generators)
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            return name in PASSING and any(map(self.holds, node.args))
        return False

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        if self.holds(node.value):
            for name in (n for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)):
                self.tainted.add(name.id)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        if self.holds(node.iter):
            self.tainted.update(n.id for n in ast.walk(node.target) if isinstance(n, ast.Name))
        self.visit_all([*node.body, *node.orelse])

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if not any(map(self.holds, given)):
            return
        for module, function in self.walk.resolve(*self.at, node.func):
            self.walk.enter(module, function, self._parameters(node, module, function))

    def _parameters(self, node: ast.Call, module: str, function: str) -> frozenset[str]:
        """Return the parameters of a function that a call passes the arguments to."""
        spec = self.walk.modules[module].functions[function].args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        if "." in function:
            names = names[1:]
        found = {k.arg for k in node.keywords if k.arg and self.holds(k.value)}
        for at, value in enumerate(node.args):
            if self.holds(value):
                rest = [spec.vararg.arg] if spec.vararg else []
                found.update([*names[at:], *rest] if isinstance(value, ast.Starred) else (names[at : at + 1] or rest))
        return frozenset(found)


def count(walk: Walk) -> tuple[int, int, int]:
    """Return the modules, the stays and the returns of a finished walk."""
    stays: list[str] = []
    for module, _ in walk.seen:
        if not stays or stays[-1] != module:
            stays.append(module)
    return len(set(stays)), len(stays), len(stays) - len(set(stays))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the functions")
    options = parser.parse_args(arguments)
    walk = Walk()
    walk.enter(*START, frozenset(("args", "kwargs")))
    if options.list:
        print(*(f"{module}:{function}" for module, function in walk.seen), sep="\n")
    modules, stays, returns = count(walk)
    print(f"{modules} modules, {stays} stays, {returns} returns, {len(walk.seen)} functions")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
