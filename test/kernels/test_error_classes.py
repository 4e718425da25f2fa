"""Errors that users' code catches by their class: what each of them is raised for, and that its text names a remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.autotuner import EnumFragment, IntegerFragment, PowerOfTwoFragment

SEEN: list[int] = []
TABLE: dict[str, int] = {}


@helion.kernel
def accumulates_into_host_tensor(x: torch.Tensor) -> torch.Tensor:
    acc = torch.zeros([x.size(1)])
    for tile in hl.tile(x.size(0)):
        acc += x[tile, :].sum(0)
    return acc


@helion.kernel
def host_mask(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[mask]
    return out


@helion.kernel
def nonzero(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.nonzero(x)
    return out


@helion.kernel
def method_nonzero(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile].nonzero()
    return out


@helion.kernel
def while_else(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        count = hl.zeros([], dtype=torch.int32)
        while count < 3:
            count = count + 1
        else:
            count = count + 2
        out[tile] = x[tile] + count
    return out


@helion.kernel
def inline_like(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.inline_triton("{0}", [x[tile]], output_like=3)
    return x


@helion.kernel
def inline_args(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.inline_triton("{0}", x[tile], output_like=x[tile])
    return x


def assembles(**changed: Any) -> Any:
    @helion.kernel
    def kernel(x: torch.Tensor, given: dict) -> torch.Tensor:
        for tile in hl.tile(x.size(0)):
            x[tile] = hl.inline_asm_elementwise(
                given["asm"], given["constraints"], given["args"] or [x[tile]], given["dtype"], True, given["pack"]
            )
        return x

    given = {"asm": "mov.b32 $0, $1;", "constraints": "=r,r", "args": None, "dtype": torch.float32, "pack": 1}
    return lambda x: kernel.bind((x, hl.ConstExpr({**given, **changed})))


@helion.kernel
def prints_nothing(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        print()
        x[tile] = x[tile] + 1
    return x


@helion.kernel
def prints_a_value(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        print(x[tile])
        x[tile] = x[tile] + 1
    return x


@helion.kernel
def prints_elsewhere(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        print("x", x[tile], sep=",")
        x[tile] = x[tile] + 1
    return x


@helion.kernel
def changes_a_global(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        SEEN.append(1)
        x[tile] = x[tile] + 1
    return x


@helion.kernel
def assigns_into_a_global(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        TABLE["a"] = 1
        x[tile] = x[tile] + 1
    return x


@helion.kernel
def calls(x: torch.Tensor, function: Callable[[Any], Any]) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = function(x[tile])
    return x


def with_closure(x: torch.Tensor) -> None:
    seen: list[int] = []

    def function(value: Any) -> Any:
        seen.append(1)
        return value

    calls.bind((x, function))


X = torch.ones(8, 8)
CASES = [
    (accumulates_into_host_tensor, (X,), exc.CannotModifyHostVariableOnDevice, "'acc'.*store into it"),
    (host_mask, (X[0], X[0] > 0), exc.DataDependentOutputShapeNotSupported, "extra_mask"),
    (nonzero, (X[0],), exc.DataDependentOutputShapeNotSupported, "torch.nonzero"),
    (method_nonzero, (X[0],), exc.DataDependentOutputShapeNotSupported, "nonzero"),
    (while_else, (X[0],), exc.StatementNotSupported, "else block"),
    (inline_like, (X[0],), exc.InvalidAPIUsage, "output_like must be a tile, .*got 3"),
    (inline_args, (X[0],), exc.InvalidAPIUsage, "args must be a list or a dict"),
    (prints_nothing, (X[0],), exc.InvalidAPIUsage, "string literal as its first argument, got nothing"),
    (prints_a_value, (X[0],), exc.InvalidAPIUsage, r"got a device value float32.*write print\('name', value\)"),
    (prints_elsewhere, (X[0],), exc.InvalidAPIUsage, "takes no sep"),
    (changes_a_global, (X[0],), exc.GlobalMutation, "global 'SEEN'.*host code"),
    (assigns_into_a_global, (X[0],), exc.GlobalMutation, "global 'TABLE'"),
]


@pytest.mark.parametrize("kernel, args, error, text", CASES, ids=lambda v: getattr(v, "name", None))
def test_class_and_text(kernel: Any, args: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kernel.bind(args)
    assert not SEEN and not TABLE


def test_what_a_function_closes_over_is_not_changed_on_device() -> None:
    with pytest.raises(exc.ClosureMutation, match="'seen', which a function closes over"):
        with_closure(X[0])
    assert issubclass(exc.ClosureMutation, exc.StatementNotSupported)


@pytest.mark.parametrize(
    "changed, text",
    [
        ({"dtype": "int32"}, "dtype must be a torch.dtype or a sequence of them, got 'int32'"),
        ({"dtype": []}, "dtype must be a torch.dtype"),
        ({"dtype": [torch.float32, 3]}, "dtype must be a torch.dtype"),
        ({"asm": 3}, "asm must be a string, got 3"),
        ({"constraints": None}, "constraints must be a string, got None"),
        ({"pack": 0}, "pack must be a positive int, got 0"),
        ({"args": 7}, "args must be a list of values, got 7"),
    ],
    ids=str,
)
def test_arguments_of_inline_assembly(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(exc.InvalidAPIUsage, match=text):
        assembles(**changed)(X[0])


def test_names_that_callers_may_catch() -> None:
    assert issubclass(exc.TritonError, exc.ErrorCompilingKernel)
    assert issubclass(exc.DeviceLoopElseBlock, exc.StatementNotSupported)
    for name in ("ProcessGroupNameNotFound", "InconsistantConfigsAcrossRanks", "GlobalMutation"):
        assert issubclass(getattr(exc, name), exc.Base)


@helion.kernel(static_shapes=False)
def open_bounds(x: torch.Tensor) -> torch.Tensor:
    factor = hl.register_tunable("factor", IntegerFragment(1, x.size(0)))
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] * factor
    return x


def test_bounds_of_fragments() -> None:
    with pytest.raises(exc.ConfigSpecFragmentWithSymInt, match=r"IntegerFragment\(1, x.size\(0\)\).*hl.specialize"):
        open_bounds.bind((X[0],))
    assert torch.equal(helion.kernel(open_bounds.fn)(X[0].clone()), X[0])
    for wrong, text in (
        (lambda: PowerOfTwoFragment(3, 8), "low must be a power of two, got 3"),
        (lambda: IntegerFragment(8, 3), "low must not be above high, got 8 and 3"),
        (lambda: IntegerFragment(1, 4, 9), "default_val must be between 1 and 4, got 9"),
        (lambda: EnumFragment([]), "at least one value"),
    ):
        with pytest.raises(ValueError, match=text):
            wrong()
    with pytest.raises(TypeError, match=r"got Kernel; did you forget \.fn"):
        helion.kernel(open_bounds)
    with pytest.raises(TypeError, match="takes a helion.OutputCodeOptions, got 3"):
        helion.kernel(open_bounds.fn).bind((X[0],)).to_code(options=3)
    with pytest.raises(TypeError, match=r"made of a dict, got \[1\]"):
        helion.Config.from_dict([1])


@helion.kernel
def changes_the_seed(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        torch.manual_seed(0)
        x[tile] = torch.rand_like(x[tile])
    return x


@helion.kernel
def no_step(x: torch.Tensor) -> torch.Tensor:
    for i in hl.grid(0, x.size(0), step=0):
        x[i] = x[i] + 1
    return x


@helion.kernel
def views_a_host_tensor(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = x.view(-1)[tile] + 1
    return x


@helion.kernel
def adds_a_host_tensor(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(x, [tile], x)
    return x


@helion.kernel
def adds_text(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(x, [tile], "1")
    return x


@helion.kernel
def dtype_by_name(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.zeros([tile], dtype="float32")
    return x


@helion.kernel
def no_function(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = hl.associative_scan(None, x[tile], dim=0)
    return x


@helion.kernel
def too_much_dropout(x: torch.Tensor) -> torch.Tensor:
    for tile in hl.tile(x.size(0)):
        x[tile] = torch.nn.functional.dropout(x[tile], 2.0)
    return x


@pytest.mark.parametrize(
    "kernel, error, text",
    [
        (changes_the_seed, exc.NotAllowedOnDevice, "manual_seed.*move it to the host code"),
        (no_step, exc.InvalidAPIUsage, "step of hl.grid .*must be at least 1, got 0"),
        (adds_a_host_tensor, exc.HostTensorDirectUsage, "'x'.*load a tile"),
        (
            views_a_host_tensor,
            exc.HostTensorDirectUsage,
            r"'x'.*by Tensor\.view.*before the loop.*flat = x\.view\(-1\)",
        ),
        (adds_text, exc.RequiresTensorInAssignment, "got '1'"),
        (dtype_by_name, exc.InvalidAPIUsage, "must be a torch.dtype, got 'float32'"),
        (no_function, exc.InvalidAPIUsage, "takes a function of two values that combines them, got None"),
        (too_much_dropout, exc.InvalidAPIUsage, "between 0 and 1, got 2.0"),
    ],
    ids=lambda v: getattr(v, "name", None),
)
def test_wrong_arguments(kernel: helion.Kernel, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kernel.bind((X[0],))
