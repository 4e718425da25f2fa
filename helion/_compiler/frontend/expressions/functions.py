"""Functions that a kernel's own code defines: nested ``def`` statements and lambdas."""

from __future__ import annotations

import ast
import inspect
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .... import exc

if TYPE_CHECKING:
    from .operators import Expressions


@dataclass(eq=False)
class LocalFunction:
    """A function with the frame that it was defined in, whose names it reads when it is called."""

    definer: Expressions
    node: ast.FunctionDef | ast.Lambda
    defaults: dict[str, Any]

    @property
    def name(self) -> str:
        return self.node.name if isinstance(self.node, ast.FunctionDef) else "<lambda>"

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def __code__(self) -> Any:
        """As much of a code object as tells how many arguments there are."""
        return types.SimpleNamespace(co_argcount=len(self.node.args.posonlyargs) + len(self.node.args.args))

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The names that a call binds. Raises for arguments that do not fit."""
        given, kinds = self.node.args, inspect.Parameter
        names: list[tuple[ast.arg, Any]] = [(a, kinds.POSITIONAL_ONLY) for a in given.posonlyargs]
        names += [(a, kinds.POSITIONAL_OR_KEYWORD) for a in given.args]
        names += [(given.vararg, kinds.VAR_POSITIONAL)] if given.vararg is not None else []
        names += [(a, kinds.KEYWORD_ONLY) for a in given.kwonlyargs]
        names += [(given.kwarg, kinds.VAR_KEYWORD)] if given.kwarg is not None else []
        parameters = [
            inspect.Parameter(a.arg, kind, default=self.defaults.get(a.arg, kinds.empty)) for a, kind in names
        ]
        try:
            bound = inspect.Signature(parameters).bind(*args, **kwargs)
        except TypeError as error:
            raise exc.TypeInferenceError(f"{self.name}: {error}.") from error
        bound.apply_defaults()
        return dict(bound.arguments)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.definer.call_local(self, args, kwargs)


def define(definer: Expressions, node: ast.FunctionDef | ast.Lambda) -> LocalFunction:
    """The function of a ``def`` statement or a lambda; defaults are evaluated now."""
    given = node.args
    positional = [*given.posonlyargs, *given.args]
    pairs = list(zip(positional[len(positional) - len(given.defaults) :], given.defaults, strict=True))
    pairs += [(a, d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True) if d is not None]
    return LocalFunction(definer, node, {a.arg: definer.eval(default) for a, default in pairs})
