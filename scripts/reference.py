"""The reference pages of the documentation, made of docstrings and tables: Markdown by the path of the page.

``pages()`` is what the site's build adds to ``docs/``; nothing of it is kept in files.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import torch

import helion
import helion.language as hl
from helion import _compatibility, autotuner, exc, knobs, ops, testing
from helion.__main__ import parser
from helion._compiler.frontend.torch import functions as torch_functions
from helion.autotuner.space.fields import Field, PerSlot, Scalar
from helion.backends.cute.attention_space import ATTENTION_DOCS
from helion.backends.cute.row_space import DOCS as ROW_DOCS
from helion.backends.cute.space import DOCS as MATMUL_DOCS
from helion.cli.listing import is_refusal, torch_names
from helion.config import KEYS, SINGULAR
from helion.fields import BooleanFragment, EnumFragment, IntegerFragment, PermutationFragment, PowerOfTwoFragment
from helion.runtime.bound import BoundKernel
from helion.settings import DOCS


@dataclasses.dataclass(frozen=True)
class Entry:
    """One documented name: its heading, its signature if it can be called, and its docstring."""

    name: str
    signature: str
    doc: str
    parameters: tuple[str, ...] = ()


#: The longest signature on one line.
LINE = 100

# --- docstrings ----------------------------------------------------------------------------------------------------

_SECTIONS = {
    "Args:": "Arguments",
    "Attributes:": "Attributes",
    "Returns:": "Returns",
    "Raises:": "Raises",
    "Example::": "Example",
}
_ITEM = re.compile(r"^    (\w[\w.]*): (.*)$")


def sections(doc: str) -> dict[str, list[str]]:
    """Return the lines of a docstring by section; ``""`` is the text before the first."""
    found: dict[str, list[str]] = {"": []}
    current = found[""]
    for line in inspect.cleandoc(doc).splitlines():
        if line in _SECTIONS:
            current = found.setdefault(line, [])
        else:
            current.append(line)
    return found


def items(lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return ``name: text`` of a section's lines, with continuations joined."""
    found: list[tuple[str, str]] = []
    for line in lines:
        if match := _ITEM.match(line):
            found.append((match[1], match[2]))
        elif found and line.strip():
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


def markdown(doc: str) -> str:
    """Return a docstring as Markdown: sections become lists."""
    parts = []
    for section, lines in sections(doc).items():
        text = "\n".join(lines).strip()
        if not section:
            parts.append(text)
        elif section == "Returns:":
            parts.append(f"**Returns** {inspect.cleandoc(text)}")
        elif section == "Example::":
            parts.append(f"**Example**\n\n```python\n{example(doc)}\n```")
        else:
            rows = "\n".join(f"- `{name}`: {what}" for name, what in items(lines))
            parts.append(f"**{_SECTIONS[section]}**\n\n{rows}")
    return "\n\n".join(part for part in parts if part)


def example(doc: str) -> str:
    """Return the code of a docstring's example, or an empty text."""
    return inspect.cleandoc("\n".join(["", *sections(doc).get("Example::", ())]))


# --- public names --------------------------------------------------------------------------------------------------


def public(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names without an underscore that a module or class defines or exports."""
    for name, value in vars(owner).items():
        if not name.startswith("_") and not (isinstance(owner, type) and isinstance(value, types.MemberDescriptorType)):
            yield name, value


def signature(function: Any) -> inspect.Signature | None:
    """Return the signature for readers, without ``self``; None if the object cannot be called."""
    if isinstance(function, (staticmethod, classmethod)):
        function = function.__func__
    if not callable(function) or isinstance(function, enum.EnumMeta):
        return None
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    kept = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
    return found.replace(parameters=kept)


def entry(name: str, value: Any) -> Entry:
    call = None if isinstance(value, property) else signature(value)
    doc = inspect.getdoc(value.fget if isinstance(value, property) else value) or ""
    if call is None:
        return Entry(name, name, doc)
    forms = [inspect.signature(form) for form in _overloads(value)] or [call]
    return Entry(name, "\n".join(shown(name, form) for form in forms), doc, tuple(call.parameters))


def _overloads(function: Any) -> list[Callable[..., Any]]:
    """Return the forms of a function that are declared for type checkers; Python 3.10 keeps none."""
    find: Callable[..., Any] | None = getattr(typing, "get_overloads", None)
    return list(find(function)) if find is not None and isinstance(function, types.FunctionType) else []


def shown(name: str, call: inspect.Signature) -> str:
    """Return a signature on one line, or with a parameter per line if it is long."""
    call = _unquoted(call)
    line = f"{name}{_tidy(str(call))}"
    if len(line) <= LINE:
        return line
    result = _tidy(str(call.replace(parameters=()))).removeprefix("()")
    return "\n".join((f"{name}(", *(f"    {each}," for each in _parameters(call)), f"){result}"))


@dataclasses.dataclass(frozen=True)
class _Annotation:
    """An annotation that was a string, printed as in the source."""

    text: str

    def __repr__(self) -> str:
        return self.text


def _unquoted(call: inspect.Signature) -> inspect.Signature:
    def bare(annotation: Any) -> Any:
        return _Annotation(annotation) if isinstance(annotation, str) else annotation

    parameters = [each.replace(annotation=bare(each.annotation)) for each in call.parameters.values()]
    return call.replace(parameters=parameters, return_annotation=bare(call.return_annotation))


def _parameters(call: inspect.Signature) -> Iterator[str]:
    """Yield parameters as text, with the marks between their kinds."""
    before = None
    for each in call.parameters.values():
        if before is each.POSITIONAL_ONLY is not each.kind:
            yield "/"
        if each.kind is each.KEYWORD_ONLY and before not in (each.KEYWORD_ONLY, each.VAR_POSITIONAL):
            yield "*"
        yield _tidy(str(each))
        before = each.kind
    if before is inspect.Parameter.POSITIONAL_ONLY:
        yield "/"


def _tidy(text: str) -> str:
    for long, short in (
        ("collections.abc.", ""),
        ("typing.", ""),
        ("~", ""),
        ("ForwardRef('Any')", "Any"),
        ("_Parameters", "P"),
        ("_Result", "R"),
        ("_T", "T"),
    ):
        text = text.replace(long, short)
    return text


def language() -> list[Entry]:
    """Return all of ``hl``, in the order of its exports."""
    return [entry(f"hl.{name}", value) for name, value in public(hl) if not isinstance(value, types.ModuleType)]


def members(name: str, cls: type) -> list[Entry]:
    """Return a class and its public methods and properties."""
    own = entry(name, cls)
    found = [own]
    for member, value in public(cls):
        if cls is helion.Config and member in KEYS:  # a page of its own has them
            continue
        if isinstance(value, (types.FunctionType, property, classmethod, staticmethod)):
            found.append(entry(f"{name}.{member}", value))
    return found


def exported(module: types.ModuleType) -> list[str]:
    """Return the names that a package's ``__init__`` imports ``as`` themselves, which makes them public."""
    tree = ast.parse(inspect.getsource(module))
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return [alias.name for node in imports for alias in node.names if alias.asname == alias.name]


def package() -> list[Entry]:
    """Return all of ``helion`` except its modules, with the methods of its classes, and those of bound kernels."""
    found: list[Entry] = []
    for name in exported(helion):
        value = getattr(helion, name)
        if not isinstance(value, types.ModuleType):
            found += members(f"helion.{name}", value) if isinstance(value, type) else [entry(f"helion.{name}", value)]
    return [*found, *members("BoundKernel", BoundKernel)]


def modules() -> list[tuple[types.ModuleType, list[Entry]]]:
    """Return the public modules of the package without a page of their own, with their exports or definitions."""
    values = [*(getattr(helion, name) for name in exported(helion)), testing]
    return [
        (module, [entry(f"{module.__name__}.{name}", value) for name, value in _defined(module)])
        for module in values
        if isinstance(module, types.ModuleType) and module not in (hl, exc)
    ]


def operators() -> list[Entry]:
    """Return all of ``helion.ops``."""
    return [entry(f"helion.ops.{name}", getattr(ops, name)) for name in dir(ops)]


def _defined(module: types.ModuleType) -> list[tuple[str, Any]]:
    names = (
        exported(module)
        if module is autotuner
        else [
            name
            for name, value in public(module)
            if isinstance(value, (types.FunctionType, type)) and value.__module__ == module.__name__
        ]
    )
    return [(name, getattr(module, name)) for name in names]


# --- tables --------------------------------------------------------------------------------------------------------


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table; bars in cells are escaped."""
    cells = [[str(cell).replace("|", "\\|") for cell in row] for row in rows]
    names = list(head)
    lines = [names, [":--"] * len(names), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def code(value: object) -> str:
    return f"`{value}`"


def config_fields() -> dict[str, Field]:
    """Return a field for every config key, from the spaces of kernels that have all kinds of loops and accesses."""
    x = torch.empty([256, 256], device="meta")
    odd = torch.empty([255, 255], device="meta")
    few, half = torch.empty([256, 256], dtype=torch.int8, device="meta"), x.bfloat16()
    subjects = (
        *((_product, (x, x)), (_rows, (x,)), (_sums, (x, x)), (_sums, (odd, odd))),
        *(
            (_computed, (half, few)),
            (_taps, (half, half)),
            (_weighted, (half, half)),
            (_reduced, (half, half)),
            (_stepped, (x,)),
            (_phased, (x,)),
        ),
    )
    return _fields((kernel, args, target) for target in ("sm_100", "gfx942", "sm_90") for kernel, args in subjects)


ROW_KEYS = {key.removeprefix("cute_"): meaning for key, meaning in ROW_DOCS.items()}
PRODUCT_KEYS = {**MATMUL_DOCS, **ATTENTION_DOCS, **ROW_KEYS}
"""Meanings of the config keys of the cute backend, without the unit's name in front."""


@helion.kernel
def _phased(x: torch.Tensor) -> torch.Tensor:
    sums = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        sums[tile] = x[tile, :].sum(-1)
    hl.barrier()
    for tile in hl.tile(x.size(1)):
        out[:, tile] = x[:, tile] - sums[:][:, None]
    return out


@helion.kernel(backend="cute")
def _row_softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :].to(torch.float32), dim=-1).to(x.dtype)
    return out


def product_fields() -> dict[str, Field]:
    """Return the fields of the cute backend, on the GPUs it supports."""
    x = torch.empty([256, 256], dtype=torch.bfloat16, device="meta")
    odd = torch.empty([256, 257], dtype=torch.bfloat16, device="meta")[:, :256]
    subjects = ((_residual, (x, x, x)), (_residual, (odd, x, x)), (_softmax, (x, x)), (_row_softmax, (x,)))
    of_matmuls = ((kernel, args, target) for target in ("sm_90", "sm_100") for kernel, args in subjects)
    of_attention = ((_attention, (x, x, x, x), target) for target in ("sm_90", "sm_100"))
    return _fields((*of_matmuls, *of_attention))


def _fields(subjects: Iterable[tuple[helion.Kernel, tuple[torch.Tensor, ...], str]]) -> dict[str, Field]:
    found: dict[str, Field] = {}
    for kernel, args, target in subjects:
        for field in kernel.bind(args, target=target).config_spec.fields:
            if field.key not in found or (isinstance(field, PerSlot) and field.slots):
                found[field.key] = field
    return found


@helion.kernel
def _product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        for _ in hl.grid(2):
            acc = acc + 1
        out[tile_m, tile_n] = acc
    return out


@helion.kernel
def _sums(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


@helion.kernel
def _computed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n].to(x.dtype) * 0.5)
        out[tile_m, tile_n] = acc
    return out


@helion.kernel
def _weighted(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        acc = hl.zeros([tile, x.size(1)], dtype=torch.float32)
        for other in hl.tile(y.size(0)):
            weights = hl.dot(x[tile, :], y[other, :].T)
            acc = hl.dot(weights.to(y.dtype), y[other, :], acc=acc)
        out[tile, :] = acc.to(out.dtype)
    return out


@helion.kernel
def _taps(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        acc = hl.zeros([tile_m, tile_n])
        for tap in hl.static_range(2):
            for tile_k in hl.tile(128):
                acc = torch.addmm(acc, x[tile_m, tile_k.index + 1 - tap], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


@helion.kernel
def _reduced(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m in hl.tile(x.size(0)):
        acc = hl.zeros([tile_m, y.size(1)], dtype=torch.float32)
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        out[tile_m, :] = torch.softmax(acc, -1).to(out.dtype)
    return out


@helion.kernel
def _stepped(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(1)):
        acc = hl.zeros([tile])
        for step in hl.grid(x.size(0)):
            acc = acc * 0.5 + x[step, tile]
            out[step, tile] = acc
    return out


@helion.kernel(backend="cute")
def _residual(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(z)
    for tile_m, tile_n in hl.tile(out.size()):
        acc = hl.zeros([tile_m, tile_n])
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc + z[tile_m, tile_n]
    return out


@helion.kernel(backend="cute")
def _softmax(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m in hl.tile(x.size(0)):
        acc = hl.zeros([tile_m, y.size(1)])
        for tile_k in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, :])
        out[tile_m, :] = torch.softmax(acc, dim=-1)
    return out


@helion.kernel(backend="cute")
def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(q)
    for tile_m in hl.tile(q.size(0)):
        highest = hl.full([tile_m], float("-inf"), dtype=torch.float32)
        total = hl.zeros([tile_m])
        acc = hl.zeros([tile_m, v.size(1)])
        for tile_n in hl.tile(k.size(0)):
            scores = hl.dot(q[tile_m, :], k[tile_n, :].T) + bias[tile_m, tile_n]
            raised = torch.maximum(highest, scores.amax(-1))
            weights, shrink = torch.exp2(scores - raised[:, None]), torch.exp2(highest - raised)
            total = total * shrink + weights.sum(-1)
            acc = hl.dot(weights.to(v.dtype), v[tile_n, :], acc=acc * shrink[:, None])
            highest = raised
        out[tile_m, :] = acc / total[:, None]
    return out


@helion.kernel
def _rows(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], -1)
    return out


#: Keys whose values follow the sizes of the kernel.
_SIZED = {
    "block_sizes": "powers of two",
    "reduction_loops": "None, powers of two",
    "loop_orders": "permutations, such as `[1, 0]`",
    "unfuse_matmul": "None, three powers of two, such as `[128, 128, 32]`",
    "advanced_controls_file": "None, a path",
}


def allowed(field: Field) -> str:
    """Return the values of a key, in words."""
    if field.key in _SIZED:
        return _SIZED[field.key]
    if isinstance(field, Scalar):
        return in_words(field.fragment)
    assert isinstance(field, PerSlot)
    widest = max((slot.fragment for slot in field.slots), key=lambda f: len(in_words(f)), default=None)
    return in_words(widest) if widest is not None else code("pointer")


def default_of(field: Field) -> str:
    """Return the default of a key that says nothing: a value, or the entry of a list that all places have."""
    if not isinstance(field, PerSlot):
        return code(repr(field.default()))
    entries = {repr(slot.initial) for slot in field.slots} or {repr("pointer")}
    return code(entries.pop()) if len(entries) == 1 and field.key not in _SIZED else "from the kernel's loops"


def in_words(fragment: Any) -> str:
    match fragment:
        case PowerOfTwoFragment(low, high):
            return f"powers of two, {low} to {high}"
        case IntegerFragment(low, high):
            return f"{low} to {high}"
        case EnumFragment(choices):
            return ", ".join(code(repr(choice)) for choice in choices)
        case BooleanFragment():
            return "`False`, `True`"
        case PermutationFragment():
            return "permutations"
    raise TypeError(f"no values known of {fragment!r}")


def config_rows() -> list[tuple[str, str, str, str, str]]:
    """Return key, entries, values, default and meaning of every config key."""
    short = {plural: singular for singular, plural in SINGULAR.items()}
    rows = []
    for key, field in config_fields().items():
        names = code(key) + (f"<br>{code(short[key])}" if key in short else "")
        entries = f"one per {field.per}" if isinstance(field, PerSlot) else "one value"
        rows.append((names, entries, allowed(field), default_of(field), KEYS[key]))
    return rows


def product_rows() -> list[tuple[str, str, str, str]]:
    """Return key, values, default and meaning of every config key that only the cute backend has."""
    return [
        (code(key), allowed(field), default_of(field), PRODUCT_KEYS[key.split("_", 1)[1]])
        for key, field in product_fields().items()
        if key not in KEYS
    ]


def setting_rows() -> list[tuple[str, str, str, str, str]]:
    """Name, environment variable, values, default and meaning of every setting that has an effect."""
    return [row for row in _settings() if row[0].strip("`") not in _compatibility.SETTINGS]


def _settings() -> Iterator[tuple[str, str, str, str, str]]:
    for name, knob in knobs.SETTINGS.items():
        yield code(name), code(knob.env), knob.expected, code(repr(knob.default)), knob.doc
    for name, doc in DOCS.items():
        kind = "`RefMode.OFF`, `RefMode.EAGER`" if name == "ref_mode" else "an object or None"
        yield code(name), "", kind, code("RefMode.OFF") if name == "ref_mode" else code("None"), doc


def ignored_rows() -> list[tuple[str, str]]:
    """Return the settings that are accepted and have no effect, with the reason."""
    return [(code(name), why) for name, why in _compatibility.SETTINGS.items()]


def variable_rows() -> list[tuple[str, str, str]]:
    """Return the environment variables that are not defaults of a setting: name, default, meaning."""
    found = (value for value in vars(knobs).values() if isinstance(value, knobs.Knob))
    return [(code(knob.env), code(repr(knob.default)), knob.doc) for knob in found]


def error_rows() -> list[tuple[str, str, str]]:
    """Return the errors and warnings: class, base, message."""
    classes = [value for value in vars(exc).values() if isinstance(value, type) and issubclass(value, exc.Base)]
    return [
        (code(cls.__name__), ", ".join(code(base.__name__) for base in cls.__bases__), _message(cls))
        for cls in classes
        if cls not in (exc.Base, exc.BaseError, exc.BaseWarning)
    ]


def _message(cls: type[exc.Base]) -> str:
    unused = "never raised here; kept for `except` clauses" if cls.__name__ in _compatibility.ERRORS else ""
    text = "the text says what" if cls.template == "{0}" else cls.template.replace("*", "\\*").replace("<", "&lt;")
    return unused or text


# --- torch functions -----------------------------------------------------------------------------------------------

#: Headings by the module that has the rules.
_GROUPS: Mapping[str, str] = {
    "torch_pointwise": "Elementwise",
    "torch_composites": "Elementwise, composed",
    "torch_reductions": "Reductions, norms and softmax",
    "torch_matmul": "Matmuls",
    "torch_products": "Vector products and einsum",
    "torch_losses": "Losses",
    "torch_parts": "Slices of a dimension",
    "torch_shapes": "Shapes and new values",
    "torch_lanes": "Joining, selecting and sorting",
    "hl_functions": "Cumulative sums and products",
    "hl_random": "Random numbers",
}
_OTHERS = "Others"


def torch_groups() -> dict[str, list[str]]:
    """Return the torch functions that device code may call, by kind."""
    functions: dict[str, list[Any]] = {title: [] for title in (*_GROUPS.values(), _OTHERS)}
    for function, rule in torch_functions.RULES.items():
        if not is_refusal(rule):
            functions[_GROUPS.get(rule.__module__.split(".")[-1], _OTHERS)].append(function)
    return {title: torch_names(found) for title, found in functions.items()}


def torch_operators() -> list[str]:
    """Return the operators of Python that have a rule."""
    methods = {name: getattr(torch.Tensor, name) for name in dir(torch.Tensor) if name.startswith("__")}
    return [name for name, value in methods.items() if isinstance(value, Hashable) and value in torch_functions.RULES]


# --- pages ---------------------------------------------------------------------------------------------------------


def listing(entries: Iterable[Entry], level: str = "##") -> str:
    """Return entries as headings with signature and documentation."""
    parts = []
    for each in entries:
        shown = "" if each.signature == each.name else f"```text\n{each.signature}\n```\n\n"
        parts.append(f"{level} {each.name}\n\n{shown}{markdown(each.doc)}")
    return "\n\n".join(parts)


def language_page() -> str:
    return (
        "# helion.language\n\nConventionally imported as `import helion.language as hl`. A *device value* is the result of a load "
        "or a computation in a device loop. A *host tensor* is an argument, or a tensor that host code has made.\n\n"
        + listing(language())
    )


def package_page() -> str:
    parts = ["# helion", listing(package())]
    for module, entries in modules():
        parts.append(f"# {module.__name__}\n\n{markdown(module.__doc__ or '')}\n\n{listing(entries)}")
    return "\n\n".join(parts)


def operators_page() -> str:
    return f"""# helion.ops

{markdown(ops.__doc__ or "")}

[Operators for models](../guide/ops.md) shows how they are used. The kernels are in `helion/ops/kernels/`, a
file for each kind.

{listing(operators())}"""


def config_page() -> str:
    head = ("key", "entries", "values", "default", "meaning")
    return f"""# Config keys

A `helion.Config` takes them by keyword. Keys that are left out take their defaults. The second spelling of a key takes a
value for a list of one. Lists that are too short are filled with defaults. The legal keys and values depend on the kernel
and the target: `kernel.bind(args).config_spec` lists them. An illegal value raises `helion.exc.InvalidConfig` with the key,
the value and the allowed values. The values here are those of NVIDIA's and AMD's GPUs together.

{table(head, config_rows())}

A kernel with `backend="cute"` has `block_sizes`, `loop_orders`, `l2_groupings` and `epilogue_subtile` of these. It also has its
own keys, which depend on the GPU's tensor cores:

{table(("key", "values", "default", "meaning"), product_rows())}

`hl.register_tunable` adds user-defined keys. Keys that begin with `_triton_config_` are passed to Triton as launch options,
without the prefix.
"""


def settings_page() -> str:
    head = ("setting", "environment variable", "values", "default", "meaning")
    return f"""# Settings and environment variables

Settings are options of one kernel: `@helion.kernel(static_shapes=False)`, or `settings=helion.Settings(...)`. A setting that is
left out takes the value of its environment variable, read when the decorator runs, or else its default.

{table(head, setting_rows())}

## Other environment variables

{table(("variable", "default", "meaning"), variable_rows())}

## Accepted without effect

Setting one of these to another value than its default prints a one-line warning; `ignore_warnings=["SettingHasNoEffect"]`
suppresses it.

{table(("setting", "why"), ignored_rows())}
"""


def errors_page() -> str:
    return f"""# Errors and warnings

All errors and warnings are in `helion.exc`. Errors derive from `helion.exc.BaseError`, warnings from `helion.exc.BaseWarning`.
A warning is printed once to stderr, unless its name is in the setting `ignore_warnings`. Words in braces are filled in. If an
error concerns a line of the kernel, an excerpt follows.

{table(("class", "base", "message"), error_rows())}
"""


def torch_page() -> str:
    groups = "\n\n".join(f"## {title}\n\n{_spellings(names)}" for title, names in torch_groups().items() if names)
    return f"""# torch functions in device code

Inside a device loop these functions and methods of torch work on tiles, with torch's rules for dtypes and broadcasting.
Any other function raises `helion.exc.UnsupportedTorchFunction` with its name. Host code may call every function of torch.

Softmax, norms and cumulative sums need a whole dimension, as in `x[tile, :]`. Along an `hl.tile` dimension they are refused,
since the result would depend on the tile size.

{groups}

## Operators

{", ".join(map(code, torch_operators()))}
"""


def _spellings(names: Iterable[str]) -> str:
    """Return functions, then methods, as text."""
    functions = [code(name) for name in names if name.startswith("torch.")]
    methods = [code(name.removeprefix("Tensor")) for name in names if name.startswith("Tensor.")]
    kinds = (("Functions", functions), ("Methods", methods))
    return "\n\n".join(f"{title}: {', '.join(found)}" for title, found in kinds if found)


def commands_page() -> str:
    root = parser()
    (commands,) = (a for a in root._actions if isinstance(a, argparse._SubParsersAction))
    parts = [f"## {name}\n\n```text\n{_usage(each)}\n```" for name, each in commands.choices.items()]
    return "# Command line\n\n" + "\n\n".join((f"```text\n{_usage(root)}\n```", *parts))


def _usage(each: argparse.ArgumentParser) -> str:
    each.formatter_class = functools.partial(argparse.HelpFormatter, width=100)
    return each.format_help().strip()


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/language.md": language_page,
    "reference/package.md": package_page,
    "reference/ops.md": operators_page,
    "reference/configs.md": config_page,
    "reference/settings.md": settings_page,
    "reference/torch.md": torch_page,
    "reference/errors.md": errors_page,
    "reference/commands.md": commands_page,
}


def pages() -> dict[str, str]:
    """Return Markdown by path under ``docs/``."""
    return {path: make() for path, make in PAGES.items()}
