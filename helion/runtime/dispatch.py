"""Straight-line code per call signature: guards, host code and launch, with no look-ups.

After a call has taken the slow path (key, bound kernel, generated host function, launcher), a function is written for
calls like it. Its guards check that a call would lead to the same binary. Then it runs the statements of the generated
host function, with the compiled kernel's launch function in place of ``_launcher(...)``. ``Kernel`` calls the function
last written directly. A miss looks for another function by key, and then takes the slow path again.

Arguments that guards cannot check in a few hundred nanoseconds (containers, tensor subclasses) always take the slow
path. Data pointers are checked for their alignment, never stored.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import functools
import linecache
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.autograd import forward_ad

from .. import settings
from .._exact import float_key
from .._shapes import CONCRETE_TENSORS, SYMBOLIC, WIDE, SizeClasses, shared_memory
from .._support.locks import in_forked_process, new_lock
from .._support.syntax import parse
from ..backends import stub
from ..backends.execution import Inlining
from ..config import Config
from ..language.constants import ConstExpr
from .compiled import Compiled
from .definition import Definition
from .signature import Key, TensorGuards, TensorSignature, ask, signature_of, size_table
from .size_buckets import Bucket, SizeBuckets

if TYPE_CHECKING:
    from .._compiler.frontend.guards import Guard

#: Signatures kept per kernel, and functions written for one of them before it stays on the slow path.
MAX_SIGNATURES, MAX_VERSIONS = 256, 8
#: Placeholder for an argument that a call left out.
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "<absent>"})()
MISSED: Any = type("Missed", (), {"__repr__": lambda self: "<missed>"})()
_PREFIX = "_hl_"
#: Functions whose guards a miss tries, 0.1 µs each, before it computes a key, which takes longer.
_PROBED = 6


def leave_untraced(function: Any) -> None:
    """Let ``function`` and its callees run untraced between the graphs of torch.compile, without importing it."""
    function._torchdynamo_disable = True
    frames = getattr(torch._C._dynamo, "eval_frame", None)
    set_strategy = getattr(frames, "set_code_exec_strategy", None)
    strategy, action = getattr(frames, "_FrameExecStrategy", None), getattr(frames, "_FrameAction", None)
    if set_strategy is not None and strategy is not None and action is not None:
        set_strategy(function.__code__, strategy(action.SKIP, action.SKIP))


# --- the functions of one kernel ---------------------------------------------------------------------------------------


class Bound(Protocol):
    """A variant that serves calls, with the config that it runs."""

    @property
    def compiled(self) -> Compiled: ...
    @property
    def config(self) -> Config | None: ...
    @property
    def bucket(self) -> tuple[Bucket, ...]:
        """The size hints that select the config."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class DispatchEntry:
    """The function of one signature. If its guard fails, ``run`` looks for another one, ``probe`` returns ``MISSED``."""

    key: Key
    bound: Bound
    run: Callable[..., Any]
    probe: Callable[..., Any]


class Calls:
    """The written functions of a kernel's calls. ``forget`` drops them if an assumption of theirs may have changed."""

    def __init__(self, kernel: Definition, slow_path: Callable[..., Any]) -> None:
        self._kernel = kernel
        self._slow_path = slow_path
        self._lock = new_lock()
        self._lines: dict[Key, DispatchEntry] = {}
        # the same as a set, which is tested without hashing the keys
        self._known: set[DispatchEntry] = set()
        self._recent: tuple[DispatchEntry, ...] = ()
        self._versions: dict[Key, int] = {}
        # the sizes that select functions with different configs, by the rest of the signature
        self._buckets: dict[Key, SizeBuckets] = {}
        self.generation = 0
        with _LIVE_LOCK:
            _LIVE.add(self)

    def forget(self, bound: Bound | None = None) -> None:
        """Send the next call to the slow path, or only calls that ``bound`` serves."""
        with self._lock:
            self.generation += 1
            kept = {} if bound is None else {k: line for k, line in self._lines.items() if line.bound is not bound}
            self._versions = {k: self._versions[k] for k in kept}
            self._buckets = {k[:-1]: self._buckets[k[:-1]] for k in kept}
            self._lines, self._known = kept, set(kept.values())
            self._recent = tuple(line for line in self._recent if kept.get(line.key) is line)
            self._kernel.__call__ = self._recent[0].run if self._recent else self._slow_path

    def miss(self, *args: Any) -> Any:
        """Handle a call that the function last used does not accept."""
        for value in args:
            if value is ABSENT:  # for the TypeError that names it
                names = self._kernel.signature.parameters
                return self._slow_path(**{n: v for n, v in zip(names, args, strict=False) if v is not ABSENT})
        recent = self._recent
        for line in recent:
            result = line.probe(*args)
            if result is not MISSED:
                self._use(line)
                return result
        if len(self._lines) > len(recent) and len(args) == len(self._kernel.signature.parameters):
            key = signature_key(self._kernel.arguments_key(args), args)
            buckets = self._buckets.get(key)
            found = None if buckets is None else self._lines.get((*key, buckets.of(args)))
            result = MISSED if found is None else found.probe(*args)
            if found is not None and result is not MISSED:
                self._use(found)
                return result
        return self._slow_path(*args)

    def _use(self, line: DispatchEntry) -> None:
        """Make the next call try this one first, unless everything was forgotten meanwhile."""
        with self._lock:
            if line in self._known:
                self._kernel.__call__ = line.run
                if line not in self._recent:
                    self._recent = (line, *self._recent[: _PROBED - 1])

    def served(self) -> set[Bound]:
        """Return the bound kernels of the functions that were used last."""
        return {line.bound for line in self._recent}

    def _make_room(self) -> None:
        """Drop the oldest functions and counts, except the functions used last."""
        kept = {line.key for line in self._recent}
        spare = [key for key in self._lines if key not in kept][: len(self._lines) - MAX_SIGNATURES + 1]
        for key in spare:
            self._known.discard(self._lines.pop(key))
            self._versions.pop(key, None)
        if len(self._versions) > 4 * MAX_SIGNATURES:
            self._versions = {key: self._versions.get(key, 1) for key in self._lines}
            self._buckets = {key[:-1]: self._buckets[key[:-1]] for key in self._lines}

    def learn(self, bound: Bound, values: tuple[Any, ...], arguments: Key, generation: int) -> None:
        """Write a function for calls like this one, which has just taken the slow path with ``generation`` read before."""
        signature = signature_key(arguments, values)
        key = (*signature, bound.bucket)
        version = self._versions.get(key, 0)
        if version >= MAX_VERSIONS or generation != self.generation:
            return
        if self._kernel.arguments_key(values) != arguments:  # the kernel's host code changed its arguments' shapes
            return
        line = write_entry(key, bound, values, self.miss)
        with self._lock:
            if generation != self.generation:
                return
            self._make_room()
            self._versions[key] = MAX_VERSIONS if line is None else version + 1
            if line is not None:
                self._buckets[signature] = bound.compiled.specialized.buckets
                former = self._lines.pop(key, None)
                self._lines[key] = line
                self._known = set(self._lines.values())
                self._recent = (line, *[r for r in self._recent if r is not former][: _PROBED - 1])
                self._kernel.__call__ = line.run


_LIVE: weakref.WeakSet[Calls] = weakref.WeakSet()
_LIVE_LOCK = new_lock()


def _forget_all() -> None:
    with _LIVE_LOCK:
        live = list(_LIVE)
    for calls in live:
        calls.forget()


stub.on_change(_forget_all)
in_forked_process(_forget_all)  # CUDA does not work there, which the slow path says
settings.on_change(_forget_all)  # written functions look at no settings


def signature_key(arguments: Key, values: Sequence[Any]) -> Key:
    """Return the key of a written function.

    It is finer than that of a bound kernel, since guards compare all of a tensor.
    """
    grads = tuple([(v.get_device(), v.requires_grad) for v in values if isinstance(v, torch.Tensor)])
    return (arguments, grads, torch.is_inference_mode_enabled())


def dispatchable(values: Sequence[Any]) -> bool:
    """Return whether a fast path exists for arguments on this device: a GPU, or the stub of one."""
    return stub.active() or any(map(stub.on_gpu, values))


# --- guards ------------------------------------------------------------------------------------------------------------


class _Guards:
    """The conditions of one signature as source text, and the objects they name."""

    def __init__(self, inlining: Inlining) -> None:
        self.inlining = inlining
        self.cells: dict[str, Any] = {}
        self.first: list[str] = []
        self.conditions: list[str] = []
        self.tensors: dict[str, torch.Tensor] = {}
        self.captured: set[str] = set()  # names of what functions close over
        self.native = True
        self.type = self.cell(type)  # parameters may have the names of builtins

    def cell(self, value: Any) -> str:
        """Return a name for an object."""
        name = f"{_PREFIX}g{len(self.cells)}"
        self.cells[name] = value
        return name

    def argument(self, name: str, value: Any, constant: bool) -> bool:
        """Add the conditions for an argument to lead to the same code; return False if they cannot be written."""
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
            same = f"{name} == {self.cell(value)}"
            if value != value or value == 0.0:  # NaN equals nothing, and zeros have signs
                same = f"{self.cell(float_key)}({name}) == {self.cell(float_key(value))}"
            self.conditions.append(f"{self.type}({name}) is {self.cell(float)} and {same}")
        elif kind is float:
            self.conditions.append(f"{self.type}({name}) is {self.cell(float)}")
        elif kind is bool:
            self.conditions.append(f"{name} is {value}" if constant else f"{self.type}({name}) is {self.cell(bool)}")
        elif kind is int and not constant:
            inside = f"{-WIDE} <= {name} < {WIDE}"
            fits = -WIDE <= value < WIDE
            self.conditions.append(f"{self.type}({name}) is {self.cell(int)} and {inside if fits else f'not {inside}'}")
        elif kind in (int, str, torch.device, torch.Size):
            self.conditions.append(f"{self.type}({name}) is {self.cell(kind)} and {name} == {self.cell(value)}")
        elif kind is types.FunctionType and (not constant or name in self.captured):
            return self.function(name, value)
        elif kind is tuple or hasattr(kind, "_fields"):
            return self.items(name, value)
        else:
            return False
        return True

    def items(self, name: str, value: tuple[Any, ...]) -> bool:
        """Add conditions on a tuple: its type and length, and those of its items, with numbers by value and tensors by
        shape."""
        kind, length = self.cell(type(value)), self.cell(tuple.__len__)
        self.first.append(f"{self.type}({name}) is {kind} and {length}({name}) == {len(value)}")
        get = self.cell(tuple.__getitem__)
        for i, item in enumerate(value):
            content = self.content(f"{get}({name}, {i})")
            if not self.argument(content, item, True):
                return False
        return True

    def content(self, text: str) -> str:
        """Return a name for the value of an expression, which the conditions after it may use."""
        name = f"{_PREFIX}captured{len(self.captured)}"
        self.captured.add(name)
        self.first.append(f"(({name} := {text}) is {name})")
        return name

    def function(self, name: str, fn: types.FunctionType) -> bool:
        """Add conditions on a function: its code, and its closure, with numbers by value and tensors by shape."""
        if fn.__defaults__ or fn.__kwdefaults__:
            return False
        kind, code = self.cell(types.FunctionType), self.cell(fn.__code__)
        self.first.append(f"{self.type}({name}) is {kind} and {name}.__code__ is {code}")
        self.first.append(f"{name}.__globals__ is {self.cell(fn.__globals__)}")
        self.first.append(f"not {name}.__defaults__ and not {name}.__kwdefaults__")
        for i, cell in enumerate(fn.__closure__ or ()):
            if cell == types.CellType():  # not assigned yet
                return False
            content = self.content(f"{name}.__closure__[{i}].cell_contents")
            if not self.argument(content, cell.cell_contents, True):
                return False
        return True

    def all_tensors(self, static: bool, ranges: Sequence[_Range] = ()) -> bool:
        """Add conditions on the tensors together, which are checked first.

        ``ranges`` are those on sizes that may differ.
        """
        classes = SizeClasses()
        shapes = {
            n: _Shape(n, t, signature_of(t, classes, static=static or n in self.captured))
            for n, t in self.tensors.items()
        }
        if not shapes:
            return False
        if static:
            self.first.append(self.tensor_checks(shapes, exactly=True))
            return True
        # unchanged sizes are checked in one call, others by their classes
        of_classes = self.native_checks(shapes, exactly=False)
        read = of_classes is None
        if of_classes is None:
            of_classes = " and ".join([self.tensor_checks(shapes, exactly=False), *self.extents(list(shapes.values()))])
        of_classes = " and ".join([of_classes, *(each.text(read) for each in ranges)])
        self.first.append(f"({self.tensor_checks(shapes, exactly=True)} or {of_classes})")
        for name, shape in shapes.items():
            if name in self.captured:
                continue
            indices = getattr(shape.tensor, "_dynamo_static_indices", None)
            marked = f"{self.cell(hasattr)}({name}, '_dynamo_static_indices')"
            same = f"{name}._dynamo_static_indices == {self.cell(indices and set(indices))}"
            self.conditions.append(f"not {marked}" if indices is None else f"{marked} and {same}")
        return True

    def tensor_checks(self, shapes: Mapping[str, _Shape], exactly: bool) -> str:
        """Return a condition on kind, dtype, device and sizes of the tensors: all sizes, or only those that are fixed."""
        if exactly and (compiled := self.native_checks(shapes, exactly)) is not None:
            return compiled
        sizes, strides = _numbers(shapes, exactly)
        if TensorGuards is None:
            each = zip(shapes, sizes, strides, strict=True)
            return " and ".join([self.by_attributes(name, size, stride) for name, size, stride in each])
        check = TensorGuards(*self.tensors.values(), dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
        return f"{self.cell(check)}({', '.join(shapes)})"

    def native_checks(self, shapes: Mapping[str, _Shape], exactly: bool) -> str | None:
        """Return ``tensor_checks``, and unless ``exactly`` also ``extents``, as one native call; None if there is none."""
        table = None if exactly else size_table(shape.signature for shape in shapes.values())
        found = self.inlining.guard([*self.tensors.values()], *_numbers(shapes, exactly), table)
        self.native = self.native and found is not None
        return None if found is None else f"{self.cell(found)}({', '.join(shapes)})"

    def by_attributes(self, name: str, sizes: Sequence[int | None], strides: Sequence[int | None]) -> str:
        """Return the checks of ``TensorGuards`` for one tensor, without the thread's changes of its dispatch keys."""
        tensor = self.tensors[name]
        conditions = [
            f"{self.type}({name}) is {self.cell(type(tensor))}",
            f"{name}.dtype is {self.cell(tensor.dtype)}",
            f"{name}.device == {self.cell(tensor.device)}",
            f"{name}.requires_grad is {tensor.requires_grad}",
            f"{self.cell(torch._C._dispatch_keys)}({name}).raw_repr() == {torch._C._dispatch_keys(tensor).raw_repr()}",
            f"{name}.dim() == {tensor.dim()}",
        ]
        if None not in (*sizes, *strides):
            conditions.append(f"{name}.shape == {self.cell(tensor.shape)}")
            conditions.append(f"{name}.stride() == {self.cell(tensor.stride())}")
        else:
            conditions += [f"{name}.size({i}) == {n}" for i, n in enumerate(sizes) if n is not None]
            conditions += [f"{name}.stride({i}) == {n}" for i, n in enumerate(strides) if n is not None]
        return " and ".join(conditions)

    def autograd(self, told: bool) -> None:
        """Add conditions that no autograd machinery is active: no tracer and no dual tensors.

        Unless the kernel has ``told`` about gradients, no tensor may require one.
        """
        if not self.native:  # the modes that trace are the very ones that TensorGuards does not mind
            self.conditions.append(f"not {self.cell(torch._C._len_torch_dispatch_stack)}()")
        self.conditions.append(f"{self.cell(forward_ad)}._current_level < 0")
        if not told and any(tensor.requires_grad for tensor in self.tensors.values()):
            self.conditions.append(f"not {self.cell(torch.is_grad_enabled)}()")

    def extents(self, shapes: list[_Shape]) -> list[str]:
        """Return conditions on dynamic sizes and strides: at least 2, the same equal ones, offsets of the same width."""
        conditions: list[str] = []
        groups: dict[int, list[str]] = {}
        for shape in shapes:
            if shape.dynamic:
                conditions.append(shape.reads())
            for number, text in shape.dynamic:
                groups.setdefault(number, []).append(text)
        conditions += [f"{SYMBOLIC - 1} < {' == '.join(texts)}" for texts in groups.values()]
        if len(groups) > 1:
            distinct = ", ".join(texts[0] for texts in groups.values())
            conditions.append(f"{self.cell(len)}({{{distinct}}}) == {len(groups)}")
        wide = [f"{'' if s.signature.wide else 'not '}{s.last_offset()} >= {WIDE}" for s in shapes if s.dynamic]
        return [*conditions, *wide]

    def numbers(self, origins: Mapping[str, tuple[Any, ...]], names: Sequence[str], values: tuple[Any, ...]) -> bool:
        """Add conditions on numbers inside of arguments that the code was specialized on."""
        for _, at, *steps in origins.values():
            text, value = names[at], values[at]
            if any(not isinstance(step, tuple) for step in steps):
                return False
            for step in steps:
                method, *given = step
                name = "memory_format=" if method == "is_contiguous" else ""
                text = f"{text}.{method}({', '.join(name + self.cell(each) for each in given)})"
                value = ask(value, step)
            if type(value) not in (int, bool, str) and not isinstance(value, (int, torch.dtype)):
                return False
            self.conditions.append(f"{text} == {self.cell(value)}")
        return True

    def ranges(self, buckets: Mapping[str, tuple[Any, Bucket]], names: Sequence[str]) -> list[_Range] | None:
        """Return conditions that sizes of tensors are in their buckets, None if they cannot be written.

        Those on numbers among the arguments are added here.
        """
        found = []
        for (_, at, *steps), bucket in buckets.values():
            match steps:
                case []:
                    self.conditions += [bucket.condition(names[at])] if bucket.is_limited else []
                case [("size", dim)]:
                    found += [_Range(names[at], dim, bucket)] if bucket.is_limited else []
                case _:
                    return None
        return found

    def world(self, guards: Sequence[Guard]) -> bool:
        """Add conditions on globals: the same objects, or else the slow path decides."""
        for guard in guards:
            owner = vars(guard.owner) if isinstance(guard.owner, types.ModuleType) else guard.owner
            now = owner.get(guard.key) if isinstance(owner, dict) else None
            if guard.kind == "state":
                self.conditions.append(f"{self.cell(guard.owner)}() == {self.cell(guard.value)}")
            elif now is None or isinstance(now, torch.Tensor) or guard.kind not in ("item", "attribute"):
                self.conditions.append(f"{self.cell(guard.holds)}()")
            elif dataclasses.replace(guard, kind="item", owner={guard.key: now}).holds():
                self.conditions.append(f"{self.cell(owner.get)}({self.cell(guard.key)}) is {self.cell(now)}")
            else:
                return False
        return True


def _numbers(shapes: Mapping[str, _Shape], exactly: bool) -> tuple[list[list[int | None]], list[list[int | None]]]:
    """Return sizes and strides of all tensors, None for dynamic ones unless ``exactly``."""
    if not exactly:
        return [s.sizes for s in shapes.values()], [s.strides for s in shapes.values()]
    return [[*s.tensor.shape] for s in shapes.values()], [[*s.tensor.stride()] for s in shapes.values()]


@dataclasses.dataclass(frozen=True)
class _Range:
    """The range of one dimension's size."""

    name: str
    dim: int
    bucket: Bucket

    def text(self, read: bool) -> str:
        """Return a condition; ``read`` if ``_Shape.reads`` precedes it."""
        return self.bucket.condition(f"{_PREFIX}{self.name}_n{self.dim}" if read else f"{self.name}.size({self.dim})")


class _Shape:
    """Sizes and strides of one tensor: fixed numbers, None for dynamic ones, which are read into names."""

    def __init__(self, name: str, tensor: torch.Tensor, signature: TensorSignature) -> None:
        self.name = name
        self.tensor = tensor
        self.signature = signature
        self.sizes, self.strides = signature.known()
        texts = [f"{_PREFIX}{name}_n{i}" for i, n in enumerate(self.sizes) if n is None]
        texts += [f"{_PREFIX}{name}_s{i}" for i, n in enumerate(self.strides) if n is None]
        self.dynamic = list(zip(signature.classes(), texts, strict=True))

    def reads(self) -> str:
        """Return an expression that is true and assigns the dynamic numbers to names."""
        parts = []
        for letter, method, numbers in (("n", "shape", self.sizes), ("s", "stride()", self.strides)):
            if None in numbers:
                whole = f"{_PREFIX}{self.name}_{letter}"
                parts.append(f"({whole} := {self.name}.{method}) is not None")
                dynamic = [i for i, n in enumerate(numbers) if n is None]
                parts += [f"({whole}{i} := {whole}[{i}]) is not None" for i in dynamic]
        return " and ".join(parts)

    def last_offset(self) -> str:
        """Return the offset of the last element as an expression."""
        terms = []
        for i, (size, stride) in enumerate(zip(self.sizes, self.strides, strict=True)):
            n = f"{_PREFIX}{self.name}_n{i}" if size is None else str(size)
            s = f"{_PREFIX}{self.name}_s{i}" if stride is None else str(stride)
            terms.append(f"({n} - 1) * {s}")
        return f"({' + '.join(terms)})"


# --- writing -----------------------------------------------------------------------------------------------------------


def write_entry(key: Key, bound: Bound, values: tuple[Any, ...], miss: Callable[..., Any]) -> DispatchEntry | None:
    """Write the function for calls like one that ``bound`` has just served; None if they cannot be guarded."""
    of, config = bound.compiled.specialized, bound.config
    kernel, analysis = of.kernel, of.analysis
    host = None if config is None else bound.compiled.loaded(config)
    inlining = of.executor.inlining
    if config is None or not isinstance(host, types.FunctionType) or inlining is None:
        return None
    code = analysis.code(config)
    names = list(kernel.signature.parameters)
    traced = analysis.traced
    guards = _Guards(inlining)
    for name, value, constant in zip(names, values, kernel.constant_at, strict=True):
        if isinstance(value, ConstExpr) or not guards.argument(name, value, constant):
            return None
    static = kernel.settings.static_shapes
    ranges = guards.ranges(of.buckets.by_name(of.bucket), names)
    if (
        ranges is None
        or not guards.all_tensors(static, ranges)
        or not guards.numbers(traced.specialized, names, values)
    ):
        return None
    if not guards.world(traced.guards):
        return None
    aligned = of.tells_alignment(code.plan)
    _memory(guards, code.host.may_write_arguments, aligned, static)
    guards.autograd(kernel.told_about_gradients)
    launcher = (host.__kwdefaults__ or {})["_launcher"]
    body = inlining.body(code.host, host, _PREFIX, launcher.inner)
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
    around = "\n".join(
        (
            f"def {_PREFIX}make({', '.join(cells)}, {_PREFIX}slow):",
            f"    def {kernel.name}({', '.join(parameters)}, *{_PREFIX}more):",
            f"        if {condition}:",
            "            pass",
            f"        return {_PREFIX}slow({', '.join(names)}, *{_PREFIX}more)",
            f"    return {kernel.name}",
        )
    )
    tree = parse(around)
    branch = next(node for node in ast.walk(tree) if isinstance(node, ast.If))
    branch.body = [*body.statements, *([] if isinstance(body.statements[-1], ast.Return) else [ast.Return()])]
    text = ast.unparse(tree)
    found: dict[str, Any] = {}
    exec(_compiled(text, kernel.name), host.__globals__, found)
    make = functools.partial(found[f"{_PREFIX}make"], **cells)
    functions = [make(**{f"{_PREFIX}slow": slow}) for slow in (miss, _missed)]
    for function in functions:
        function.__qualname__ = kernel.fn.__qualname__  # named by the TypeError of an unknown keyword
        leave_untraced(function)
    return DispatchEntry(key=key, bound=bound, run=functions[0], probe=functions[1])


def _missed(*args: Any) -> Any:
    return MISSED


def _memory(guards: _Guards, writes: bool, aligned: bool, static: bool) -> None:
    """Add conditions on memory: which tensors share it if one of them may be written, and alignment for descriptors."""
    tensors = guards.tensors
    if aligned:
        pointers = " | ".join(f"{name}.data_ptr()" for name in tensors)
        guards.conditions.append(f"not ({pointers}) & 15")
    if len(tensors) < 2 or not writes:
        return
    ours = all(t.untyped_storage().resizable() for t in tensors.values())  # memory of torch's own does not overlap
    if not ours:
        _apart(guards, static)
    storages = {name: t.untyped_storage()._cdata for name, t in tensors.items()}
    where = [*storages.values()]
    compiled = guards.inlining.sharing([where.index(storage) for storage in where]) if ours else None
    if compiled is not None:
        guards.conditions.append(f"{guards.cell(compiled)}({', '.join(tensors)})")
        return
    first: dict[int, str] = {}
    reads = [f"({_PREFIX}{name}_m := ({_PREFIX}{name}_o := {name}.untyped_storage())._cdata)" for name in tensors]
    guards.conditions.append(f"{guards.cell(len)}({{{', '.join(reads)}}}) == {len(set(storages.values()))}")
    guards.conditions += [f"{_PREFIX}{name}_o.resizable()" for name in tensors if ours]
    for name, storage in storages.items():
        if storage in first:
            guards.conditions.append(f"{_PREFIX}{name}_m == {_PREFIX}{first[storage]}_m")
        first.setdefault(storage, name)


def _apart(guards: _Guards, static: bool) -> None:
    """Add conditions that tensors which shared no memory share none, even if their storages overlap."""
    names = [*guards.tensors]
    first = shared_memory([*guards.tensors.values()])
    storages = "" if static else ".untyped_storage()"
    texts: dict[str, tuple[str, str]] = {}
    for name, tensor in guards.tensors.items():
        begin = f"{_PREFIX}{name}_b"
        guards.conditions.append(f"({begin} := {name}{storages}.data_ptr()) is not None")
        texts[name] = (begin, str(_extent(tensor)) if static else f"{name}{storages}.nbytes()")
    for at, (name, group) in enumerate(zip(names, first, strict=True)):
        for other, group_of_other in zip(names[:at], first[:at], strict=True):
            if group != group_of_other:
                (begin, size), (begin_of_other, size_of_other) = texts[name], texts[other]
                guards.conditions.append(f"not -{size} < {begin} - {begin_of_other} < {size_of_other}")


def _extent(tensor: torch.Tensor) -> int:
    """Return the number of bytes from the first element to the end of the last."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.itemsize if tensor.numel() else 0


_FILES: collections.deque[str] = collections.deque()


@functools.lru_cache(maxsize=256)
def _compiled(text: str, name: str) -> types.CodeType:
    """Compile a written function. Tracebacks and debuggers find its source under a name in angle brackets."""
    file = f"<helion dispatch of {name} {abs(hash(text)):x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    _FILES.append(file)
    if len(_FILES) > 2 * MAX_SIGNATURES:
        linecache.cache.pop(_FILES.popleft(), None)
    return compile(text, file, "exec")


__all__ = ["ABSENT", "Calls", "DispatchEntry", "dispatchable", "signature_key", "write_entry"]
