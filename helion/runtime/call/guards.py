"""Guards of written functions: conditions as source text for a call to lead to the same binary."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from ..._exact import float_key
from ..._shapes import CONCRETE_TENSORS, ROW_MAJOR, SYMBOLIC, WIDE, SizeClasses, is_row_major, shared_memory
from ...backends.execution import Inlining
from .signature import TensorGuards, TensorSignature, ask, signature_of, size_table
from .size_buckets import Bucket

if TYPE_CHECKING:
    from ..._compiler.frontend.guards import Guard


#: Prefix of the names in a written function that are not the user's.
PREFIX = "_hl_"


class Guards:
    """The conditions of one signature as source text, and the objects they name."""

    def __init__(self, inlining: Inlining) -> None:
        self.inlining = inlining
        self.cells: dict[str, Any] = {}
        self.first: list[str] = []
        self.conditions: list[str] = []
        self.tensors: dict[str, torch.Tensor] = {}
        #: Conditions on sizes and strides of tensors, which unchanged ones meet.
        self.sized: list[str] = []
        self.captured: set[str] = set()  # names of what functions close over
        self.native = True
        self.type = self.cell(type)  # parameters may have the names of builtins

    def cell(self, value: Any) -> str:
        """Return a name for an object."""
        name = f"{PREFIX}g{len(self.cells)}"
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
            if not -WIDE <= value < WIDE:
                inside = f"not {inside} and {-(2**63)} <= {name} < {2**63}"
            self.conditions.append(f"{self.type}({name}) is {self.cell(int)} and {inside}")
        elif kind in (int, str, torch.device, torch.Size):
            self.conditions.append(f"{self.type}({name}) is {self.cell(kind)} and {name} == {self.cell(value)}")
        elif kind is types.FunctionType:
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
        name = f"{PREFIX}captured{len(self.captured)}"
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
        """Add conditions on the tensors together, which are checked first, with those of ``numbers`` on their sizes.

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
        named = {
            (name, dim) for name, shape in shapes.items() if read for dim, n in enumerate(shape.sizes) if n is None
        }
        in_ranges = (each.text((each.name, each.dim) in named) for each in ranges)
        of_classes = " and ".join([of_classes, *in_ranges, *self.sized])
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

    def autograd(self, warned: bool) -> None:
        """Add conditions that no autograd machinery is active: no tracer and no dual tensors.

        Unless the kernel has ``warned`` about gradients, no tensor may require one.
        """
        if not self.native:  # the modes that trace are the very ones that TensorGuards does not mind
            self.conditions.append(f"not {self.cell(torch._C._len_torch_dispatch_stack)}()")
        self.conditions.append(f"{self.cell(forward_ad)}._current_level < 0")
        if not warned and any(tensor.requires_grad for tensor in self.tensors.values()):
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
                if method == ROW_MAJOR:
                    text, value = f"{self.cell(is_row_major)}({text})", is_row_major(value)
                    continue
                name = "memory_format=" if method == "is_contiguous" else ""
                text = f"{text}.{method}({', '.join(name + self.cell(each) for each in given)})"
                value = ask(value, step)
            if type(value) not in (int, bool, str) and not isinstance(value, (int, torch.dtype)):
                return False
            of_shape = names[at] in self.tensors and steps and steps[0][0] in ("size", "stride", ROW_MAJOR)
            (self.sized if of_shape else self.conditions).append(f"{text} == {self.cell(value)}")
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
        """Return a condition; ``read`` if ``_Shape.reads`` has given the size a name."""
        return self.bucket.condition(f"{PREFIX}{self.name}_n{self.dim}" if read else f"{self.name}.size({self.dim})")


class _Shape:
    """Sizes and strides of one tensor: fixed numbers, None for dynamic ones, which are read into names."""

    def __init__(self, name: str, tensor: torch.Tensor, signature: TensorSignature) -> None:
        self.name = name
        self.tensor = tensor
        self.signature = signature
        self.sizes, self.strides = signature.known()
        texts = [f"{PREFIX}{name}_n{i}" for i, n in enumerate(self.sizes) if n is None]
        texts += [f"{PREFIX}{name}_s{i}" for i, n in enumerate(self.strides) if n is None]
        self.dynamic = list(zip(signature.classes(), texts, strict=True))

    def reads(self) -> str:
        """Return an expression that is true and assigns the dynamic numbers to names."""
        parts = []
        for letter, method, numbers in (("n", "shape", self.sizes), ("s", "stride()", self.strides)):
            if None in numbers:
                whole = f"{PREFIX}{self.name}_{letter}"
                parts.append(f"({whole} := {self.name}.{method}) is not None")
                dynamic = [i for i, n in enumerate(numbers) if n is None]
                parts += [f"({whole}{i} := {whole}[{i}]) is not None" for i in dynamic]
        return " and ".join(parts)

    def last_offset(self) -> str:
        """Return the offset of the last element as an expression."""
        terms = []
        for i, (size, stride) in enumerate(zip(self.sizes, self.strides, strict=True)):
            n = f"{PREFIX}{self.name}_n{i}" if size is None else str(size)
            s = f"{PREFIX}{self.name}_s{i}" if stride is None else str(stride)
            terms.append(f"({n} - 1) * {s}")
        return f"({' + '.join(terms)})"


# --- memory -----------------------------------------------------------------------------------------------------------


def add_memory(guards: Guards, writes: bool, aligned: bool, static: bool) -> None:
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
    reads = [f"({PREFIX}{name}_m := ({PREFIX}{name}_o := {name}.untyped_storage())._cdata)" for name in tensors]
    guards.conditions.append(f"{guards.cell(len)}({{{', '.join(reads)}}}) == {len(set(storages.values()))}")
    guards.conditions += [f"{PREFIX}{name}_o.resizable()" for name in tensors if ours]
    for name, storage in storages.items():
        if storage in first:
            guards.conditions.append(f"{PREFIX}{name}_m == {PREFIX}{first[storage]}_m")
        first.setdefault(storage, name)


def _apart(guards: Guards, static: bool) -> None:
    """Add conditions that tensors which shared no memory share none, even if their storages overlap."""
    names = [*guards.tensors]
    first = shared_memory([*guards.tensors.values()])
    storages = "" if static else ".untyped_storage()"
    texts: dict[str, tuple[str, str]] = {}
    for name, tensor in guards.tensors.items():
        begin = f"{PREFIX}{name}_b"
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


__all__ = ["PREFIX", "Guards", "add_memory"]
