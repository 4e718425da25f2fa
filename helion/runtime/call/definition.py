"""The definition of a kernel: its function, its parameters, and its options."""

from __future__ import annotations

import functools
import inspect
import linecache
import types
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ..._compiler.source import parse_kernel
from ..._support.records import dataclass
from ...config import Config
from ...language.constants import ConstExpr
from ...settings import Settings
from .signature import Key, UsualInputs, arguments_key, beyond_64_bits


@dataclass(frozen=True, kw_only=True)
class AotOptions:
    """Arguments of ``helion.aot_kernel`` besides the options of ``helion.kernel``.

    ``collect_fn`` and ``measure_fn`` return lists of argument tuples that are tuned too when a table is collected.
    ``batched`` names the batch dimensions. It is accepted without effect, since all sizes are compared.
    """

    batched: Any = None
    collect_fn: Callable[[], Sequence[Sequence[Any]]] | None = None
    measure_fn: Callable[[], Sequence[Sequence[Any]]] | None = None


class Definition:
    """A kernel as seen by the code that handles its calls."""

    # a slot: a call of a kernel goes directly to the function last written for a call like it
    __slots__ = ("__call__", "__dict__", "__weakref__")

    __call__: Callable[..., Any]

    def __init__(
        self,
        fn: types.FunctionType,
        *,
        configs: Sequence[Config],
        settings: Settings,
        key: Callable[..., Hashable] | None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = fn.__code__.co_name
        self.settings = settings
        self.configs = list(configs)
        self.key = key
        self.default_printed = False
        #: True if torch has recorded calls of it, which may run at any later time.
        self.is_in_graphs = False
        #: Options of tables of tuned configs, for kernels that have some; warnings printed; whether other arguments
        #: were tuned.
        self.aot: AotOptions | None = None
        self.printed_warnings: set[str] = set()
        self.collected = False
        self.warned_no_gradient = False
        self.signature = _signature(fn)
        self.constants = frozenset(_constant_parameters(self.signature))
        self.constant_at = tuple(name in self.constants for name in self.signature.parameters)
        self.usual_inputs = UsualInputs()
        #: Kernel with static shapes that replaces it in gradients, where sizes must be known.
        self.static_twin: Any = None

    def normalize_args(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return all arguments in the order of the parameters, with defaults filled in."""
        parameters = self.signature.parameters
        if not kwargs and len(args) == len(parameters):
            return args
        if kwargs and (unknown := next((name for name in kwargs if name not in parameters), None)):
            raise TypeError(f"kernel {self.name!r}: unexpected keyword {unknown!r}; it takes ({', '.join(parameters)})")
        if len(args) > len(parameters):
            wrong = f"Too many arguments passed to the kernel, expected: {len(parameters)} got: {len(args)}."
            raise TypeError(f"kernel {self.name!r}: {wrong}")
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            first = next(iter(parameters), "")
            method = first in ("self", "cls") and "." in self.fn.__qualname__
            remedy = (
                "; kernels are functions: put @staticmethod above the decorator, or move it out of the class"
                if method
                else ""
            )
            raise TypeError(f"kernel {self.name!r}: {error}; it takes ({', '.join(parameters)}){remedy}") from None
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    @functools.cached_property
    def source(self) -> str:
        """The source text of the function, with its decorators."""
        found = parse_kernel(self.fn)
        node = found.node
        first = min((each.lineno for each in getattr(node, "decorator_list", ())), default=node.lineno)
        return "".join(linecache.getlines(found.file)[first - 1 : node.end_lineno])

    def arguments_key(self, values: Sequence[Any]) -> Key:
        """Return the part of the specialization key for all arguments, in the order of the parameters."""
        try:
            return arguments_key(values, self.constant_at, self.settings.static_shapes)
        except OverflowError:
            named = zip(self.signature.parameters, values, strict=True)
            wide = next(((n, v) for n, v in named if type(v) is int and not -(2**63) <= v < 2**63), None)
            if wide is None:
                raise
            raise OverflowError(beyond_64_bits(wide[1], f"kernel {self.name!r}: argument {wide[0]!r}")) from None


def _signature(fn: types.FunctionType) -> inspect.Signature:
    signature = inspect.signature(fn)
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise TypeError(
                f"kernel {fn.__name__!r}: parameter {parameter.name!r} is {parameter.kind.description}; kernels take plain positional parameters only"
            )
    return signature


def _constant_parameters(signature: inspect.Signature) -> list[str]:
    """List the parameters annotated ``hl.constexpr``, also as a string or a subscript of it."""
    found = []
    for name, parameter in signature.parameters.items():
        annotation = parameter.annotation
        text = annotation if isinstance(annotation, str) else ""
        origin = getattr(annotation, "__origin__", annotation)
        if origin is ConstExpr or text.split("[")[0].split(".")[-1] in ("constexpr", "ConstExpr"):
            found.append(name)
    return found
