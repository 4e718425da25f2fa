"""Arguments of kernels as text on a command line."""

from __future__ import annotations

import math

import pytest
import torch

from helion.cli.arguments import _split, parse_argument, parse_arguments


@pytest.mark.parametrize(
    ("text", "shape", "strides", "dtype"),
    [
        ("bf16[4096,8192]", (4096, 8192), (8192, 1), torch.bfloat16),
        ("f32[8192]", (8192,), (1,), torch.float32),
        ("bf16[4096,4096]@(1,4096)", (4096, 4096), (1, 4096), torch.bfloat16),
        ("i64[ 3, 4 ]", (3, 4), (4, 1), torch.int64),
        ("f16[]", (), (), torch.float16),
    ],
)
def test_tensor_arguments(text: str, shape: tuple, strides: tuple, dtype: torch.dtype) -> None:
    tensor = parse_argument(text)
    assert (tuple(tensor.shape), tensor.stride(), tensor.dtype) == (shape, strides, dtype)


@pytest.mark.parametrize(("text", "value"), [("1e-5", 1e-5), ("3", 3), ("True", True), ("None", None), ("'a'", "a")])
def test_literal_arguments(text: str, value: object) -> None:
    assert parse_argument(text) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q8[3]", "unknown dtype 'q8'"),
        ("f32[2,2]@(1)", "1 strides for 2"),
        ("a b", "neither a tensor"),
        ("f32[2", "neither a tensor"),
        ("x.y", "neither a tensor"),
        ("[f32[2], q8[3]]", "unknown dtype 'q8'"),
        ("f32[n]", "sizes and strides are integers"),
        ("f32[True]", "sizes and strides are integers"),
        ("f32[1.5]", "sizes and strides are integers"),
        ("f32[99999999999999999999]", "no tensor is so large"),
        ("no_such_module:f", "no module 'no_such_module'"),
        ("math:no_such_function", "math has no function 'no_such_function'"),
        ("math:pi", "math:pi is no function but float"),
    ],
)
def test_arguments_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_argument(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("torch.float32", torch.float32),
        ("bf16", torch.bfloat16),
        ("float8_e5m2", torch.float8_e5m2),
        ("inf", math.inf),
        ("-inf", -math.inf),
        ("(1, 'a', None)", (1, "a", None)),
        ("[2, (3.5, f16)]", [2, (3.5, torch.float16)]),
        ("{'n': -4, 'dtype': torch.int64}", {"n": -4, "dtype": torch.int64}),
        ("math:sqrt", math.sqrt),
        ("torch.nn.functional:silu", torch.nn.functional.silu),
    ],
)
def test_other_arguments(text: str, value: object) -> None:
    assert parse_argument(text) == value


def test_tensors_in_containers() -> None:
    first, (second,) = parse_argument("[bf16[4, 8], (f32[]@(),)]")
    assert first.shape == (4, 8) and first.dtype is torch.bfloat16 and first.is_meta
    assert second.shape == () and second.dtype is torch.float32


def test_positional_and_keyword_arguments() -> None:
    positional, keywords = parse_arguments(["f32[3]", "eps=1e-5", "name='a=b'", "act=torch:relu"])
    assert len(positional) == 1 and keywords == {"eps": 1e-5, "name": "a=b", "act": torch.relu}
    with pytest.raises(ValueError, match="without a name follows eps="):
        parse_arguments(["eps=1e-5", "f32[3]"])
    with pytest.raises(ValueError, match="eps= is given twice"):
        parse_arguments(["eps=1", "eps=2"])


@pytest.mark.parametrize(
    "text, count",
    [("f32[3, 4]@(1, 3), (1, 2), [3, {4: 'a,b'}]", 3), ("'a, \\', b', 2", 2), ("(1, 2)", 1), ("7,", 1), ("f32[],", 1)],
)
def test_several_in_one_text(text: str, count: int) -> None:
    positional, _ = parse_arguments([text])
    assert len(positional) == count
    for value, alone in zip(positional, (parse_argument(part) for part in _split(text)), strict=True):
        assert value.shape == alone.shape if isinstance(value, torch.Tensor) else value == alone


def test_names_in_one_text() -> None:
    positional, keywords = parse_arguments(["f32[3], eps=1e-5, act=torch:relu"])
    assert positional[0].shape == (3,) and keywords == {"eps": 1e-5, "act": torch.relu}
    with pytest.raises(ValueError, match="argument ''"):
        parse_arguments(["f32[3],, 2"])
