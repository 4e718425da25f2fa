"""The backward of operators: the kernel's own gradients if the call requested them, else an error when it runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ... import exc
from ..call.argument_checks import remedies
from . import gradients as kernel_gradients
from .kernels import Kernel
from .trees import unflatten

#: Called by autograd as ``(ctx, *gradients)``, and before that as ``(ctx, inputs, output)``.
Formula = tuple[Callable[..., Any], Callable[..., None]]


@dataclass(frozen=True, eq=False)
class Differentiated:
    """The operator that computes the gradients of ``kernel``, called with the leaves of ``tree``.

    Names and kinds of leaves are those of the forward operator, whose results are at ``made`` among ``results``
    tensors.
    """

    kernel: Kernel
    tree: tuple[Any, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    made: tuple[int, ...]
    results: int
    name: str

    def define(self, library: torch.library.Library, namespace: str) -> None:
        """Register it."""
        arguments = ", ".join(f"{kind} {name}" for kind, name in zip(self.kinds, self.names, strict=True))
        library.define(f"{self.name}({arguments}, Tensor[] helion_gradients) -> Tensor[]")
        library.impl(self.name, self.run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{namespace}::{self.name}", self.fake, lib=library)

    def run(self, *leaves: Any) -> list[torch.Tensor]:
        """Compute one gradient for each floating-point tensor among the leaves."""
        *given, incoming = leaves
        places = dict(zip(self.made, incoming, strict=True))
        wanted = [places.get(at) for at in range(self.results)]
        one = wanted[0] if len(wanted) == 1 else tuple(wanted)
        found = kernel_gradients.backward(self.kernel, one, *unflatten(self.tree, given))  # type: ignore[arg-type]
        each = found if isinstance(found, tuple) else (found,)
        return [gradient.contiguous() for gradient in each if gradient is not None]

    def fake(self, *leaves: Any) -> list[torch.Tensor]:
        """Return empty tensors like the gradients."""
        return [torch.empty(leaf.size(), dtype=leaf.dtype, device=leaf.device) for leaf in _floating(leaves[:-1])]

    def formula(self, namespace: str) -> Formula:
        """Return the functions that autograd calls."""

        def keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
            ctx.save_for_backward(*(x for x in inputs if isinstance(x, torch.Tensor)))
            ctx.numbers = [None if isinstance(x, torch.Tensor) else x for x in inputs]

        def pulled_back(ctx: Any, *incoming: torch.Tensor | None) -> Any:
            tensors = iter(ctx.saved_tensors)
            leaves = [next(tensors) if number is None else number for number in ctx.numbers]
            given = [gradient for gradient in incoming if gradient is not None]
            overload = getattr(getattr(torch.ops, namespace), self.name).default
            found: Iterator[torch.Tensor] = iter(overload(*leaves, given))
            return tuple(next(found) if _is_floating(leaf) else None for leaf in leaves)

        return pulled_back, keep


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.is_floating_point()


def _floating(leaves: Sequence[Any]) -> list[torch.Tensor]:
    return [leaf for leaf in leaves if _is_floating(leaf)]


# --- without a backward -----------------------------------------------------------------------------------------------
# A graph may contain a backward that never runs.
# So the error is raised by an operator that the backward calls.


def define_refusal(library: torch.library.Library, namespace: str) -> None:
    """Register the operator that replaces a gradient that must not be computed."""
    library.define(
        "no_gradient(Tensor gradient, SymInt[] size, ScalarType dtype, Device device, str kernel, str name) -> Tensor"
    )
    library.impl("no_gradient", _no_gradient, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{namespace}::no_gradient", _fake_gradient, lib=library)


def _no_gradient(
    gradient: torch.Tensor, size: Sequence[int], dtype: torch.dtype, device: torch.device, kernel: str, name: str
) -> torch.Tensor:
    raise exc.NoGradient(kernel=kernel, name=name, remedies=remedies())


def _fake_gradient(
    gradient: torch.Tensor, size: Sequence[int], dtype: torch.dtype, device: torch.device, kernel: str, name: str
) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=device)


def refusal(kernel: str, names: Sequence[str]) -> Formula:
    """Return gradients that raise ``exc.NoGradient`` when they are computed."""
    return functools.partial(_refused, kernel, names), _keep_shapes


def _keep_shapes(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
    ctx.shapes = [(x.size(), x.dtype, x.device) if isinstance(x, torch.Tensor) else None for x in inputs]


def _refused(kernel: str, names: Sequence[str], ctx: Any, *gradients: torch.Tensor | None) -> Any:
    one = next(gradient for gradient in gradients if gradient is not None)
    return tuple(
        torch.ops.helion.no_gradient(one, *shape, kernel, name) if shape is not None and wanted else None
        for shape, wanted, name in zip(ctx.shapes, ctx.needs_input_grad, names, strict=True)
    )


__all__ = ["Differentiated", "Formula", "define_refusal", "refusal"]
