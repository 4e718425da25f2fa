"""A bound kernel and its arguments as a self-contained script, to run or to send.

The script has the kernel's source with its config fixed, and the functions and constants of the user's module that it
names. It calls the kernel with random tensors of the same dtypes, sizes, strides and alignment. Integers, which may be
indices, keep their range; short integer tensors, which may be offsets, keep their values.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import enum
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ... import knobs
from ..._compiler.source import parse_function
from ..._support.nested import tensors_in
from ..._support.syntax import parse
from ...config import Config
from ...language.constants import ConstExpr
from ..call.definition import Definition
from .specialized import Specialized

BEGIN = "# === HELION KERNEL REPRO ==="
END = "# === END HELION KERNEL REPRO ==="

#: Settings that generated code depends on; those at their defaults are left out of the decorator.
_SETTINGS = (
    "backend",
    "index_dtype",
    "dot_precision",
    "persistent_reserved_sms",
    "allow_warp_specialize",
)
#: Integer tensors of up to this many elements are written out.
_WRITTEN_OUT = 64
#: Default alignment of pointers in bytes: Triton compiles other code for less.
_ALIGNMENT = 16

_RANDOM = '''def _random(size, stride, dtype, device, offset=0, low=0, high=1):
    """Random values in memory laid out like that; integers from low to high."""
    length = 0 if 0 in size else offset + 1 + sum((n - 1) * step for n, step in zip(size, stride))
    if "float4" in str(dtype):
        values = torch.randint(0, 256, (length,), dtype=torch.uint8, device=device).view(dtype)
    elif dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(length, device=device).to(dtype)
    else:
        values = torch.randint(low, high + 1, (length,), device=device).to(dtype)
    return values.as_strided(size, stride, offset)'''


def show(bound: Specialized, config: Config | None, args: Sequence[Any]) -> None:
    """Print the script to stderr between two marker lines."""
    print(f"{BEGIN}\n{script(bound, config, args)}\n{END}", file=sys.stderr)


def show_once(bound: Specialized, config: Config | None, args: Sequence[Any]) -> None:
    """Print the script that makes this call, once per config, if the setting asks for it."""
    if bound.settings.print_repro and config not in bound.printed_scripts:
        bound.printed_scripts.add(config)
        show(bound, config, args)


def script(bound: Specialized, config: Config | None, args: Sequence[Any]) -> str:
    """Format the script; without a config the kernel has its default one."""
    kernel = bound.kernel
    writer = _Writer(kernel.fn.__globals__)
    source = parse_function(kernel.fn)
    assert source is not None and isinstance(source.node, ast.FunctionDef)
    lines, first = inspect.getsourcelines(kernel.fn)
    text = textwrap.dedent("".join(lines[source.node.lineno - first :])).rstrip()
    bare = parse(text).body[0]
    writer.known[kernel.name] = kernel
    writer.names_in(bare, kernel.fn.__globals__)
    call = writer.call(kernel.name, args)
    parts = [
        f"# {kernel.name} for {bound.target.name}. Save this as a file and run it.\nfrom __future__ import annotations",
        "\n".join(sorted(writer.imports)),
        _RANDOM,
        *writer.definitions,
        f"{_decorator(bound, config)}\n{text}",
        f"def helion_repro_caller():\n    torch.manual_seed(0)\n{call}",
        'if __name__ == "__main__":\n    print(helion_repro_caller())',
    ]
    return "\n\n".join(parts)


def _decorator(bound: Specialized, config: Config | None) -> str:
    settings = bound.settings.to_dict()
    defaults = {name: knobs.SETTINGS[name].default for name in _SETTINGS}
    changed = {name: settings[name] for name in _SETTINGS if settings[name] != defaults[name]}
    changed.setdefault("static_shapes", settings["static_shapes"])
    first = [] if config is None else [f"config={bound.short_config(config)!r}"]
    return f"@helion.kernel({', '.join([*first, *(f'{name}={value!r}' for name, value in changed.items())])})"


def source_of(kernel: Definition) -> tuple[str, str]:
    """Return name and file of the module that defines a kernel."""
    return kernel.fn.__module__, kernel.fn.__code__.co_filename


def with_caller(text: str, bound: Specialized) -> str:
    """Make a generated module runnable: its ``call()`` runs it on random arguments. It finds its source by itself."""
    kernel = bound.kernel
    writer = _Writer(kernel.fn.__globals__)
    call = writer.call(kernel.name, bound.sample())
    parts = [
        text.rstrip(),
        "\n".join(sorted(writer.imports)),
        _RANDOM,
        *writer.definitions,
        f"def call():\n    torch.manual_seed(0)\n{call}",
        'if __name__ == "__main__":\n    print(call())',
    ]
    return "\n\n\n".join(parts) + "\n"


class _Writer:
    """Formatter of Python values as source text. Imports and definitions that the text needs are collected."""

    def __init__(self, namespace: Mapping[str, Any]) -> None:
        self.namespace = namespace
        self.imports = {"import torch", "import helion", "import helion.language as hl"}
        self.definitions: list[str] = []
        self.known: dict[str, Any] = {"torch": torch}

    # --- the call --------------------------------------------------------------------------------------------------------

    def call(self, name: str, args: Sequence[Any]) -> str:
        """Format the body of a function that calls ``name`` on arguments like these, with the same sharing of memory."""
        lines: list[str] = []
        tensors = list(tensors_in(args))
        by_storage: dict[int, list[torch.Tensor]] = {}
        for tensor in tensors:
            by_storage.setdefault(_storage(tensor), []).append(tensor)
        shared: dict[int, str] = {}
        for group in by_storage.values():
            if len(group) < 2 or len({t.dtype for t in group}) > 1:
                continue
            memory = f"memory_{len(lines)}"
            length = max(_end(t) for t in group)
            low, high = (f(each) for f, each in zip((min, max), zip(*map(_range, group), strict=True), strict=True))
            bounds = _bounds(group[0], low, high)
            lines.append(
                f"{memory} = _random(({length},), (1,), {group[0].dtype}, {_device(group[0].device)!r}{bounds})"
            )
            for t in group:
                shared[id(t)] = f"{memory}.as_strided({_ints(t.shape)}, {_ints(t.stride())}, {int(t.storage_offset())})"
        lines += [f"return {name}(", *(f"    {self.value(a, shared)}," for a in args), ")"]
        return textwrap.indent("\n".join(lines), "    ")

    def value(self, value: Any, shared: Mapping[int, str] | None = None) -> str:
        """Format an expression for an equal value, or for a random one for tensors."""
        shared = shared or {}
        if isinstance(value, torch.Tensor):
            return shared.get(id(value)) or _tensor(value)
        if isinstance(value, torch.device):
            return f"torch.device({_device(value)!r})"
        if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
            return f"float('{value}')"
        if isinstance(value, _LITERALS):
            return repr(value)
        if isinstance(value, ConstExpr):
            return f"hl.constexpr({self.value(value.value, shared)})"
        if isinstance(value, enum.Enum):
            return f"{self.object(type(value).__name__, type(value))}.{value.name}"
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            items = ", ".join(self.value(v, shared) for v in value)
            return f"{self.object(type(value).__name__, type(value))}({items})"
        if isinstance(value, tuple):
            return f"({', '.join(self.value(v, shared) for v in value)}{',' if len(value) == 1 else ''})"
        if isinstance(value, list):
            return f"[{', '.join(self.value(v, shared) for v in value)}]"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self.value(k)}: {self.value(v, shared)}' for k, v in value.items())}}}"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = [
                f"{f.name}={self.value(getattr(value, f.name), shared)}" for f in dataclasses.fields(value) if f.init
            ]
            return f"{self.object(type(value).__name__, type(value))}({', '.join(fields)})"
        name = getattr(value, "__name__", "")
        owner = next((path for path, names in _TORCH.items() if name and getattr(names, name, None) is value), None)
        return f"{owner}.{name}" if owner else self.object(name or type(value).__name__, value)

    # --- functions, classes and other objects with a name ------------------------------------------------------------------

    def object(self, name: str, value: Any) -> str:
        """Return the name of ``value`` in the script, which imports or defines it once."""
        if name in self.known and self.known[name] is not value:
            name = next(n for n in (f"{name}_{i}" for i in range(1, 10**6)) if self.known.get(n, value) is value)
        if name in self.known:
            return name
        if not name.isidentifier():
            name = "_function" if name == "<lambda>" else "_object"
            return self.object(name, value)
        self.known[name] = value
        if isinstance(value, types.ModuleType):
            self.imports.add(f"import {value.__name__}" + (f" as {name}" if name != value.__name__ else ""))
        elif not self.imported(name, value):
            self.definitions.append(self.definition(name, value))
        return name

    def imported(self, name: str, value: Any) -> bool:
        """Return whether the value can be imported from a module that other processes find, too."""
        module, path = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
        if not isinstance(module, str) or not isinstance(path, str) or "<" in path or "." in path:
            return False
        if module in ("__main__", self.namespace.get("__name__")) or module not in sys.modules:
            return False
        if not _importable(module) or getattr(sys.modules[module], path, None) is not value:
            return False
        self.imports.add(f"from {module} import {path}" + (f" as {name}" if name != path else ""))
        return True

    def definition(self, name: str, value: Any) -> str:
        """Format statements that assign ``name`` its value."""
        function = getattr(value, "fn", value)  # kernels of all kinds hold a function
        if isinstance(function, types.FunctionType):
            return self.function(name, function)
        if isinstance(value, type):
            try:
                text = textwrap.dedent(inspect.getsource(value)).rstrip()
            except OSError:
                return f"# {name}: a class whose source was not found\n{name} = None"
            self.names_in(parse(text), vars(sys.modules[value.__module__]), frozenset((value.__name__,)))
            return text if name == value.__name__ else f"{text}\n\n{name} = {value.__name__}"
        assigned = self.assignment(name)
        if assigned is not None:
            return assigned
        return f"# {name}: a {type(value).__name__}, which this script cannot make\n{name} = None"

    def function(self, name: str, function: types.FunctionType) -> str:
        """Format a function under ``name``. A factory makes it if it closes over variables or has another name itself."""
        try:
            source = None if function.__name__ == "<lambda>" else textwrap.dedent(inspect.getsource(function)).rstrip()
        except OSError:
            return f"# {name}: a function whose source was not found\n{name} = None"
        if source is None:
            parsed = parse_function(function)
            if parsed is None:
                return f"# {name}: a lambda that is not alone on its line\n{name} = None"
            source = f"{name} = {ast.unparse(parsed.node)}"
        called = name if function.__name__ == "<lambda>" else function.__name__
        closure = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        cells = {n: cell.cell_contents for n, cell in closure if cell != types.CellType()}
        self.names_in(parse(source), function.__globals__, frozenset((*cells, called)))
        if not cells and called == name:
            return source
        values = ", ".join(self.value(cell) for cell in cells.values())
        body = textwrap.indent(source, "    ")
        return f"def _make_{name}({', '.join(cells)}):\n{body}\n    return {called}\n\n{name} = _make_{name}({values})"

    def assignment(self, name: str) -> str | None:
        """Return the statement at the top of the kernel's file that assigns ``name``."""
        module = sys.modules.get(self.namespace.get("__name__", ""))
        try:
            tree = parse(inspect.getsource(module)) if module is not None else ast.Module([], [])
        except (OSError, TypeError):  # a notebook or a prompt has no file
            return None
        for node in reversed(tree.body):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and any(
                isinstance(t, ast.Name) and t.id == name for t in targets
            ):
                self.names_in(node, self.namespace)
                return ast.unparse(node)
        return None

    def names_in(self, tree: ast.AST, namespace: Mapping[str, Any], leave: frozenset[str] = frozenset()) -> None:
        """Add the globals that a piece of source reads."""
        read = {n.id: None for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        for name in read:
            value = namespace.get(name, self)
            if name in leave or name in self.known or value is self or value is getattr(builtins, name, self):
                continue
            if isinstance(value, (types.ModuleType, type)) or callable(value):
                self.object(name, value)
            else:
                self.known[name] = value
                text = f"{name} = {self.value(value)}" if _plain(value) else self.definition(name, value)
                self.definitions.append(text)


#: Modules of torch functions, some of which do not record their own module.
_TORCH = {"torch": torch, "torch.nn.functional": torch.nn.functional, "torch.Tensor": torch.Tensor}
_LITERALS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.Size, Config, slice)


def _importable(module: str) -> bool:
    """Return whether another process would import this same module by its name.

    Modules can be made from files in other ways.
    """
    parts, spec, path = module.split("."), None, None
    for end in range(1, len(parts) + 1):
        name = ".".join(parts[:end])
        spec = next(filter(None, (finder.find_spec(name, path) for finder in sys.meta_path)), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and spec.origin in (getattr(sys.modules[module], "__file__", None), "built-in", "frozen")


def _plain(value: Any) -> bool:
    """Return whether ``_Writer.value`` formats the value without its name."""
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return all(map(_plain, value))
    if isinstance(value, dict):
        return all(map(_plain, (*value, *value.values())))
    return isinstance(value, (*_LITERALS, torch.Tensor, torch.device, ConstExpr, enum.Enum))


# --- tensors -----------------------------------------------------------------------------------------------------------


def _tensor(tensor: torch.Tensor) -> str:
    where, size, stride = _device(tensor.device), _ints(tensor.shape), _ints(tensor.stride())
    if _is_integer(tensor) and 0 < tensor.numel() <= _WRITTEN_OUT and tensor.is_contiguous():
        values = _read(tensor.tolist)
        if values is not None:
            return f"torch.tensor({values!r}, dtype={tensor.dtype}, device={where!r})"
    low, high = _range(tensor)
    pointer = 0 if tensor.device.type == "meta" else _read(tensor.data_ptr) or 0
    offset = pointer % _ALIGNMENT // tensor.element_size()
    begin = f", offset={offset}" if offset else ""
    return f"_random({size}, {stride}, {tensor.dtype}, {where!r}{begin}{_bounds(tensor, low, high)})"


def _read(what: Callable[[], Any]) -> Any:
    """Return a property of a tensor's data; None for fake tensors, and after an error on the device."""
    try:
        return what()
    except (RuntimeError, NotImplementedError):
        return None


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the least and the greatest integer in a tensor; 0 and 1 if none can be read."""
    if not _is_integer(tensor) or tensor.numel() == 0 or tensor.device.type == "meta":
        return 0, 1
    least, greatest = _read(lambda: int(tensor.amin())), _read(lambda: int(tensor.amax()))
    # torch.randint takes 64-bit bounds, the upper one not included
    return (0, 1) if least is None or greatest is None else (least, min(greatest, 2**63 - 2))


def _bounds(tensor: torch.Tensor, low: int, high: int) -> str:
    return f", low={low}, high={high}" if _is_integer(tensor) and (low, high) != (0, 1) else ""


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype is torch.bool)


def _ints(numbers: Sequence[Any]) -> str:
    return repr(tuple(map(int, numbers)))


def _device(device: torch.device) -> str:
    """Return the device as text. Tensors without data are bound for a GPU."""
    return "cuda" if device.type == "meta" else str(device)


def _storage(tensor: torch.Tensor) -> int:
    return id(tensor) if tensor.device.type == "meta" else _read(lambda: tensor.untyped_storage()._cdata) or id(tensor)


def _end(tensor: torch.Tensor) -> int:
    """Return the number of elements from the start of the memory to the last one of a tensor."""
    if 0 in tensor.shape:
        return int(tensor.storage_offset())
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return int(tensor.storage_offset()) + 1 + sum((int(n) - 1) * int(s) for n, s in steps)
