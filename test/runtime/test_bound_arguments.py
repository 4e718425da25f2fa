"""What a bound kernel keeps of its arguments, and which others it takes."""

from __future__ import annotations

import dataclasses
import gc
import weakref

import pytest
import torch

import helion
import helion.language as hl
from helion import exc


@helion.kernel(config=helion.Config(block_sizes=[16]))
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + y[tile]
    return out


@helion.kernel(config=helion.Config(block_sizes=[16]))
def scaled_if(x: torch.Tensor, k: int) -> torch.Tensor:
    out = torch.empty_like(x)
    factor = k if k > 2 else 1
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * factor
    return out


@helion.kernel
def doubled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * 2
    return out


@dataclasses.dataclass
class Scaled:
    x: torch.Tensor
    k: int


@helion.kernel(config=helion.Config(block_sizes=[16]))
def of_dataclass(argument: Scaled) -> torch.Tensor:
    out = torch.empty_like(argument.x)
    for tile in hl.tile(argument.x.size(0)):
        out[tile] = argument.x[tile] * argument.k
    return out


def test_arguments_are_not_kept_alive() -> None:
    x, y = torch.randn(63), torch.randn(63)
    seen = weakref.ref(x)
    add(x, y)
    add(x, y)
    del x
    gc.collect()
    assert seen() is None


def test_a_script_is_written_when_the_arguments_are_gone() -> None:
    bound = add.bind((torch.randn(77), torch.randn(77)))
    gc.collect()
    assert "_random((77,), (1,), torch.float32, 'cuda')" in bound.to_triton_code(emit_repro_caller=True)


def test_bound_without_data_runs_on_data() -> None:
    bound = add.bind((torch.empty(63, device="meta"), torch.empty(63, device="meta")))
    x, y = torch.randn(63) + 3, torch.randn(63)
    torch.testing.assert_close(bound(x, y), x + y)


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ((torch.ones(64), torch.ones(63)), r"x is \(torch.float32, \(64,\), \(1,\)\), bound for .*\(63,\)"),
        ((torch.ones(63), torch.ones(63).half()), r"y is \(torch.float16"),
        ((torch.ones(63, 2)[:, 0], torch.ones(63)), r"x is \(torch.float32, \(63,\), \(2,\)\)"),
        ((torch.ones(63),) * 2, "memory shared is"),
    ],
)
def test_other_arguments_are_refused(args: tuple[torch.Tensor, ...], named: str) -> None:
    bound = add.bind((torch.ones(63), torch.ones(63)))
    with pytest.raises(helion.exc.BoundToOtherArguments, match=f"'add' was bound for other arguments: {named}"):
        bound(*args)
    with pytest.raises(helion.exc.BoundToOtherArguments, match=f"'add' was bound for other arguments: {named}"):
        bound.compile_config()(*args)


@pytest.mark.parametrize("indexing", ["pointer", "tensor_descriptor"])
def test_a_config_has_one_function(indexing: str) -> None:
    bound = doubled.bind((torch.ones(64, 64),), target="h200")
    config = {"block_sizes": [16, 16], "indexing": indexing}
    assert bound.compile_config(config) is bound.compile_config(config)


def test_other_numbers_are_refused_where_they_are_compiled_in() -> None:
    x = torch.randn(63)
    bound = scaled_if.bind((x, 3))
    torch.testing.assert_close(bound(x, 3), 3 * x)
    with pytest.raises(helion.exc.BoundToOtherArguments, match="is 2, bound for 3"):
        bound(x, 2)
    with pytest.raises(helion.exc.BoundToOtherArguments, match="is 2, bound for 3"):
        bound.compile_config()(x, k=2)
    torch.testing.assert_close(scaled_if(x, 2), x)


def test_dataclasses_are_arguments() -> None:
    x = torch.randn(63)
    torch.testing.assert_close(of_dataclass(Scaled(x, 3)), 3 * x)
    torch.testing.assert_close(of_dataclass(Scaled(x, 4)), 4 * x)
    eager = helion.kernel(of_dataclass.fn, ref_mode=helion.RefMode.EAGER)
    torch.testing.assert_close(eager(Scaled(x, 3)), 3 * x)


def test_dataclasses_are_not_kept_alive() -> None:
    argument = Scaled(torch.randn(65), 3)
    seen = weakref.ref(argument.x)
    of_dataclass(argument)
    del argument
    gc.collect()
    assert seen() is None


@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_refused(make) -> None:
    sparse = make(torch.eye(8))
    with pytest.raises(TypeError, match=r"layout torch\.sparse_.*to_dense"):
        add(sparse, sparse)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_nested_tensors_are_refused() -> None:
    """Torch ends the process where one is asked for its strides."""
    nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(4)])
    with pytest.raises(TypeError, match="nested tensor.*to_padded_tensor"):
        add.bind((nested, nested))
    for _ in range(2):
        with pytest.raises(exc.UnsupportedTensor, match="'y' is a nested tensor"):
            add(torch.ones(8), nested)
        add(torch.ones(8), torch.ones(8))
