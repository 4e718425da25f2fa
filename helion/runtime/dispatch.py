"""One straight line of code per call signature: guard, host code and launch, with nothing looked up on the way.

After a call has gone the full way (key, bound kernel, generated host function, launcher), a function is written for
calls like it. It checks that this call's arguments would lead to the same binary, runs the statements of the generated
host function, and in place of their ``_launcher(...)`` calls the compiled kernel's launch function itself. ``Kernel``
calls the function last written directly; a miss looks for another one by key, and then goes the full way again.

What a guard cannot check in a few hundred nanoseconds (containers, closures, tensor subclasses, floats that are
compiled in as NaN) is never dispatched here. Data pointers are looked at for their alignment, never kept.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import linecache
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..language.constants import ConstExpr
from ..settings import RefMode
from . import inline_launch, stub
from .specialization import CONCRETE_TENSORS, Key

if TYPE_CHECKING:
    from .._compiler.frontend.guards import Guard
    from .._compiler.ir.grammar import Program
    from ..pipeline import Code
    from .bound import BoundKernel
    from .kernel import Kernel

# checks type, dispatch keys, dtype, device and sizes of any number of tensors in one call, 40 ns each
TensorGuards: Any = getattr(getattr(torch._C._dynamo, "guards", None), "TensorGuards", None)

#: Signatures kept per kernel, and functions written for one of them before it is left to the full way.
MAX_SIGNATURES, MAX_VERSIONS = 256, 8
#: Stands for an argument that a call left out.
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "<absent>"})()
MISSED: Any = type("Missed", (), {"__repr__": lambda self: "<missed>"})()
_PREFIX = "_hl_"
#: A miss tries the guards of so many other functions, 0.1 µs each, before it computes a key, which takes longer.
_PROBED = 6


# --- the functions of one kernel ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """The function of one signature. When its guard fails ``run`` looks for another one, ``probe`` gives ``MISSED``."""

    key: Key
    run: Callable[..., Any]
    probe: Callable[..., Any]


class Calls:
    """What a kernel's calls go through; ``forget`` when anything that the written functions assume may have changed."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._lock = threading.Lock()
        self._lines: dict[Key, Line] = {}
        self._recent: tuple[Line, ...] = ()
        self._versions: dict[Key, int] = {}
        self.generation = 0
        with _LIVE_LOCK:
            _LIVE.add(self)

    def forget(self) -> None:
        """Send the next call the full way."""
        with self._lock:
            self.generation += 1
            self._lines, self._recent, self._versions = {}, (), {}
            self._kernel.__call__ = self._kernel._call

    def miss(self, *args: Any) -> Any:
        """A call that the function last used does not accept."""
        for value in args:
            if value is ABSENT:  # for the TypeError that names it
                names = self._kernel.signature.parameters
                return self._kernel._call(**{n: v for n, v in zip(names, args, strict=False) if v is not ABSENT})
        recent = self._recent
        for line in recent:
            result = line.probe(*args)
            if result is not MISSED:
                self._use(line)
                return result
        if len(self._lines) > len(recent) and len(args) == len(self._kernel.signature.parameters):
            found = self._lines.get(signature_key(self._kernel.arguments_key(args), args))
            result = MISSED if found is None else found.probe(*args)
            if found is not None and result is not MISSED:
                self._use(found)
                return result
        return self._kernel._call(*args)

    def _use(self, line: Line) -> None:
        """Let the next call try this one first, unless everything was forgotten meanwhile."""
        with self._lock:
            if self._lines.get(line.key) is line:
                self._kernel.__call__ = line.run
                if line not in self._recent:
                    self._recent = (line, *self._recent[: _PROBED - 1])

    def learn(self, bound: BoundKernel, values: tuple[Any, ...], arguments: Key, generation: int) -> None:
        """Write a function for calls like this one, which has just gone the full way with ``generation`` read before."""
        key = signature_key(arguments, values)
        version = self._versions.get(key, 0)
        if version >= MAX_VERSIONS or generation != self.generation:
            return
        if self._kernel.arguments_key(values) != arguments:  # the kernel's host code changed its arguments' shapes
            return
        line = write_line(key, bound, values, self.miss)
        with self._lock:
            if generation != self.generation:
                return
            if len(self._lines) >= MAX_SIGNATURES:
                self._lines, self._recent, self._versions = {}, (), {}
            self._versions[key] = MAX_VERSIONS if line is None else version + 1
            if line is not None:
                former = self._lines.get(key)
                self._lines[key] = line
                self._recent = (line, *[r for r in self._recent if r is not former][: _PROBED - 1])
                self._kernel.__call__ = line.run


_LIVE: weakref.WeakSet[Calls] = weakref.WeakSet()
_LIVE_LOCK = threading.Lock()


def _forget_all() -> None:
    with _LIVE_LOCK:
        live = list(_LIVE)
    for calls in live:
        calls.forget()


stub.on_change(_forget_all)


def signature_key(arguments: Key, values: Sequence[Any]) -> Key:
    """What tells written functions of a kernel apart: more than bound kernels, since guards compare all of a tensor."""
    grads = tuple([(v.get_device(), v.requires_grad) for v in values if isinstance(v, torch.Tensor)])
    return (arguments, grads, torch.is_inference_mode_enabled())


def dispatchable(values: Sequence[Any]) -> bool:
    """Whether a faster way exists for arguments on this device: a GPU, or the stub that stands for one."""
    return stub.active() or any(type(v) in CONCRETE_TENSORS and v.is_cuda for v in values)


# --- guards ------------------------------------------------------------------------------------------------------------


class _Guards:
    """The conditions of one signature as source text, and the objects they name."""

    def __init__(self) -> None:
        self.cells: dict[str, Any] = {}
        self.first: list[str] = []
        self.conditions: list[str] = []
        self.tensors: dict[str, torch.Tensor] = {}

    def cell(self, value: Any) -> str:
        """A name for an object."""
        name = f"{_PREFIX}g{len(self.cells)}"
        self.cells[name] = value
        return name

    def argument(self, name: str, value: Any, constant: bool) -> bool:
        """Conditions for an argument to lead to the same code; False if there are none to be written."""
        kind = type(value)
        if kind in CONCRETE_TENSORS:
            same = next((n for n, t in self.tensors.items() if t is value), None)
            if same is not None:
                self.conditions.append(f"{name} is {same}")
            else:
                self.tensors[name] = value
        elif value is None or isinstance(value, torch.dtype):
            self.conditions.append(f"{name} is {self.cell(value)}")
        elif kind is float and constant:
            if value != value or value == 0.0:  # NaN equals nothing, and zeros have signs
                return False
            self.conditions.append(f"type({name}) is float and {name} == {self.cell(value)}")
        elif kind is float:
            self.conditions.append(f"type({name}) is float")
        elif kind is bool:
            self.conditions.append(f"{name} is {value}" if constant else f"type({name}) is bool")
        elif kind is int and not constant:
            inside = f"-2147483648 <= {name} < 2147483648"
            fits = -(2**31) <= value < 2**31
            self.conditions.append(f"type({name}) is int and {inside if fits else f'not {inside}'}")
        elif kind in (int, str, torch.device, torch.Size):
            self.conditions.append(f"type({name}) is {self.cell(kind)} and {name} == {self.cell(value)}")
        elif kind is types.FunctionType and not constant:
            return self.function(name, value)
        else:
            return False
        return True

    def function(self, name: str, fn: types.FunctionType) -> bool:
        """A function that closes over nothing is its code."""
        if fn.__closure__ or fn.__defaults__ or fn.__kwdefaults__:
            return False
        kind, code = self.cell(types.FunctionType), self.cell(fn.__code__)
        bare = " and ".join(f"not {name}.{part}" for part in ("__closure__", "__defaults__", "__kwdefaults__"))
        self.conditions.append(f"type({name}) is {kind} and {name}.__code__ is {code} and {bare}")
        return True

    def all_tensors(self, static: bool) -> bool:
        """Conditions on the tensors together, which come first."""
        shapes = {n: _Shape(n, t, static) for n, t in self.tensors.items()}
        if not shapes:
            return False
        if TensorGuards is not None:
            check = TensorGuards(
                *self.tensors.values(),
                dynamic_dims_sizes=[s.sizes for s in shapes.values()],
                dynamic_dims_strides=[s.strides for s in shapes.values()],
            ).check
            self.first.append(f"{self.cell(check)}({', '.join(shapes)})")
        else:
            self.first += [self.by_attributes(name, shape) for name, shape in shapes.items()]
        if not static:
            self.extents(list(shapes.values()))
        return True

    def by_attributes(self, name: str, shape: _Shape) -> str:
        """What ``TensorGuards`` checks of one tensor, but for its dispatch keys."""
        tensor = self.tensors[name]
        conditions = [
            f"type({name}) is {self.cell(type(tensor))}",
            f"{name}.dtype is {self.cell(tensor.dtype)}",
            f"{name}.device == {self.cell(tensor.device)}",
            f"{name}.requires_grad is {tensor.requires_grad}",
            f"{name}.dim() == {tensor.dim()}",
        ]
        if None not in (*shape.sizes, *shape.strides):
            conditions.append(f"{name}.shape == {self.cell(tensor.shape)}")
            conditions.append(f"{name}.stride() == {self.cell(tensor.stride())}")
        else:
            conditions += [f"{name}.size({i}) == {n}" for i, n in enumerate(shape.sizes) if n is not None]
            conditions += [f"{name}.stride({i}) == {n}" for i, n in enumerate(shape.strides) if n is not None]
        return " and ".join(conditions)

    def extents(self, shapes: list[_Shape]) -> None:
        """Dynamic sizes and strides: none below 2, equal ones equal and different ones different, offsets as wide."""
        groups: dict[int, list[str]] = {}
        for shape in shapes:
            read = shape.reads()
            if read:
                self.conditions.append(read)
            for number, text in shape.dynamic:
                groups.setdefault(number, []).append(text)
        for texts in groups.values():
            self.conditions.append(f"1 < {' == '.join(texts)}")
        if len(groups) > 1:
            self.conditions.append(f"len({{{', '.join(texts[0] for texts in groups.values())}}}) == {len(groups)}")
        for shape in shapes:
            if shape.dynamic:
                self.conditions.append(f"{'not ' if not shape.wide else ''}{shape.last_offset()} >= 2147483648")
            name = shape.name
            fixed = getattr(shape.tensor, "_dynamo_static_indices", None)
            known = "None" if fixed is None else self.cell(set(fixed))
            self.conditions.append(f"{self.cell(_static_indices)}({name}) == {known}")

    def numbers(self, origins: Mapping[str, tuple[Any, ...]], names: Sequence[str], values: tuple[Any, ...]) -> bool:
        """Numbers inside of arguments that the code was specialized on."""
        for _, at, *steps in origins.values():
            text, value = names[at], values[at]
            if len(steps) > 1 or any(not isinstance(step, tuple) for step in steps):
                return False
            for kind, dim in steps:
                text = f"{text}.{kind}({dim})"
                value = value.size(dim) if kind == "size" else value.stride(dim)
            if type(value) not in (int, bool, str) and not isinstance(value, (int, torch.dtype)):
                return False
            self.conditions.append(f"{text} == {self.cell(value)}")
        return True

    def world(self, guards: Sequence[Guard]) -> bool:
        """What must still hold of globals: the very same objects, or else the full way decides."""
        for guard in guards:
            owner = vars(guard.owner) if isinstance(guard.owner, types.ModuleType) else guard.owner
            now = owner.get(guard.key) if isinstance(owner, dict) else None
            if now is None or isinstance(now, torch.Tensor):
                self.conditions.append(f"{self.cell(guard.holds)}()")
            elif dataclasses.replace(guard, kind="item", owner={guard.key: now}).holds():
                self.conditions.append(f"{self.cell(owner.get)}({self.cell(guard.key)}) is {self.cell(now)}")
            else:
                return False
        return True


def _static_indices(tensor: torch.Tensor) -> set[int] | None:
    return getattr(tensor, "_dynamo_static_indices", None)


class _Shape:
    """Sizes and strides of one tensor: fixed numbers, None for dynamic ones, which are read into names."""

    def __init__(self, name: str, tensor: torch.Tensor, static: bool) -> None:
        self.name = name
        self.tensor = tensor
        fixed = getattr(tensor, "_dynamo_static_indices", ())
        self.sizes = [n if static or n < 2 or i in fixed else None for i, n in enumerate(tensor.shape)]
        self.strides = [n if static or n < 2 or i in fixed else None for i, n in enumerate(tensor.stride())]
        self.wide = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) >= 2**31
        at = range(tensor.dim())
        self.dynamic = [(tensor.size(i), f"{_PREFIX}{name}_n{i}") for i in at if self.sizes[i] is None]
        self.dynamic += [(tensor.stride(i), f"{_PREFIX}{name}_s{i}") for i in at if self.strides[i] is None]

    def reads(self) -> str:
        """An expression that is true and reads the dynamic numbers."""
        parts = []
        for letter, method, numbers in (("n", "shape", self.sizes), ("s", "stride()", self.strides)):
            if None in numbers:
                whole = f"{_PREFIX}{self.name}_{letter}"
                parts.append(f"({whole} := {self.name}.{method}) is not None")
                dynamic = [i for i, n in enumerate(numbers) if n is None]
                parts += [f"({whole}{i} := {whole}[{i}]) is not None" for i in dynamic]
        return " and ".join(parts)

    def last_offset(self) -> str:
        """The offset of the last element as an expression."""
        terms = []
        for i, (size, stride) in enumerate(zip(self.sizes, self.strides, strict=True)):
            n = f"{_PREFIX}{self.name}_n{i}" if size is None else str(size)
            s = f"{_PREFIX}{self.name}_s{i}" if stride is None else str(stride)
            terms.append(f"({n} - 1) * {s}")
        return f"({' + '.join(terms)})"


# --- writing -----------------------------------------------------------------------------------------------------------


def write_line(key: Key, bound: BoundKernel, values: tuple[Any, ...], miss: Callable[..., Any]) -> Line | None:
    """The function for calls like one that ``bound`` has just served, or None if nothing can guard them."""
    kernel, config = bound.kernel, bound._config
    host = None if config is None else bound._compiled.get(config)
    if config is None or not isinstance(host, types.FunctionType):
        return None
    code = bound._analysis.code(config)
    names = list(kernel.signature.parameters)
    traced = bound._analysis.traced
    guards = _Guards()
    for name, value, constant in zip(names, values, kernel._constant_at, strict=True):
        if isinstance(value, ConstExpr) or not guards.argument(name, value, constant):
            return None
    static = kernel.settings.static_shapes
    if not guards.all_tensors(static) or not guards.numbers(traced.specialized, names, values):
        return None
    if not guards.world(traced.guards):
        return None
    _memory(guards, code)
    options = guards.cell(vars(kernel.settings))
    for field, value in (("ref_mode", RefMode.OFF), ("static_shapes", kernel.settings.static_shapes)):
        guards.conditions.append(f"{options}[{field!r}] is {guards.cell(value)}")
    body = inline_launch.body(host, code.text, kernel.name, _PREFIX)
    if body is None:
        return None
    cells = {**guards.cells, **body.cells}
    condition = " and ".join((f"not {_PREFIX}more", *guards.first, *guards.conditions))
    defaults = host.__defaults__ or ()
    given = {**dict.fromkeys(names, ABSENT), **dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))}
    for name in names:
        cells[f"{_PREFIX}default_{name}"] = given[name]
    only = [n for n, p in kernel.signature.parameters.items() if p.kind is p.POSITIONAL_ONLY]
    parameters = [f"{n}={_PREFIX}default_{n}" for n in names]
    parameters[len(only) : len(only)] = ["/"] if only else []
    text = "\n".join(
        (
            f"def {_PREFIX}make({', '.join(cells)}, {_PREFIX}slow):",
            f"    def {kernel.name}({', '.join(parameters)}, *{_PREFIX}more):",
            f"        if {condition}:",
            *(f"            {line}" for line in body.text.splitlines()),
            "            return None",
            f"        return {_PREFIX}slow({', '.join(names)}, *{_PREFIX}more)",
            f"    return {kernel.name}",
        )
    )
    found: dict[str, Any] = {}
    exec(_compiled(text, kernel.name), host.__globals__, found)
    make = functools.partial(found[f"{_PREFIX}make"], **cells)
    functions = [make(**{f"{_PREFIX}slow": slow}) for slow in (miss, _missed)]
    for function in functions:
        function._torchdynamo_disable = True  # under torch.compile it runs as it is, between graphs
    return Line(key=key, run=functions[0], probe=functions[1])


def _missed(*args: Any) -> Any:
    return MISSED


def _memory(guards: _Guards, code: Code) -> None:
    """Conditions on where tensors lie: which share memory if one of them is written, and where descriptors may begin."""
    tensors = guards.tensors
    if code.plan.needs_alignment:
        pointers = " | ".join(f"{name}.data_ptr()" for name in tensors)
        guards.conditions.append(f"not ({pointers}) & 15")
    if len(tensors) < 2 or not _may_write_arguments(code.plan.program):
        return
    storages = {name: t.untyped_storage()._cdata for name, t in tensors.items()}
    first: dict[int, str] = {}
    reads = [f"({_PREFIX}{name}_m := {name}.untyped_storage()._cdata)" for name in tensors]
    guards.conditions.append(f"len({{{', '.join(reads)}}}) == {len(set(storages.values()))}")
    for name, storage in storages.items():
        if storage in first:
            guards.conditions.append(f"{_PREFIX}{name}_m == {_PREFIX}{first[storage]}_m")
        first.setdefault(storage, name)


_ALLOCATORS = frozenset(f"{name}{like}" for name in ("empty", "zeros", "ones", "full") for like in ("", "_like"))
_NEW = frozenset(("new_empty", "new_zeros", "new_ones", "new_full"))


def _may_write_arguments(program: Program) -> bool:
    """Whether the kernel writes into anything but tensors that its host code has just allocated under that name.

    If it does not, it makes no difference which arguments share memory.
    """
    function = program.host.function
    stores = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    fresh = {
        node.targets[0].id
        for node in function.body
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
        if stores.count(node.targets[0].id) == 1 and _allocates(node.value)
    }
    for op in program.walk():
        if op.kind in ("inline", "asm"):
            return True
        at = getattr(op.attrs, "tensor", None)
        if op.kind in ("store", "atomic") and (at is None or program.tensors[at].source not in fresh):
            return True
    return False


def _allocates(node: ast.expr) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    of_torch = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
    return (of_torch and node.func.attr in _ALLOCATORS) or node.func.attr in _NEW


@functools.lru_cache(maxsize=256)
def _compiled(text: str, name: str) -> types.CodeType:
    """Code of a written function; tracebacks and debuggers find its source under a name in angle brackets."""
    file = f"<helion dispatch of {name} {abs(hash(text)):x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    return compile(ast.parse(text), file, "exec")


__all__ = ["ABSENT", "Calls", "Line", "dispatchable", "signature_key", "write_line"]
