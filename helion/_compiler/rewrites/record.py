"""The record of a rewrite that a config key selects.

``rewrites.REWRITES`` lists the records in the order in which they run. Config keys and their documentation, config
fields, the reasons why a kernel lacks a key, legalization rules and steps derive from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..._shapes import Expr
from ..._support.records import dataclass, field
from ...fields import BooleanFragment, Fragment, PowerOfTwoFragment
from ...hardware import Target
from ..decisions import Decisions
from ..ir.grammar import Program
from .steps import StepInputs

_PRODUCTS = frozenset(("dot", "dot_scaled"))


@dataclass(frozen=True, kw_only=True)
class TileSides:
    """Values of a key that are the sides of a tile: M, N and K, each with its range; None for no tile."""

    sides: tuple[PowerOfTwoFragment, ...]


@dataclass(frozen=True, kw_only=True)
class Values:
    """Legal values of a key for one kernel, and the ones that a search tries, if not all."""

    legal: Fragment | TileSides
    searched: Fragment | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchKey:
    """A config key for the launch of the kernel that a rewrite makes.

    None takes the value of the key ``of``. ``range`` has the values of all targets, ``values`` returns those of one.
    """

    key: str
    doc: str
    of: str
    range: Fragment
    values: Callable[[Target], tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class RuleContext:
    """The context of legality. ``rewritten`` returns the program after the steps that change its loops and accesses."""

    program: Program
    target: Target
    rewritten: Callable[[Decisions], Program]


@dataclass(frozen=True, kw_only=True)
class FactContext:
    """The context of facts about rewrites.

    ``dots`` numbers the matmuls by op. ``extents`` and ``padded`` are those of all axes, by block. ``collect`` returns
    all facts of a program.
    """

    program: Program
    dots: Mapping[int, int]
    extents: Mapping[int, int | None]
    padded: Mapping[int, int]
    collect: Callable[[Program], Any]


Fit = Callable[[RuleContext, Any, Decisions], Any]
Adjust = Callable[[RuleContext, Decisions], Decisions]


def _flags(program: Program, target: Target) -> Values:
    return Values(legal=BooleanFragment())


def _as_it_is(context: RuleContext, value: Any, decisions: Decisions) -> Any:
    return value


def _unadjusted(context: RuleContext, decisions: Decisions) -> Decisions:
    return decisions


def _no_fact(context: FactContext) -> None:
    return None


def never(program: Program) -> bool:
    """Return False: the operations of a kernel alone decide."""
    return False


def has_matmul(program: Program) -> bool:
    """Return whether a program has a matmul, whose strides and dtypes differ between calls."""
    return any(op.kind in _PRODUCTS for op in program.walk())


def has_matmul_of_open_sizes(program: Program) -> bool:
    """Return whether a program has a matmul, and sizes that differ from call to call."""
    return has_matmul(program) and any(isinstance(n, Expr) for tensor in program.tensors for n in tensor.shape)


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """A rewrite that a config key selects.

    The name of the step is ``key``. A new record needs a file and its place in ``rewrites.REWRITES``.
    """

    key: str
    doc: str
    """Meaning of the key, for users."""
    off: Any = False
    """The value that leaves the program as it is."""
    range: Fragment = field(default_factory=BooleanFragment)
    """Values of the key in some kernel."""
    values: Callable[[Program, Target], Values] = _flags
    """Values of the key in one kernel that has it."""
    applies: Callable[[Program, Target], str]
    """The reason why a kernel lacks the key, empty if it has it."""
    in_checked: bool = False
    """True for a rewrite that keeps the checks of checked kernels."""
    varies: Callable[[Program], bool] = never
    """Whether a program that lacks the key may have it with other sizes, strides or dtypes."""
    fit: Fit = _as_it_is
    """The nearest legal value in the context of the other decisions; ``off`` if there is none."""
    needs: str
    """Requirements of a legal value, for users."""
    yields_to: frozenset[str] = frozenset()
    """Keys of rewrites that switch this one off."""
    resets: Mapping[str, Any] = field(default_factory=dict)
    """Values of other keys with this rewrite; all entries of a list get the same value."""
    removes: frozenset[str] = frozenset()
    """Parts of the program that may be gone, ``loops`` or ``accesses``, with their entries of lists."""
    numbered: bool = False
    """True if programs need a number: with ``pid_type="xyz"`` they have none."""
    adjust: Adjust = _unadjusted
    """Further changes of decisions with this rewrite."""
    launch: tuple[LaunchKey, ...] = ()
    """Keys for the launch of the kernel that it makes."""
    fact: Callable[[FactContext], Any] = _no_fact
    """The facts that heuristics have of the rewrite: ``KernelFacts.rewrites`` has it by key, computed at first use."""
    model: Callable[[Program], Program] | None = None
    """The program from whose facts a rewritten kernel is predicted, with tiles of any size, or the same program where
    the rewrite changes nothing. None where the facts of the kernel as written and the config suffice."""
    after: tuple[str, ...] = ()
    """Steps that run earlier."""
    apply: Callable[[Program, Any, StepInputs], Program]
    """The rewritten program, for a value that is not ``off``."""

    @property
    def keys(self) -> tuple[str, ...]:
        """All config keys of the rewrite."""
        return (self.key, *(each.key for each in self.launch))

    def is_on(self, decisions: Decisions) -> bool:
        """Return whether decisions select the rewrite."""
        return decisions.values.get(self.key, self.off) != self.off

    def why_absent(self, program: Program, target: Target, *, checked: bool) -> str:
        """Return the reason why a kernel lacks the keys of the rewrite, or an empty string."""
        if checked and not self.in_checked:
            return "checked kernels are compiled as written"
        return self.applies(program, target)
