"""The host function as data: what it says of launches and memory, that it is never changed, and the forms of a module."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion._compiler.host.print import print_host
from helion._compiler.host.program import HostProgram, KernelLaunch
from helion._compiler.host.trees import Rewriter, expression, names_in

X = torch.randn(6, 40)
ALONE = helion.OutputCodeOptions(allow_helion_deps=False)


def host_of(function: Callable[..., object], *args: object, **config: object) -> HostProgram:
    bound = helion.kernel(function).bind(args or (X,))
    return bound._analysis.code(bound.config_spec.normalize(config)).host


def launches(host: HostProgram) -> list[KernelLaunch]:
    return [node for s in host.body for node in ast.walk(s) if isinstance(node, KernelLaunch)]


def fresh(x: torch.Tensor) -> torch.Tensor:
    """Doubles."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * 2
    return out


def in_place(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size()):
        x[tile] = x[tile] * 2
    return x


def through_a_view(x: torch.Tensor) -> torch.Tensor:
    out = x.view(-1)
    for tile in hl.tile(out.size(0)):
        out[tile] = out[tile] * 2
    return x


def inlined(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = hl.inline_triton("{0} * 2", args=(x[tile],), output_like=x[tile])
    return out


def counted(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * 2
    return out


def counted_behind(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * 2
    x += 1
    return out


def in_two_phases(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * 2
    hl.barrier()
    for tile in hl.tile(x.size()):
        out[tile] = out[tile] + 1
    return out


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for step in range(3):
        for tile in hl.tile(x.size()):
            out[tile] += x[tile] + step
    return out


def data_dependent(x: torch.Tensor) -> torch.Tensor:
    count = int((x > 0).sum().item())
    out = torch.zeros_like(x).view(-1)
    for tile in hl.tile(count):
        out[tile] = 1.0
    return out


@pytest.mark.parametrize(
    ("function", "writes", "once", "again"),
    [
        (fresh, False, True, True),
        (in_place, True, True, True),
        (through_a_view, True, True, True),
        (inlined, True, True, True),
        (counted, False, False, False),
        (counted_behind, False, True, True),
        (in_two_phases, False, True, False),
        (in_a_loop, False, True, False),
    ],
)
def test_memory(function: Callable[..., object], writes: bool, once: bool, again: bool) -> None:
    """``once``: the first call of all can be made again when its launch failed; ``again``: a later one can."""
    host = host_of(function)
    assert host.may_write_arguments == writes
    assert host.is_repeatable(launched=False) == once
    assert host.is_repeatable(launched=True) == again


def test_launches_are_data() -> None:
    host = host_of(fresh, block_sizes=[2, 16], num_warps=8)
    (launch,) = launches(host)
    assert launch.kernel == "_helion_fresh"
    assert [ast.unparse(each) for each in launch.grid] == ["9"]
    assert [ast.unparse(each) for each in launch.arguments] == ["x", "out"]
    assert "num_warps=8" in [ast.unparse(each) for each in launch.options]
    assert host.stored == {"out"} and not host.imports[1:]
    assert [launch.kernel for launch in launches(host_of(in_two_phases))] == [
        "_helion_in_two_phases",
        "_helion_in_two_phases_1",
    ]


@pytest.mark.parametrize("function", [fresh, in_a_loop, data_dependent])
def test_other_processes_get_the_same(function: Callable[..., object]) -> None:
    bound = helion.kernel(function).bind((X,))
    module = bound._analysis.code(bound.config_spec.normalize({})).module
    again = pickle.loads(pickle.dumps(module))
    assert again.text == module.text and again.origins == module.origins
    assert print_host(again.host) == print_host(module.host)


@pytest.mark.parametrize("function", [fresh, in_a_loop, data_dependent])
def test_nobody_changes_the_users_code(function: Callable[..., object]) -> None:
    bound = helion.kernel(function).bind((X,))
    traced = bound._analysis.program.host.function
    before = ast.dump(traced, include_attributes=True)
    texts = [bound.to_code(config) for config in ({}, {"num_warps": 8}, {})]
    host = bound._analysis.code(bound.config_spec.normalize({})).host
    for _ in range(2):
        written = host.statements(lambda launch: [ast.Pass()])
        assert not any(isinstance(node, KernelLaunch) for s in written for node in ast.walk(s))
    assert ast.dump(traced, include_attributes=True) == before
    assert texts[0] == texts[2] != texts[1]
    (printed,) = (n for n in ast.parse(texts[0]).body if isinstance(n, ast.FunctionDef) and n.name == traced.name)
    rest = [*host.class_check, *host.statements()]
    assert ast.unparse(printed.body) == "\n".join(map(ast.unparse, rest))


def test_what_is_checked_stands_behind_its_condition() -> None:
    def derived(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        for tile in hl.tile(y.size()):
            y[tile] = y[tile] * 2
        return y

    host = host_of(derived)
    statement = host.checked_launch(0)
    assert isinstance(statement, ast.If) and "_expected_0(y, x)" in ast.unparse(statement.test)
    assert "_launcher(_helion_derived" in ast.unparse(statement)
    assert host.checked_launch(1) is None and host_of(fresh).checked_launch(0) is None


# --- forms of a module ---------------------------------------------------------------------------------------------------


def with_package(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([helion.cdiv(x.size(0), 2), x.size(1)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(out.size()):
        out[tile] = 1.0
    return out


def with_language(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    print(hl.__name__)
    for tile in hl.tile(out.size()):
        out[tile] = 1.0
    return out


def test_a_module_alone() -> None:
    code = helion.kernel(with_package).bind((X,)).to_code(options=ALONE)
    assert "class helion:" in code and "def _default_launcher(" in code and code.count("\nimport torch\n") == 1
    compile(code, "module", "exec")
    with pytest.raises(exc.InvalidAPIUsage, match=r"needs `import helion.language as hl`, so its module cannot"):
        helion.kernel(with_language).bind((X,)).to_code(options=ALONE)


CONSTANT = 3


def with_global(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty([CONSTANT, x.size(1)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(out.size()):
        out[tile] = 1.0
    return out


def test_a_module_that_runs_alone_loads_its_source() -> None:
    bound = helion.kernel(with_global).bind((X,))
    plain, alone = bound.to_code(), bound.to_code(emit_repro_caller=True)
    assert "_source_module.CONSTANT" in plain and "runpy" not in plain
    before, loaded, rest = alone.partition(
        f"register_source({__name__!r}, {__file__!r}, runpy.run_path({__file__!r}))\n"
    )
    assert loaded and rest.startswith("_source_module = ") and before.endswith("import register_source\n\n")


# --- trees ---------------------------------------------------------------------------------------------------------------


class _Renamed(Rewriter):
    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("z", node.ctx) if node.id == "x" else node

    def visit_Pass(self, node: ast.Pass) -> None:
        return None

    def visit_Break(self, node: ast.Break) -> list[ast.stmt]:
        return [node, node]


def test_only_what_changes_is_copied() -> None:
    tree = ast.parse("a = f(x, {**y})\nwhile y:\n    pass\n    break\nb = y")
    before = ast.dump(tree, include_attributes=True)
    made = _Renamed().visit(tree)
    assert ast.unparse(made) == "a = f(z, {**y})\nwhile y:\n    break\n    break\nb = y"
    assert ast.dump(tree, include_attributes=True) == before
    assert made.body[2] is tree.body[2] and made.body[0].value.args[1] is tree.body[0].value.args[1]
    other = ast.parse("b = y")
    assert _Renamed().visit(other) is other


def test_names_of_an_expression() -> None:
    assert names_in("x") == ("x",)
    assert names_in("f(b.size(0), a[c]) if size else b") == ("f", "b", "a", "c", "size", "b")
    assert expression("a + 1") is expression("a + 1")


# --- lines ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("comments", [True, False])
def test_lines_know_what_they_are_about(comments: bool) -> None:
    """The same with and without comments that say so."""

    def summed(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile, :] = torch.sigmoid(x[tile, :])
            out[tile, :] += torch.cumsum(x[tile, :], 1)
        hl.barrier()
        for tile in hl.tile(x.size(0)):
            out[tile, 0] = out[tile, 1]
        return out

    bound = helion.kernel(summed, output_origin_lines=comments).bind((X,))
    module = bound._analysis.code(bound.config_spec.normalize({})).module
    found = {}
    for number, line in enumerate(module.text.split("\n"), 1):
        origin = module.origin(number)
        if not line.strip().startswith("#"):
            found[line.strip()] = origin.text if origin is not None else ""
    for line, about in found.items():
        if "tl.sum" in line or "tl.exp2" in line:
            assert "torch.sigmoid" in about
        elif "associative_scan" in line:
            assert "torch.cumsum" in about
        elif "tl.program_id" in line or line.startswith("offset_"):
            assert about in ("", "for tile in hl.tile(x.size(0)):")
        elif line.startswith(("def ", "import ", "return ", "_launcher", "from ")):
            assert about == ""
    stores = [about for line, about in found.items() if line.startswith("tl.store")]
    assert any("cumsum" in about for about in stores) and any("out[tile, 1]" in about for about in stores)
    assert ("# src[" in module.text) == comments
