"""Wrong programs are refused by name: the class, the message, and the line of the kernel the message shows."""

from __future__ import annotations

import functools
import inspect
import linecache
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from generated_source import load

import helion
import helion.language as hl
from helion import exc

FILE = str(Path(__file__))


def refusal(kernel: helion.Kernel, args: tuple[Any, ...], error: type[Exception], pattern: str, marker: str) -> None:
    """Binding ``kernel`` raises ``error``; its message matches and shows the line that ends with ``# marker``."""
    with pytest.raises(error, match=pattern) as caught:
        kernel.bind(args)
    shown_line(str(caught.value), kernel.fn, marker)


def shown_line(message: str, fn: Callable[..., Any], marker: str) -> None:
    lines, first = inspect.getsourcelines(fn)
    at = next(i for i, line in enumerate(lines) if line.rstrip().endswith(f"# {marker}"))
    assert FILE in message
    assert f"line {first + at}," in message
    assert lines[at].strip() in message
    assert "^" in message


def vec(n: int = 8, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(n, dtype=dtype)


def mat(m: int = 8, n: int = 8, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(m, n, dtype=dtype)


# --- the decorator ------------------------------------------------------------------------------------------------------


def test_closing_over_a_local_variable() -> None:
    factor = 2.0

    def kernel(x):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * factor  # here
        return out

    with pytest.raises(exc.ClosuresNotSupported, match="'kernel' closes over the local variable 'factor'") as caught:
        helion.kernel(kernel)
    shown_line(str(caught.value), kernel, "here")


def test_parameter_named_like_generated_code() -> None:
    def kernel(triton):
        for tile in hl.tile(triton.size(0)):
            triton[tile] = 0

    with pytest.raises(
        exc.NamingConflict, match="The name 'triton' is used by generated code; rename the parameter 'triton'"
    ):
        helion.kernel(kernel)


def test_variable_named_like_generated_code() -> None:
    def kernel(x):
        triton = x.size(0)
        for tile in hl.tile(triton):
            x[tile] = 0

    with pytest.raises(exc.NamingConflict, match="rename the variable 'triton' in kernel 'kernel'"):
        helion.kernel(kernel)


@pytest.mark.parametrize("name", ["_helion_kernel", "_BLOCK_SIZE_0", "_SUBTILE_SIZE_1"])
def test_names_of_the_kinds_that_generated_code_makes(name: str, tmp_path: Path) -> None:
    source = f"def kernel(x):\n    {name} = x.size(0)\n    for tile in hl.tile({name}):\n        x[tile] = 0\n"
    with pytest.raises(exc.NamingConflict, match=f"rename the variable '{name}' in kernel 'kernel'"):
        helion.kernel(load(source, tmp_path, "named").kernel)


def identity(fn: Any) -> Any:
    return fn


def test_decorator_below_ours() -> None:
    with pytest.raises(exc.DecoratorAfterHelionKernelDecorator, match="innermost decorator of 'kernel'.*'identity'"):

        @helion.kernel
        @identity
        def kernel(x):
            for tile in hl.tile(x.size(0)):
                x[tile] = 0


def wrapping(fn: Any) -> Any:
    @functools.wraps(fn)
    def inner(*args: Any) -> Any:
        return fn(*args)

    return inner


def around(fn: Any) -> Any:
    def inner(x: Any) -> Any:
        return fn(x)

    return inner


class Holder:
    def __init__(self, fn: Any) -> None:
        functools.update_wrapper(self, fn)

    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "decorator",
    [
        "wrapping",
        "around",
        "Holder",
        "torch.no_grad()",
        "torch.compiler.disable",
        "functools.lru_cache",
        "staticmethod",
    ],
)
@pytest.mark.parametrize(
    "ours", ["helion.kernel", "helion.kernel(static_shapes=False)", "helion.jit", "helion.aot_kernel()"]
)
def test_decorators_below_ours_that_wrap_the_function(decorator: str, ours: str, tmp_path: Path) -> None:
    names = f"from {__name__} import Holder, around, wrapping" if decorator in ("wrapping", "around", "Holder") else ""
    lines = ["import functools, torch, helion", names, f"@{ours}", f"@{decorator}", "def kernel(x):", "    return x"]
    with pytest.raises(exc.DecoratorAfterHelionKernelDecorator) as caught:
        load("\n".join(lines) + "\n", tmp_path, "decorated")
    assert f"innermost decorator of 'kernel'; move {decorator!r} above it" in str(caught.value)
    assert f"@{decorator}" in str(caught.value).splitlines()[-2]


def test_a_wrapped_function_given_to_ours() -> None:
    def kernel(x: Any) -> Any:
        return x

    with pytest.raises(exc.DecoratorAfterHelionKernelDecorator, match="move 'wrapping' above it"):
        helion.kernel(wrapping(kernel))


@pytest.mark.parametrize("signature", ["*x", "**x", "x, *, y=1"])
def test_parameters_that_kernels_cannot_have(signature: str, tmp_path: Path) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def kernel({signature}): pass", namespace)
    with pytest.raises(TypeError, match="kernels take plain positional parameters only"):
        helion.kernel(namespace["kernel"])


def test_both_config_and_configs() -> None:
    with pytest.raises(TypeError, match="either config= or configs="):
        helion.kernel(config={}, configs=[{}])


def test_an_empty_list_of_configs_is_none() -> None:
    given = helion.kernel(configs=[])(copy_rows.fn)
    assert given.configs == []
    again = helion.kernel(given.fn, configs=given.configs, static_shapes=False)
    assert again.configs == [] and not again.settings.static_shapes


def test_unknown_setting() -> None:
    with pytest.raises(TypeError, match="statik_shapes"):
        helion.kernel(statik_shapes=True)(copy_rows.fn)


# --- arguments ----------------------------------------------------------------------------------------------------------


@helion.kernel
def copy_rows(x, scale=1.0):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * scale
    return out


def test_no_tensor_argument() -> None:
    with pytest.raises(exc.NoTensorArgs, match="'copy_rows' was called without a tensor argument"):
        copy_rows(3, 4)


def test_too_many_arguments() -> None:
    with pytest.raises(TypeError, match="Too many arguments passed to the kernel, expected: 2 got: 3"):
        copy_rows(vec(), 1.0, 2.0)
    with pytest.raises(TypeError, match=r"kernel 'copy_rows': missing a required argument: 'x'; it takes \(x, scale\)"):
        copy_rows(scale=1.0)


def test_missing_argument() -> None:
    with pytest.raises(TypeError, match="x"):
        copy_rows()


@pytest.mark.parametrize("value", [object(), {1, 2}, 1j])
def test_argument_of_an_unknown_type(value: Any) -> None:
    with pytest.raises(TypeError, match=f"argument of type {type(value).__name__} is not supported"):
        copy_rows.bind((vec(), value))


def test_no_device_loop() -> None:
    @helion.kernel
    def kernel(x):
        return torch.empty_like(x)

    with pytest.raises(exc.NoDeviceLoopsInKernel, match="'kernel' has no device loop"):
        kernel.bind((vec(),))


def test_loop_without_a_store() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):  # here
            x[tile] * 2
        return x

    refusal(kernel, (vec(),), exc.EmptyDeviceLoopAfterDCE, "'kernel' stores nothing", "here")


# --- loops --------------------------------------------------------------------------------------------------------------


def test_tile_outside_of_a_for() -> None:
    @helion.kernel
    def kernel(x):
        out = torch.empty_like(x)
        tiles = hl.tile(x.size(0))  # here
        for tile in tiles:
            out[tile] = x[tile]
        return out

    refusal(kernel, (vec(),), exc.LoopFunctionNotInFor, r"hl\.tile must be the iterable of a for loop", "here")


def test_tile_outside_of_a_for_on_the_device() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            inner = hl.grid(4)  # here
            x[tile] = inner
        return x

    refusal(kernel, (vec(),), exc.LoopFunctionNotInFor, r"hl\.grid must be the iterable of a for loop", "here")


@pytest.mark.parametrize("api", [hl.tile, hl.grid, hl.zeros, hl.load, hl.specialize, hl.register_block_size])
def test_outside_of_a_kernel(api: Any) -> None:
    with pytest.raises(exc.NotInsideKernel, match=rf"hl\.{api.__name__} was called outside of a kernel"):
        list(api(4))


def test_device_function_on_the_host() -> None:
    @helion.kernel
    def kernel(x):
        acc = hl.zeros([8])  # here
        for tile in hl.tile(x.size(0)):
            x[tile] = acc
        return x

    refusal(kernel, (vec(),), exc.DeviceAPIOnHost, r"hl\.zeros may only be called in device code", "here")


def test_register_block_size_on_the_device() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            size = hl.register_block_size(8)  # here
            x[tile] = size
        return x

    refusal(kernel, (vec(),), exc.NotAllowedOnDevice, r"hl\.register_block_size is not allowed in device code", "here")


def test_specialize_on_the_device() -> None:
    @helion.kernel
    def kernel(x, n: int):
        for tile in hl.tile(x.size(0)):
            x[tile] = hl.specialize(n)  # here
        return x

    refusal(kernel, (vec(), 3), exc.SpecializeOnDevice, "must be called in host code", "here")


def test_specialize_of_a_tensor() -> None:
    @helion.kernel
    def kernel(x):
        n = hl.specialize(x)  # here
        for tile in hl.tile(n):
            x[tile] = 0
        return x

    refusal(kernel, (vec(),), exc.SpecializeArgType, "hl.specialize takes sizes, strides and numbers", "here")


def test_else_of_a_device_loop() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):  # here
            x[tile] = 0
        else:
            pass
        return x

    refusal(kernel, (vec(),), exc.DeviceLoopElseBlock, "may not have an else block", "here")


def test_a_later_loop_reads_what_an_earlier_one_wrote() -> None:
    @helion.kernel
    def kernel(x, y):
        for tile in hl.tile(x.size(0)):
            x[tile] = 0
        for row in hl.tile(y.size(0)):
            y[row] = x[row]  # here
        return y

    refusal(
        kernel,
        (vec(), vec()),
        exc.LoopDependencyError,
        "Tensor 'x' is .*by two device loops|Tensor 'x' is written by one",
        "here",
    )


def test_a_later_loop_reads_a_view_of_what_an_earlier_one_wrote() -> None:
    @helion.kernel
    def kernel(x, y):
        other = x.view(-1)
        for tile, column in hl.tile(x.size()):
            x[tile, column] = 0
        for row in hl.tile(y.size(0)):
            y[row] = other[row]  # here
        return y

    refusal(kernel, (mat(), vec()), exc.LoopDependencyError, "two device loops|is written by one", "here")


def test_a_later_loop_writes_what_an_earlier_one_read() -> None:
    @helion.kernel
    def kernel(x, y):
        for tile in hl.tile(x.size(0)):
            y[tile] = x[7 - tile.index]
        for row in hl.tile(x.size(0)):
            x[row] = 0  # here
        return y

    refusal(kernel, (vec(), vec()), exc.LoopDependencyError, "Tensor 'x'", "here")


def test_unpacking_one_tile() -> None:
    @helion.kernel
    def kernel(x):
        for a, b in hl.tile(x.size(0)):  # here
            x[a, b] = 0
        return x

    refusal(kernel, (mat(),), exc.FailedToUnpackTile, r"cannot be unpacked into 2 names; write hl\.tile", "here")


def test_unpacking_too_few_tiles() -> None:
    @helion.kernel
    def kernel(x):
        for a, b, c in hl.tile(x.size()):  # here
            x[a, b] = c
        return x

    refusal(kernel, (mat(),), exc.FailedToUnpackTupleAssign, "Cannot unpack 2 values into 3 names", "here")


def test_begin_behind_end() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(8, 4):  # here
            x[tile] = 0
        return x

    refusal(kernel, (vec(),), exc.InvalidTileRange, "begins at 8 but ends at 4", "here")


def test_tile_of_a_tile() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            for inner in hl.tile(tile):  # here
                x[inner] = 0
        return x

    refusal(kernel, (vec(),), exc.TileOfTile, r"use hl\.tile\(tile\.begin, tile\.end\)", "here")


def test_list_and_scalar_bounds() -> None:
    @helion.kernel
    def kernel(x):
        for tile, column in hl.tile(0, [8, 8]):  # here
            x[tile, column] = 0
        return x

    refusal(kernel, (mat(),), exc.IncorrectTileUsage, "list as one bound and a scalar as the other", "here")


def test_bound_that_is_a_float() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0) / 2):  # here
            x[tile] = 0
        return x

    refusal(kernel, (vec(),), exc.TypeInferenceError, r"A bound of hl\.tile must be an integer, got 4\.0", "here")


def test_block_size_that_is_no_power_of_two() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0), block_size=3):  # here
            x[tile] = 0
        return x

    refusal(kernel, (vec(),), exc.BackendUnsupported, "block_size=3.*power of two", "here")


def test_sums_of_two_tiles_of_one_block_size() -> None:
    @helion.kernel
    def kernel(x):
        block = hl.register_block_size(8)
        for tile, other in hl.tile([x.size(0), x.size(0)], block_size=[block, block]):
            x[tile, other] = x[tile, 0] + x[other, 0]  # here
        return x

    refusal(kernel, (mat(),), exc.ShapeMismatch, "and other are two tiles of one block size.*register", "here")


def test_device_loop_over_a_value() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            for value in x[tile]:  # here
                x[tile] = value
        return x

    refusal(kernel, (vec(),), exc.InvalidDeviceForLoop, "cannot iterate over a device value", "here")


def test_static_range_with_a_run_time_bound() -> None:
    @helion.kernel
    def kernel(x, n: int):
        for tile in hl.tile(x.size(0)):
            for i in hl.static_range(n):  # here
                x[tile] = i
        return x

    refusal(kernel, (vec(), 3), exc.TypeInferenceError, r"hl\.static_range needs constant bounds", "here")


def test_unknown_argument_of_tile() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0), size=4):  # here
            x[tile] = 0
        return x

    refusal(kernel, (vec(),), exc.TypeInferenceError, r"hl\.tile has no argument 'size'", "here")


# --- tiles --------------------------------------------------------------------------------------------------------------


def tile_in(expression: str) -> Callable[[Any, torch.Tensor], Any]:
    return eval(f"lambda tile, v: {expression}")


@helion.kernel
def with_tile(x, out, f):
    for tile in hl.tile(x.size(0)):
        out[tile] = f(tile, x[tile])  # here
    return out


@helion.kernel
def tile_times_two(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = tile * 2  # here


@helion.kernel
def tile_plus_value(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] + tile  # here


@helion.kernel
def value_plus_tile(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = tile + x[tile]  # here


@helion.kernel
def tile_of_a_function(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = torch.exp(tile)  # here


@helion.kernel
def tile_stored(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = tile  # here


@helion.kernel
def tile_compared(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = torch.where(tile < 3, 1.0, 0.0)  # here


@helion.kernel
def tile_as_condition(x):
    for tile in hl.tile(x.size(0)):
        if tile:  # here
            x[tile] = 0


@helion.kernel
def tile_negated(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = -tile  # here


@helion.kernel
def tile_subscripted(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = tile[0]  # here


@helion.kernel
def tile_attribute(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = tile.start  # here


@helion.kernel
def tile_in_where(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = torch.where(x[tile] > 0, tile, 0)  # here


@helion.kernel
def tile_in_maximum(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = max(tile, 3)  # here


@helion.kernel
def tile_as_int(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = int(tile)  # here


TILE_MISUSES = (
    tile_times_two, tile_plus_value, value_plus_tile, tile_of_a_function, tile_stored, tile_compared, tile_as_condition,
    tile_negated, tile_subscripted, tile_attribute, tile_in_where, tile_in_maximum, tile_as_int,
)  # fmt: skip


@pytest.mark.parametrize("kernel", TILE_MISUSES, ids=lambda k: k.name)
def test_tile_as_a_number(kernel: helion.Kernel) -> None:
    refusal(kernel, (vec(),), exc.IncorrectTileUsage, r"A tile was used .*Use tile\.index", "here")


def test_tile_read_on_the_host() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            x[tile] = 0
        return x[tile]  # here

    refusal(kernel, (vec(),), exc.CannotReadDeviceVariableOnHost, "'tile' is a device value", "here")


# --- subscripts ---------------------------------------------------------------------------------------------------------


@helion.kernel
def too_many_indices_to_load(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, 0, 0]  # here


@helion.kernel
def too_many_indices_to_store(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile, 0] = x[tile, 0]  # here


@helion.kernel
def too_many_indices_of_a_value(x, out):
    for tile in hl.tile(x.size(0)):
        v = x[tile, 0]
        out[tile] = v[:, :]  # here


@helion.kernel
def too_few_indices_to_store(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile]  # here


@pytest.mark.parametrize(
    "kernel, pattern",
    [
        (too_many_indices_to_load, r"Expected 2 indices for 'x' of shape \[8, 8\], got 3"),
        (too_many_indices_to_store, r"Expected 1 indices for 'out' of shape \[8\], got 2"),
        (too_many_indices_of_a_value, "Expected 1 indices for a device value.*, got 2"),
        (too_few_indices_to_store, "stored into 'out'"),
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_wrong_number_of_indices(kernel: helion.Kernel, pattern: str) -> None:
    refusal(kernel, (mat(), vec()), exc.RankMismatch, pattern, "here")


@helion.kernel
def number_of_a_tile(x, out):
    for tile in hl.tile(x.size(0)):
        v = x[tile, :]
        out[tile] = v[0, :].sum(-1)  # here


def test_a_tile_is_not_indexed_by_a_number() -> None:
    pattern = (
        r"Dimension 0 of .* is a tile or of unknown size, and 0 cannot be an index .* Subscript the tensor in the load"
    )
    refusal(number_of_a_tile, (mat(), vec()), exc.InvalidAPIUsage, pattern, "here")


@helion.kernel
def float_index(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, 1.5]  # here


@helion.kernel
def string_index(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, "a"]  # here


@helion.kernel
def float_tensor_index(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, out[0]]  # here


@helion.kernel
def slice_of_a_value(x, out):
    for tile in hl.tile(x.size(0)):
        v = x[tile, :]
        out[tile] = v[0]  # here


@helion.kernel
def subscript_with_a_number(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.subscript(x[tile, :], [slice(None), 0])  # here


@helion.kernel
def slice_of_a_tile_size(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, 0 : tile.block_size].sum(-1)  # here


@helion.kernel
def two_ellipses(x, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = x[..., ...]  # here


@pytest.mark.parametrize(
    "kernel",
    [
        float_index,
        string_index,
        float_tensor_index,
        subscript_with_a_number,
        slice_of_a_tile_size,
        two_ellipses,
    ],
    ids=lambda k: k.name,
)
def test_what_cannot_be_an_index(kernel: helion.Kernel) -> None:
    refusal(kernel, (mat(), vec()), exc.InvalidIndexingType, "cannot be used as an index", "here")


def test_tiles_of_values_have_no_elements() -> None:
    refusal(slice_of_a_value, (mat(), vec()), exc.InvalidAPIUsage, "0 cannot be an index of it", "here")


def test_boolean_index() -> None:
    @helion.kernel
    def kernel(x, out):
        for tile in hl.tile(x.size(0)):
            out[tile] = x[x[tile] > 0]  # here

    refusal(kernel, (vec(), vec()), exc.DataDependentOutputShapeNotSupported, "Indexing with a boolean tensor", "here")


def test_host_tensor_as_index() -> None:
    @helion.kernel
    def kernel(x, index, out):
        for tile in hl.tile(x.size(0)):
            out[tile] = x[index]  # here

    refusal(kernel, (vec(), vec(8, torch.int64), vec()), exc.HostTensorDirectUsage, "'index'", "here")


def test_constant_index_out_of_range() -> None:
    @helion.kernel
    def kernel(x, out):
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile, 8]  # here

    refusal(kernel, (mat(), vec()), exc.InvalidAPIUsage, "Index 8 is out of range for dimension 1 of 'x'", "here")


def test_tile_past_the_end_of_a_shorter_tensor() -> None:
    @helion.kernel
    def kernel(x, y):
        for tile in hl.tile(x.size(0)):
            x[tile] = x[tile] + y[tile]  # here

    refusal(kernel, (vec(9), vec(5)), exc.BaseError, "'y'", "here")


def test_list_indexed_by_a_device_value() -> None:
    @helion.kernel
    def kernel(xs, out):
        for tile in hl.tile(out.size(0)):
            for i in hl.grid(2):
                out[tile] = xs[i][tile]  # here

    refusal(kernel, ([vec(), vec()], vec()), exc.InvalidSequenceSubscription, "constant integer", "here")


# --- shapes -------------------------------------------------------------------------------------------------------------


@helion.kernel
def add_of_two_tiles(x, out):
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, 0] + x[0, b]  # here


@helion.kernel
def store_of_another_tile(x, out):
    for a, b in hl.tile(x.size()):
        out[a, b] = x[b, a]  # here


@helion.kernel
def product_with_other_inner_dimension(x, out):
    for a, b in hl.tile(x.size()):
        out[a, b] = hl.dot(x[a, :], x[a, b])  # here


@helion.kernel
def carried_value_changes_shape(x, out):
    for a in hl.tile(x.size(0)):
        acc = hl.zeros([a])
        for b in hl.tile(x.size(1)):
            acc += x[a, b]  # here
        out[a, 0] = acc


@helion.kernel
def reshape_to_another_size(x, out):
    for a in hl.tile(x.size(0)):
        out[a, :] = x[a, :].reshape([a, 4])  # here


@pytest.mark.parametrize(
    "kernel",
    [
        add_of_two_tiles, store_of_another_tile, product_with_other_inner_dimension, carried_value_changes_shape,
        reshape_to_another_size,
    ],
    ids=lambda k: k.name,
)  # fmt: skip
def test_mismatched_shapes(kernel: helion.Kernel) -> None:
    refusal(kernel, (mat(), mat()), exc.ShapeMismatch, "Shapes do not match", "here")


def test_mismatched_whole_dimensions() -> None:
    @helion.kernel
    def kernel(x, y):
        for tile in hl.tile(x.size(0)):
            x[tile, :] = x[tile, :] + y[tile, :]  # here

    refusal(kernel, (mat(8, 8), mat(8, 7)), exc.ShapeMismatch, r"\[tile, 8\] and \[tile, 7\]", "here")


def test_batches_of_a_product_differ() -> None:
    @helion.kernel
    def kernel(x, out):
        for a, b in hl.tile([4, 4]):
            out[a, :, :] = torch.bmm(x[a, :, :], x[b, :, :])  # here

    refusal(kernel, (torch.zeros(4, 16, 16), torch.zeros(4, 16, 16)), exc.DotBatchDimensionMismatch, "batch", "here")


def test_carried_value_changes_dtype() -> None:
    @helion.kernel
    def kernel(x, out):
        for a in hl.tile(x.size(0)):
            acc = hl.zeros([a], dtype=torch.float16)
            for b in hl.tile(x.size(1)):  # here
                acc = acc + x[a, b].sum(-1)
            out[a] = acc

    pattern = "Variable 'acc' is float16.* before the loop and float32.* at its end"
    refusal(kernel, (mat(), vec()), exc.ControlFlowTensorMismatch, pattern, "here")


def test_branches_give_other_dtypes() -> None:
    @helion.kernel
    def kernel(x, out):
        for a in hl.tile(x.size(0)):
            v = x[a]
            if x[0] > 0:  # here
                v = v.to(torch.float16)
            out[a] = v

    refusal(kernel, (vec(), vec()), exc.ControlFlowTensorMismatch, "Variable 'v'", "here")


def test_branches_give_other_kinds() -> None:
    @helion.kernel
    def kernel(x, out):
        for a in hl.tile(x.size(0)):
            v = (x[a], 1)
            if x[0] > 0:  # here
                v = x[a]
            out[a] = v

    refusal(kernel, (vec(), vec()), exc.CantCombineTypesInControlFlow, "Variable 'v' is", "here")


def test_allocation_of_a_run_time_size() -> None:
    @helion.kernel
    def kernel(x, n: int):
        for tile in hl.tile(x.size(0)):
            v = hl.zeros([tile, n])  # here
            x[tile] = v.sum(-1)

    refusal(kernel, (vec(), 4), exc.ShapeSpecializingAllocation, r"mark it with hl\.specialize", "here")


def test_missing_dimension() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            x[tile] = x[tile].sum(1)  # here

    refusal(kernel, (vec(),), exc.InvalidReductionDim, "Dimension 1 does not exist", "here")


# --- host and device ----------------------------------------------------------------------------------------------------


@helion.kernel
def host_tensor_in_an_expression(x, y, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + y  # here


@helion.kernel
def host_tensor_on_the_left(x, y, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = y * x[tile]  # here


@helion.kernel
def host_tensor_in_a_function(x, y, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.exp(y)  # here


@helion.kernel
def host_tensor_in_a_method(x, y, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = y.sum(-1)  # here


@helion.kernel
def host_tensor_in_where(x, y, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.where(x[tile] > 0, y, 0.0)  # here


@helion.kernel
def host_tensor_in_dot(x, y, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = hl.dot(x[tile], y)  # here


@helion.kernel
def host_tensor_stored(x, y, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = y  # here


@helion.kernel
def host_tensor_negated(x, y, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = -y  # here


@helion.kernel
def host_tensor_compared(x, y, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.where(y > 0, 1.0, 0.0)  # here


@helion.kernel
def host_tensor_as_condition(x, y, out):
    for tile in hl.tile(x.size(0)):
        if y > 0:  # here
            out[tile] = x[tile]


@helion.kernel
def host_tensor_as_keyword(x, y, out):
    for tile in hl.tile(x.size(0)):
        out[tile] = F.layer_norm(x[tile, None], [1], weight=y)[:, 0]  # here


HOST_USES = (
    host_tensor_in_an_expression, host_tensor_on_the_left, host_tensor_in_a_function, host_tensor_in_a_method,
    host_tensor_in_where, host_tensor_in_dot, host_tensor_stored, host_tensor_negated, host_tensor_compared,
    host_tensor_as_condition, host_tensor_as_keyword,
)  # fmt: skip


@pytest.mark.parametrize("kernel", HOST_USES, ids=lambda k: k.name)
def test_host_tensor_used_directly(kernel: helion.Kernel) -> None:
    refusal(
        kernel, (vec(), vec(), vec()), exc.HostTensorDirectUsage, r"'y' is used directly .*as in `y\[tile\]`", "here"
    )


def test_assigning_a_host_tensor() -> None:
    @helion.kernel
    def kernel(x):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out = x[tile] * 2  # here
        return out

    refusal(
        kernel,
        (vec(),),
        exc.CannotModifyHostVariableOnDevice,
        r"'out' cannot be assigned.*`out\[tile\] = value`",
        "here",
    )


def test_assigning_a_host_tensor_in_place() -> None:
    @helion.kernel
    def kernel(x):
        out = torch.zeros_like(x)
        for tile in hl.tile(x.size(0)):
            out += x[tile]  # here
        return out

    refusal(kernel, (vec(),), exc.BaseError, "'out'", "here")


def test_assigning_a_host_number() -> None:
    @helion.kernel
    def kernel(x):
        count = 0
        for tile in hl.tile(x.size(0)):
            count += 1  # here
            x[tile] = count
        return x

    refusal(kernel, (vec(),), exc.CannotModifyHostVariableOnDevice, "'count'", "here")


def test_assigning_a_host_variable_that_nothing_reads() -> None:
    @helion.kernel
    def kernel(x):
        _, n = x.size()
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile, :], _ = x[tile, :] * n, x[tile, :].sum(-1)
        return out

    x = torch.randn(5, 7)
    torch.testing.assert_close(kernel(x), x * 7)


def test_adding_to_a_host_variable_reads_it() -> None:
    @helion.kernel
    def kernel(x):
        _ = 0
        for tile in hl.tile(x.size(0)):
            _ += 1  # here
            x[tile] = 1.0
        return x

    refusal(kernel, (vec(),), exc.CannotModifyHostVariableOnDevice, "'_'", "here")


def test_loop_variable_that_is_a_host_variable() -> None:
    @helion.kernel
    def kernel(x):
        for x in hl.tile(x.size(0)):  # here
            pass

    refusal(kernel, (vec(),), exc.CannotModifyHostVariableOnDevice, "'x'", "here")


def test_reading_a_device_value_on_the_host() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            total = x[tile].sum(0)
            x[tile] = total
        return total  # here

    refusal(
        kernel,
        (vec(),),
        exc.CannotReadDeviceVariableOnHost,
        r"'total' is a device value.*`out\[tile\] = total`",
        "here",
    )


def test_item_assignment_to_a_device_value() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            v = x[tile]
            v[0] = 3.0  # here
            x[tile] = v

    refusal(kernel, (vec(),), exc.DeviceTensorSubscriptAssignmentNotAllowed, "'v' is a device value", "here")


def test_item_augmented_assignment_to_a_device_value() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            v = x[tile]
            v[:] += 3.0  # here
            x[tile] = v

    refusal(kernel, (vec(),), exc.DeviceTensorSubscriptAssignmentNotAllowed, "'v' is a device value", "here")


def test_text_as_an_operand() -> None:
    @helion.kernel
    def kernel(x, name):
        for tile in hl.tile(x.size(0)):
            x[tile] = x[tile] * name  # here

    refusal(kernel, (vec(), "a"), exc.TypeInferenceError, "'a' was used in mul", "here")


def test_misspelt_name_of_a_module() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            x[tile] = torch.sigmod(x[tile])  # here

    refusal(
        kernel, (vec(),), exc.TypeInferenceError, "the module torch has no attribute 'sigmod'; did you mean", "here"
    )


def test_name_of_a_function_of_a_submodule() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            x[tile] = torch.fft.fft(x[tile])  # here

    refusal(kernel, (vec(),), exc.UnsupportedTorchFunction, "torch.fft.fft is not supported", "here")


def test_storing_something_that_is_no_tensor() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            x[tile] = "a"  # here

    refusal(kernel, (vec(),), exc.RequiresTensorInAssignment, "Only a tensor or a number", "here")


def test_item_assignment_to_a_list_on_the_device() -> None:
    @helion.kernel
    def kernel(x):
        parts = [0, 1]
        for tile in hl.tile(x.size(0)):
            parts[0] = x[tile]  # here
            x[tile] = parts[0]

    refusal(kernel, (vec(),), exc.NonTensorSubscriptAssign, "Item assignment works on tensors only", "here")


def test_appending_to_a_host_list_on_the_device() -> None:
    @helion.kernel
    def kernel(x):
        parts = []
        for tile in hl.tile(x.size(0)):
            parts.append(x[tile])  # here
            x[tile] = 0
        return parts

    refusal(kernel, (vec(),), exc.BaseError, "append|parts", "here")


def test_block_shaped_condition() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            if x[tile] > 0:  # here
                x[tile] = 0

    refusal(kernel, (vec(),), exc.ConditionNotScalar, r"`if x\[tile\] > 0` has the shape .*torch\.where", "here")


def test_block_shaped_elif() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            if x[0] > 0:
                x[tile] = 1
            elif x[tile] > 0:  # here
                x[tile] = 0

    refusal(kernel, (vec(),), exc.ConditionNotScalar, "torch.where", "here")


def test_and_of_block_shaped_values() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            x[tile] = torch.where(x[tile] > 0 and x[tile] < 2, 1.0, 0.0)  # here

    refusal(kernel, (vec(),), exc.ConditionNotScalar, "has the shape", "here")


def test_conditional_expression_on_a_tile() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            x[tile] = 1.0 if x[tile] > 0 else 0.0  # here

    refusal(
        kernel, (vec(),), exc.ConditionNotScalar, r"`1.0 if x\[tile\] > 0 else 0.0` has the shape.*torch\.where", "here"
    )


@pytest.mark.parametrize("other", ["None", "x[tile].sum()", "x[tile].to(torch.int32)", "True"])
def test_conditional_expression_of_two_kinds(other: str, tmp_path: Path) -> None:
    text = "import torch, helion.language as hl\ndef kernel(x):\n    for tile in hl.tile(x.size(0)):\n"
    kernel = load(f"{text}        x[tile] = x[tile] if x[0] > 0 else {other}  # here\n", tmp_path, "two_kinds").kernel
    error = exc.CantCombineTypesInControlFlow if other == "None" else exc.ControlFlowTensorMismatch
    with pytest.raises(error, match="conditional value") as caught:
        helion.kernel(kernel).bind((vec(),))
    assert "# here" in str(caught.value)


def test_variable_of_one_branch() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            if x[0] > 0:
                v = x[tile]
            x[tile] = v  # here

    refusal(kernel, (vec(),), exc.UndefinedVariable, "'v' is not defined on every path through the if", "here")


def test_variable_of_an_inner_loop() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            for i in hl.grid(4):
                v = x[i]
            x[tile] = v  # here

    refusal(kernel, (vec(),), exc.UndefinedVariable, "'v' is not defined after the loop", "here")


def test_inner_tile_after_its_loop() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            for inner in hl.tile(x.size(1)):
                x[tile, inner] = 0
            x[tile, inner] = 1  # here

    refusal(kernel, (mat(),), exc.UndefinedVariable, "'inner' is not defined after the loop", "here")


def test_inner_tile_that_escapes_its_loop() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            kept = tile
            for inner in hl.tile(x.size(1)):
                kept = inner
                x[tile, inner] = 0
            x[tile, kept] = 1  # here

    with pytest.raises(exc.BaseError) as caught:
        kernel.bind((mat(),))
    assert FILE in str(caught.value)


def test_unknown_name() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            x[tile] = nothing  # noqa: F821 # here

    refusal(kernel, (vec(),), exc.UndefinedVariable, "The name 'nothing' is not defined", "here")


def test_kernel_called_from_a_kernel() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            x[tile] = copy_rows(x[tile])  # here

    refusal(kernel, (vec(),), exc.NestedKernelCallsNotSupported, "'copy_rows' is called from inside", "here")


# --- torch functions ----------------------------------------------------------------------------------------------------


def torch_kernel(expression: str, directory: Path) -> tuple[helion.Kernel, str]:
    """A kernel in a file of its own that stores ``expression`` of ``v = x[tile, :]``."""
    path = directory / f"kernel_{abs(hash(expression))}.py"
    line = f"        out[tile, :] = {expression}"
    path.write_text(
        "import torch\nimport torch.nn.functional as F\nimport helion\nimport helion.language as hl\n"
        "@helion.kernel\ndef kernel(x, out):\n    for tile in hl.tile(x.size(0)):\n        v = x[tile, :]\n"
        + line
        + "\n"
    )
    namespace: dict[str, Any] = {"__name__": path.stem}
    linecache.checkcache()
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    return namespace["kernel"], line.strip()


UNSUPPORTED = {
    "torch.flip(v, [0])": "flip",
    "torch.cat([v, v], 0)": "cat",
    "torch.sort(v, 0)[0]": "sort",
    "torch.sort(v.double())[0]": "sort",
    "v.topk(2, 0)[0]": "topk",
    "torch.outer(v, v)": "outer|Shapes",
    "torch.mode(v, 1)[0]": "mode",
    "torch.diff(v, dim=0)": "diff",
    "torch.index_select(v, 1, v.long())": "index_select",
    "v.narrow(0, 0, 2)": "narrow",
    "v.repeat(2, 1)": "repeat",
    "F.pad(v, [0, 0, 1, 1])": "pad",
    "F.pad(v, [1, 1], mode='reflect')": "pad",
    "torch.randint_like(v, 4)": "randint_like",
    "v.chunk(2, 0)[0]": "chunk",
    "torch.split(v, 4, 0)[0]": "split",
    "v.unbind(0)[0]": "unbind",
    "torch.nonzero(v)": "nonzero",
    "torch.einsum('ii->i', v)": "einsum",
    "torch.linalg.norm(v)": "norm",
    "v.scatter(1, v.long(), v)": "scatter",
    "torch.repeat_interleave(v, 2)": "repeat_interleave",
    "torch.bernoulli(v)": "bernoulli",
    "v.item()": "item",
    "v.numpy()": "numpy",
    "v.data_ptr()": "data_ptr",
    "v.tolist()": "tolist",
    "v.add_(1)": "add_",
    "v.exp_()": "exp_",
    "v.fill_(1)": "fill_",
    "torch.add(v, 1, out=v)": "add",
    "F.relu(v, inplace=True)": "relu",
    "v.unfold(1, 2, 1)": "unfold",
    "v.as_strided([2], [1])": "as_strided",
    "torch.tensor([1.0])": "tensor",
    "torch.logspace(0, 1, 8)": "logspace",
    "torch.complex(v, v)": "complex",
    "torch.histc(v)": "histc",
    "torch.searchsorted(v, v)": "searchsorted",
    "torch.rot90(v)": "rot90",
    "torch.trace(v)": "trace",
    "torch.diag(v)": "diag",
    "v.masked_select(v > 0)": "masked_select",
    "F.glu(v, 0)": "glu",
    "F.cross_entropy(v, v)": "cross_entropy",
    "F.batch_norm(v, v, v)": "batch_norm",
    "F.conv1d(v, v)": "conv1d",
    "F.scaled_dot_product_attention(v, v, v)": "scaled_dot_product_attention",
    "F.one_hot(v.long())": "one_hot",
    "torch.bucketize(v, v)": "bucketize",
    "v.numel_nonsense()": "numel_nonsense",
    "torch.norm(v, p=0, dim=1, keepdim=True)": "norm",
}


@pytest.mark.parametrize("expression", UNSUPPORTED)
def test_unsupported_torch_function(expression: str, tmp_path: Path) -> None:
    kernel, line = torch_kernel(expression, tmp_path)
    with pytest.raises(exc.BaseError) as caught:
        kernel.bind((mat(), mat()))
    message = str(caught.value)
    assert re.search(UNSUPPORTED[expression], message.split("\n")[0])
    assert str(tmp_path) in message
    assert line in message
    assert not isinstance(caught.value, exc.InternalError)


BAD_CALLS = {
    "torch.exp(v, v)": "exp",
    "torch.softmax(v)": "softmax",
    "F.softmax(v)": "softmax",
    "torch.where(v > 0)": "where",
    "torch.where(v, v, v)": "where|condition",
    "v.mean(5)": "Dimension 5",
    "v.long().mean(-1, keepdim=True)": "mean",
    "v.sum(-1, keepdims_=True)": "sum",
    "v & v": "and",
    "~v": "not",
    "v << 1": "shift|lshift",
    "v @ v[0]": "index",
    "v.permute(0)": "permut",
    "v.view(-1, -1)": "-1|view",
    "v.sum([1, 1], keepdim=True)": "twice",
    "torch.clamp(v)": "clamp",
    "v.to('cuda')": "device",
    "v.shape[5]": "Dimension 5 is out of range",
    "len(v, v)": "len",
    "hl.zeros()": "zeros",
    "hl.full([tile], 1.0, 2.0, 3.0, 4.0)": "full",
    "v if v > 0 else v": "torch.where",
    "[a for a in v]": "iterate",
    "v.real": "real",
    "v.grad": "grad",
    "undefined_function(v)": "undefined_function",
    "v + 'a'": "add|str",
    "v + None": "add|None",
    "v[0]": "index",
    "1 / 0": "ZeroDivisionError",
    "math_is_missing.exp(v)": "math_is_missing",
    "hl.load(x, [tile, tile, tile])": "Expected 2 indices",
    "hl.load(x, [tile, 0], extra_mask=v)": "extra_mask|mask",
    "hl.load(x, [tile, 0], extra_mask=v > 0)": "extra_mask",
    "hl.load(v, [tile])": "host tensors",
    "hl.load(x, [tile], eviction_policy='sometimes')": "eviction_policy",
    "hl.dot(v, v.to(torch.int64))": "int64",
    "hl.tile_index(v)": "takes a tile",
    "max(v)": "max|iterate|value",
    "round(v)": "round",
    "print(v)": "print",
    "breakpoint()": "breakpoint",
    "open('/nonexistent/file')": "open|nonexistent",
    "(yield v)": "yield",
    "v.expand(-1, -1, -1, 2)": "expand",
    "torch.float32(v)": r"torch\.float32",
}


@pytest.mark.parametrize("expression", BAD_CALLS)
def test_wrong_expression(expression: str, tmp_path: Path) -> None:
    kernel, line = torch_kernel(expression, tmp_path)
    with pytest.raises(exc.BaseError, match=BAD_CALLS[expression]) as caught:
        kernel.bind((mat(), mat()))
    assert line in str(caught.value)
    assert not isinstance(caught.value, exc.InternalError)


def test_unsupported_function_shows_the_line_of_a_called_function() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            x[tile] = middle_values(x[tile])

    with pytest.raises(exc.UnsupportedTorchFunction, match="torch.mode is not supported in device code") as caught:
        kernel.bind((vec(),))
    shown_line(str(caught.value), middle_values, "there")


def middle_values(v: torch.Tensor) -> torch.Tensor:
    return torch.mode(v, 0)[0]  # there


def test_integer_in_place_addition_of_a_float() -> None:
    @helion.kernel
    def kernel(x, y):
        for tile in hl.tile(x.size(0)):
            v = x[tile]
            v += y[tile]  # here
            x[tile] = v

    refusal(kernel, (vec(8, torch.int64), vec()), exc.BaseError, "int64", "here")


# --- statements ---------------------------------------------------------------------------------------------------------


@helion.kernel
def device_return(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = 0
        return x  # here


@helion.kernel
def device_assert(x):
    for tile in hl.tile(x.size(0)):
        assert x.size(0) == 8  # here
        x[tile] = 0


@helion.kernel
def device_raise(x):
    for tile in hl.tile(x.size(0)):
        raise ValueError  # here


@helion.kernel
def device_try(x):
    for tile in hl.tile(x.size(0)):
        try:  # here
            x[tile] = 0
        finally:
            pass


@helion.kernel
def device_with(x):
    for tile in hl.tile(x.size(0)):
        with torch.no_grad():  # here
            x[tile] = 0


@helion.kernel
def device_break(x):
    for tile in hl.tile(x.size(0)):
        x[tile] = 0
        break  # here


@helion.kernel
def device_continue(x):
    for tile in hl.tile(x.size(0)):
        for i in hl.grid(3):
            x[tile] = i
            continue  # here


@helion.kernel
def device_del(x):
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        del v  # here


@helion.kernel
def device_global(x):
    for tile in hl.tile(x.size(0)):
        global FILE  # here
        x[tile] = 0


STATEMENTS = (
    device_return, device_raise, device_try, device_with, device_break, device_continue,
    device_del, device_global,
)  # fmt: skip


@pytest.mark.parametrize("kernel", STATEMENTS, ids=lambda k: k.name)
def test_statement_on_the_device(kernel: helion.Kernel) -> None:
    refusal(kernel, (vec(),), exc.NotAllowedOnDevice, "is not allowed in device code", "here")


def test_an_assertion_on_the_device() -> None:
    refusal(
        device_assert, (vec(),), exc.StatementNotSupported, "An assert statement is not supported in device", "here"
    )


def test_a_barrier_in_a_loop() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            hl.barrier()  # here
            x[tile] = 0

    refusal(kernel, (vec(),), exc.BarrierOnlyAllowedAtTopLevel, "between two device loops", "here")


def test_a_branch_on_what_the_host_reads_off_a_tensor() -> None:
    @helion.kernel
    def kernel(x):
        n = x.sum().item()
        if n > 0:  # here
            for tile in hl.tile(x.size(0)):
                x[tile] = n

    refusal(kernel, (vec(),), exc.TypeInferenceError, r"A branch on the `\.item\(\)` of a tensor", "here")


def test_attribute_assignment() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            x.name = 1  # here
            x[tile] = 0

    refusal(kernel, (vec(),), exc.InvalidAssignment, r"`x\.name` cannot be assigned", "here")


def test_star_argument_of_a_value() -> None:
    @helion.kernel
    def kernel(x):
        for tile in hl.tile(x.size(0)):
            x[tile] = torch.maximum(*x[tile])  # here

    refusal(kernel, (vec(),), exc.StarredArgsNotSupportedOnDevice, "Star arguments", "here")


@helion.kernel
def host_global(x):
    global FILE  # here
    for tile in hl.tile(x.size(0)):
        x[tile] = 0


@helion.kernel
def host_nonlocal(x):
    n = 0

    def count():
        nonlocal n  # here
        n = n + 1

    count()
    for tile in hl.tile(x.size(0)):
        x[tile] = n


@pytest.mark.parametrize("kernel", [host_global, host_nonlocal], ids=lambda k: k.name)
def test_statement_on_the_host(kernel: helion.Kernel) -> None:
    refusal(kernel, (vec(),), exc.StatementNotSupported, "is not supported in host code; return the value", "here")


def test_branch_on_the_values_of_a_host_tensor() -> None:
    @helion.kernel
    def kernel(x):
        if x[0] > 0:  # here
            for tile in hl.tile(x.size(0)):
                x[tile] = 1

    refusal(kernel, (vec(),), exc.TypeInferenceError, "not known when the kernel is compiled", "here")


def test_host_assertion_that_fails() -> None:
    @helion.kernel
    def kernel(x):
        assert x.size(0) == 4, "four rows"
        for tile in hl.tile(x.size(0)):
            x[tile] = 0

    with pytest.raises(AssertionError, match="four rows"):
        kernel.bind((vec(8),))


# --- configs ------------------------------------------------------------------------------------------------------------

BAD_CONFIGS = [
    ({"block_sizes": [8, 8, 8]}, "block_sizes"),
    ({"block_sizes": [8]}, "block_sizes"),
    ({"block_sizes": [3, 8]}, "block_sizes.*3"),
    ({"block_sizes": [0, 8]}, "block_sizes"),
    ({"block_sizes": [-8, 8]}, "block_sizes"),
    ({"block_sizes": ["a", 8]}, "block_sizes"),
    ({"block_sizes": [True, 8]}, "block_sizes"),
    ({"block_sizes": 8}, "block_sizes"),
    ({"num_warps": 3}, "num_warps.*3"),
    ({"num_warps": 64}, "num_warps.*64"),
    ({"num_warps": 0}, "num_warps"),
    ({"num_warps": "4"}, "num_warps"),
    ({"num_warps": True}, "num_warps"),
    ({"num_warps": 4.0}, "num_warps"),
    ({"num_stages": 0}, "num_stages"),
    ({"num_stages": 99}, "num_stages"),
    ({"blok_sizes": [8, 8]}, r"Invalid config keys \['blok_sizes'\]"),
    ({"pid_type": "spiral"}, "pid_type.*spiral"),
    ({"indexing": "telepathy"}, "indexing"),
    ({"load_eviction_policies": ["sometimes"]}, "load_eviction_policies"),
    ({"loop_orders": [[0, 0]]}, "loop_orders"),
    ({"loop_orders": [[0, 1, 2]]}, "loop_orders"),
    ({"loop_orders": [[1, 0], [0, 1]]}, "loop_orders"),
    ({"l2_groupings": [0]}, "l2_groupings"),
    ({"l2_groupings": [3]}, "l2_groupings"),
    ({"reduction_loops": [8]}, "reduction_loops"),
    ({"num_sm_multiplier": 2}, "num_sm_multiplier"),
    ({"pid_type": "persistent_blocked", "num_sm_multiplier": 3}, "num_sm_multiplier"),
    ({"range_unroll_factors": [9, 9, 9]}, "range_unroll_factors"),
    ({"maxnreg": 33, "pid_type": "persistent_blocked"}, "maxnreg"),
]


@helion.kernel
def copy_both(x):
    out = torch.empty_like(x)
    for a, b in hl.tile(x.size()):
        out[a, b] = x[a, b]
    return out


@pytest.mark.parametrize("config, pattern", BAD_CONFIGS, ids=lambda v: str(v))
def test_invalid_config(config: dict[str, Any], pattern: str) -> None:
    bound = copy_both.bind((mat(16, 16),))
    with pytest.raises(exc.InvalidConfig, match=pattern):
        bound.compile_config(helion.Config(**config))
    with pytest.raises(exc.InvalidConfig, match=pattern):
        bound.to_triton_code(config)
    with pytest.raises(exc.InvalidConfig, match=pattern):
        helion.kernel(copy_both.fn, config=config)(mat(16, 16))


def test_both_spellings_of_a_key() -> None:
    with pytest.raises(exc.InvalidConfig, match="Both 'block_size' and 'block_sizes'"):
        helion.Config(block_size=8, block_sizes=[8])


def test_config_that_is_not_json() -> None:
    with pytest.raises(exc.InvalidConfig, match="must be a JSON object"):
        helion.Config.from_json("{")
    with pytest.raises(exc.InvalidConfig, match="got list"):
        helion.Config.from_json("[1]")


def test_xyz_grid_of_one_dimension() -> None:
    with pytest.raises(exc.InvalidConfig, match="pid_type"):
        copy_rows.bind((vec(),)).to_triton_code({"pid_type": "xyz"})


def test_unknown_target() -> None:
    with pytest.raises(exc.UnknownTarget, match="sm_12345"):
        copy_rows.bind((vec(),), target="sm_12345")


def test_index_dtype_too_small() -> None:
    kernel = helion.kernel(copy_rows.fn, index_dtype="int32")
    with pytest.raises(exc.InputTensorNumelExceedsIndexType, match="index_dtype=torch.int64"):
        kernel.bind((torch.empty(2**31 + 8, device="meta"),))


def test_offsets_that_int32_cannot_hold() -> None:
    kernel = helion.kernel(copy_both.fn, index_dtype="int32")
    huge = torch.empty_strided((4, 4), (2**30, 1), device="meta")
    with pytest.raises(exc.IndexOffsetOutOfRangeForInt32, match="index_dtype=torch.int64") as caught:
        kernel.bind((huge,))
    assert FILE in str(caught.value)


def _returns_early(value, factor):
    if factor > 1:
        return value * factor
    return value


def test_an_early_return_of_a_called_function_names_the_remedy() -> None:
    @helion.kernel(autotune_effort="none")
    def kernel(x: torch.Tensor, factor: int):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = _returns_early(x[tile], factor)
        return out

    error = exc.EarlyReturnNotAllowedOnDevice
    with pytest.raises(error, match="'_returns_early' .* assign the value to one variable in every branch"):
        kernel.bind((vec(), 3))
