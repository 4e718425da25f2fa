"""What no GPU computes is refused by name, with what to do instead, on CPU tensors too."""

from __future__ import annotations

import enum
from collections.abc import Callable

import numpy as np
import pytest
import torch

import helion
import helion.language as hl
from helion import exc

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
NARROW = (torch.int16, torch.int8, torch.uint8, torch.uint16, torch.bool, *FLOAT8)
WIDE = (torch.int32, torch.int64, torch.uint32, torch.uint64, torch.float32, torch.float64)
ATOMICS = ("add", "max", "min", "and", "or", "xor", "xchg", "cas")
REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda v: v.sum(-1),
    "prod": lambda v: v.prod(-1),
    "amax": lambda v: v.amax(-1),
    "amin": lambda v: v.amin(-1),
    "max": lambda v: v.max(-1)[0],
    "argmax": lambda v: v.argmax(-1),
    "argmin": lambda v: v.argmin(-1),
    "cumsum": lambda v: v.cumsum(-1).sum(-1),
    "reduce": lambda v: hl.reduce(lambda a, b: torch.where(a > b, a, b), v, -1),
    "scan": lambda v: hl.associative_scan(lambda a, b: torch.where(a > b, a, b), v, -1).to(torch.float32).sum(-1),
}


@helion.kernel(config=helion.Config(block_sizes=[8]))
def update(x: torch.Tensor, name: hl.constexpr) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0)):
        if name == "add":
            hl.atomic_add(out, [tile], x[tile])
        elif name == "max":
            hl.atomic_max(out, [tile], x[tile])
        elif name == "min":
            hl.atomic_min(out, [tile], x[tile])
        elif name == "and":
            hl.atomic_and(out, [tile], x[tile])
        elif name == "or":
            hl.atomic_or(out, [tile], x[tile])
        elif name == "xor":
            hl.atomic_xor(out, [tile], x[tile])
        elif name == "xchg":
            hl.atomic_xchg(out, [tile], x[tile])
        else:
            hl.atomic_cas(out, [tile], out[tile], x[tile])
    return out


@helion.kernel
def reduced(x: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    out = torch.empty(x.size(0), dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = function(x[tile, :]).to(torch.float32)
    return out


@helion.kernel
def widened(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size(0), dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile].to(torch.float32)
    return out


def is_legal(name: str, dtype: torch.dtype) -> bool:
    if name in ("and", "or", "xor") and dtype.is_floating_point:
        return False
    if name == "cas" and dtype.itemsize == 2:
        return True
    return dtype in WIDE or (name == "add" and dtype in (torch.float16, torch.bfloat16))


@pytest.mark.parametrize("name", ATOMICS)
def test_atomics_by_dtype(name: str) -> None:
    for dtype in (*NARROW, torch.float16, torch.bfloat16, *WIDE):
        x = torch.arange(4).to(dtype)
        eager = helion.kernel(update.fn, ref_mode=helion.RefMode.EAGER)
        if is_legal(name, dtype):
            if name not in ("min", "and"):
                assert update(x, name).tolist() == x.tolist()
            continue
        for kernel in (update, eager):
            with pytest.raises(exc.TypeInferenceError, match=f"hl.atomic_{name}.*{dtype}"):
                kernel(x, name)
        with pytest.raises(exc.TypeInferenceError, match=f"hl.atomic_{name}"):
            update.bind((x, name), target="sm_90")


@pytest.mark.prove
@pytest.mark.parametrize("name", ATOMICS)
def test_all_atomics_compile_or_are_refused(name: str) -> None:
    for target in ("sm_80", "sm_90", "sm_100"):
        for dtype in (*NARROW, torch.float16, torch.bfloat16, *WIDE):
            x = torch.arange(4).to(dtype)
            try:
                assert update.bind((x, name), target=target).resources().registers > 0
            except (exc.TypeInferenceError, exc.BackendUnsupported):
                assert not is_legal(name, dtype) or dtype in FLOAT8


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_8_bit_floats(name: str, dtype: torch.dtype) -> None:
    x = torch.rand(4, 8).to(dtype)
    for target in (None, "sm_90"):
        with pytest.raises((exc.TypeInferenceError, exc.TorchOpTracingError)) as caught:
            reduced.bind((x, REDUCTIONS[name]), target=target)
        assert str(dtype) in str(caught.value) or "Float8" in str(caught.value)
    if name in ("sum", "amax", "argmax"):
        assert "convert to torch.float32 first" in str(caught.value)


@pytest.mark.prove
@pytest.mark.parametrize("name", REDUCTIONS)
def test_all_reductions_compile_or_are_refused(name: str) -> None:
    for dtype in (*NARROW, torch.float16, torch.bfloat16, *WIDE):
        x = torch.randint(0, 3, (4, 8)).to(dtype)
        try:
            bound = reduced.bind((x, REDUCTIONS[name]), target="sm_90")
        except (exc.TypeInferenceError, exc.TorchOpTracingError, exc.UnsupportedTorchFunction):
            continue
        assert bound.resources().registers > 0


@pytest.mark.parametrize(
    "dtype", [torch.complex64, torch.complex128, torch.bits8, torch.uint4, torch.float8_e8m0fnu], ids=str
)
def test_dtypes_that_triton_lacks(dtype: torch.dtype) -> None:
    x = torch.empty(4, dtype=dtype)
    remedy = "view_as_real" if dtype.is_complex else "torch.uint8"
    for target in (None, "sm_90", "gfx942"):
        with pytest.raises(exc.TypeInferenceError, match=f"{dtype} is not supported in device code: .*{remedy}"):
            widened.bind((x,), target=target)


def test_8_bit_floats_of_amd_on_nvidia() -> None:
    x = torch.zeros(4, dtype=torch.float8_e4m3fnuz)
    with pytest.raises(exc.BackendUnsupported, match="float8_e4m3fnuz on sm_90"):
        widened.bind((x,), target="sm_90")


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (Colour.RED, "hl.constexpr"),
        (np.ones(3), "torch.from_numpy"),
        (np.float32(2), "float"),
        (range(3), "a tuple of its items"),
        ({1}, "a tuple of its items"),
        (1j, "real and imaginary part"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_arguments_that_kernels_do_not_take(value: object, remedy: str) -> None:
    with pytest.raises(TypeError, match=remedy):
        reduced(torch.ones(4, 8), value)


@pytest.mark.parametrize(("dtypes", "message"), [
    ((torch.uint8, torch.uint8), r"A matmul of torch\.uint8 is not supported; convert the left operand"),
    ((torch.int8, torch.uint8), r"A matmul of torch\.uint8 is not supported; convert the right operand"),
    ((torch.float8_e4m3fn, torch.float8_e5m2), r"of torch\.float8_e4m3fn and torch\.float8_e5m2 is not supported; convert one"),
])  # fmt: skip
def test_products_of_dtypes_without_tensor_cores(dtypes: tuple[torch.dtype, ...], message: str) -> None:
    x, y = (torch.ones(16, 16).to(dtype) for dtype in dtypes)

    @helion.kernel(config=helion.Config(block_sizes=[16]))
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty([16, 16], dtype=torch.float32)
        for tile in hl.tile(16):
            out[tile, :] = hl.dot(x[tile, :], y[:, :]).float()
        return out

    with pytest.raises(helion.exc.TypeInferenceError, match=message):
        kernel(x, y)
