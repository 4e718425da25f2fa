"""``hl.dot_scaled``: values against eager decoding, offline compilation, and what is refused."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion.backends.triton import capabilities
from helion.backends.triton.resources.matrix import tile_shape
from helion.runtime.ref_mode import run_reference

Args = tuple[torch.Tensor, torch.Tensor | None, torch.Tensor, torch.Tensor | None, str, str]

_POSITIVE = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = torch.cat([_POSITIVE, -_POSITIVE])
DTYPES = {
    "e2m1": torch.uint8,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


# --- kernels ------------------------------------------------------------------------------------------------------------


@helion.kernel
def whole_rows(x, x_scale, y, y_scale, left: hl.constexpr, right: hl.constexpr) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for a, b in hl.tile(out.size()):
        out[a, b] = hl.dot_scaled(x[a, :], x_scale[a, :], left, y[:, b], y_scale[b, :], right)
    return out


@helion.kernel
def by_groups(x, x_scale, y, y_scale, left: hl.constexpr, right: hl.constexpr) -> torch.Tensor:
    m, groups = x_scale.size()
    n = y_scale.size(0)
    wide, high = x.size(1) // groups, y.size(0) // groups
    x, y = x.view(m, groups, wide), y.view(groups, high, n)
    out = torch.empty([m, n], dtype=torch.float32, device=x.device)
    for a, b in hl.tile([m, n]):
        acc = hl.zeros([a, b])
        for k in hl.tile(groups):
            lhs = x[a, k, :].reshape(a, k.block_size * wide)
            rhs = y[k, :, b].reshape(k.block_size * high, b)
            acc = hl.dot_scaled(lhs, x_scale[a, k], left, rhs, y_scale[b, k], right, acc=acc)
        out[a, b] = acc
    return out


@helion.kernel
def fixed_tiles(x, x_scale, y, y_scale, left: hl.constexpr, right: hl.constexpr) -> torch.Tensor:
    groups = x_scale.size(1)
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for a, b in hl.tile(out.size()):
        acc = hl.zeros([a, b])
        for k in hl.tile(x.size(1), block_size=64):
            group = k.begin // 32 + hl.arange(2)
            inside = (group < groups)[None, :]
            lhs_scale = hl.load(x_scale, [a, group], extra_mask=inside)
            rhs_scale = hl.load(y_scale, [b, group], extra_mask=inside)
            acc = hl.dot_scaled(x[a, k], lhs_scale, left, y[k, b], rhs_scale, right, acc=acc)
        out[a, b] = acc
    return out


@helion.kernel
def by_positions(x, x_scale, y, y_scale, left: hl.constexpr, right: hl.constexpr) -> torch.Tensor:
    """As ``by_groups``, with matrices as they are."""
    groups = x_scale.size(1)
    wide, high = x.size(1) // groups, y.size(0) // groups
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for a, b in hl.tile(out.size()):
        acc = hl.zeros([a, b])
        for k in hl.tile(groups):
            column = k.begin * wide + hl.arange(k.block_size * wide)
            row = k.begin * high + hl.arange(k.block_size * high)
            lhs = hl.load(x, [a, column], extra_mask=(column < x.size(1))[None, :])
            rhs = hl.load(y, [row, b], extra_mask=(row < y.size(0))[:, None])
            acc = hl.dot_scaled(lhs, x_scale[a, k], left, rhs, y_scale[b, k], right, acc=acc)
        out[a, b] = acc
    return out


@helion.kernel
def unscaled_left(x, x_scale, y, y_scale, left: hl.constexpr, right: hl.constexpr) -> torch.Tensor:
    """A half-precision operand has no scale; the result is half, too."""
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float16, device=x.device)
    for a, b in hl.tile(out.size()):
        out[a, b] = hl.dot_scaled(x[a, :], None, left, y[:, b], y_scale[b, :], right, out_dtype=torch.float16)
    return out


@helion.kernel
def unscaled(x, x_scale, y, y_scale, left: hl.constexpr, right: hl.constexpr) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for a, b in hl.tile(out.size()):
        acc = hl.zeros([a, b])
        for k in hl.tile(x.size(1)):
            acc = hl.dot_scaled(x[a, k], None, left, y[k, b], None, right, acc=acc)
        out[a, b] = acc
    return out


# --- operands and what they stand for -----------------------------------------------------------------------------------


def numbers(rows: int, k: int, name: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random codes ``[rows, k]``, packed if the format says so, and scales."""
    generator = torch.Generator().manual_seed(seed)
    if name == "e2m1":
        codes = torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8, generator=generator)
    else:
        codes = (torch.randn(rows, k, generator=generator) + 0.5).to(DTYPES[name])
    return codes, torch.randint(121, 132, (rows, k // 32), dtype=torch.uint8, generator=generator)


def decoded(codes: torch.Tensor, scale: torch.Tensor | None, name: str) -> torch.Tensor:
    if name == "e2m1":
        pair = torch.stack([codes % 16, codes // 16], -1)
        values = E2M1[pair.long()].flatten(1)
    else:
        values = codes.float()
    return values if scale is None else values * torch.exp2(scale.float() - 127).repeat_interleave(32, 1)


def operands(m: int, k: int, n: int, left: str, right: str) -> tuple[Args, torch.Tensor]:
    x, x_scale = numbers(m, k, left, 1)
    y, y_scale = numbers(n, k, right, 2)
    expected = decoded(x, x_scale, left).double() @ decoded(y, y_scale, right).double().t()
    return (x, x_scale, y.t().contiguous(), y_scale, left, right), expected.float()


def meta(*args: Any) -> tuple[Any, ...]:
    return tuple(a.to("meta") if isinstance(a, torch.Tensor) else a for a in args)


PAIRS = [
    ("e4m3", "e4m3"),
    ("e2m1", "e2m1"),
    ("e2m1", "e4m3"),
    ("e5m2", "e2m1"),
    ("bf16", "e2m1"),
    ("e4m3", "fp16"),
]


CASES = [(kernel, *pair) for kernel in (whole_rows, by_groups, by_positions) for pair in PAIRS]
# its tiles count elements, of which those of e2m1 are two numbers
CASES += [(fixed_tiles, *pair) for pair in PAIRS if "e2m1" not in pair]


@pytest.mark.parametrize(
    ("kernel", "left", "right"), CASES, ids=[f"{k.name} {left} {right}" for k, left, right in CASES]
)
def test_values(kernel: helion.Kernel, left: str, right: str) -> None:
    """Rows, columns and groups that fill no tile."""
    args, expected = operands(21, 96, 19, left, right)
    bound = kernel.bind(args)
    rng = Random(f"{kernel.name} {left} {right}")
    for config in (bound.conservative_config(), *(bound.config_spec.random(rng) for _ in range(4))):
        torch.testing.assert_close(bound.compile_config(config)(*args), expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(run_reference(kernel, args), expected, rtol=1e-4, atol=1e-3)


def test_without_a_scale() -> None:
    (x, _, y, y_scale, *formats), _ = operands(20, 64, 33, "fp16", "e4m3")
    expected = (decoded(x, None, "fp16") @ decoded(y.t(), y_scale, "e4m3").t()).half()
    args = (x, None, y, y_scale, *formats)
    torch.testing.assert_close(unscaled_left(*args), expected)
    torch.testing.assert_close(run_reference(unscaled_left, args), expected)
    (x, _, y, _, *formats), _ = operands(20, 96, 33, "e5m2", "e4m3")
    x, y = x[:, :80].contiguous(), y[:80]
    expected = decoded(x, None, "e5m2") @ decoded(y.t(), None, "e4m3").t()
    torch.testing.assert_close(unscaled(x, None, y, None, *formats), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(run_reference(unscaled, (x, None, y, None, *formats)), expected, rtol=1e-5, atol=1e-5)


def test_extreme_scales() -> None:
    (x, x_scale, y, y_scale, *formats), _ = operands(16, 64, 16, "e4m3", "e4m3")
    x_scale[0], x_scale[1] = 0, 255  # 2**-127 and nan
    args = (x, x_scale, y, y_scale, *formats)
    eager = run_reference(whole_rows, args)
    assert eager[1].isnan().all() and not eager[0].isnan().any() and not eager[2:].isnan().any()
    torch.testing.assert_close(whole_rows(*args), eager, rtol=1e-4, atol=1e-3, equal_nan=True)


def test_lanes_out_of_range_are_zero() -> None:
    """A computed scale is not 0 out of range, and 255 there would be nan."""

    @helion.kernel(config=helion.Config(block_sizes=[16, 16, 4]))
    def shifted(x, x_scale, y, y_scale) -> torch.Tensor:
        m, groups = x_scale.size()
        n = y_scale.size(0)
        x, y = x.view(m, groups, 32), y.view(groups, 32, n)
        out = torch.empty([m, n], dtype=torch.float32)
        for a, b in hl.tile([m, n]):
            acc = hl.zeros([a, b])
            for k in hl.tile(groups):
                lhs, rhs = x[a, k, :].reshape(a, k.block_size * 32), y[k, :, b].reshape(k.block_size * 32, b)
                acc = hl.dot_scaled(lhs, x_scale[a, k] - 1, "e4m3", rhs, y_scale[b, k], "e4m3", acc=acc)
            out[a, b] = acc
        return out

    (x, x_scale, y, y_scale, *_), expected = operands(16, 96, 16, "e4m3", "e4m3")
    assert "tl.where(mask_2" in shifted.bind((x, x_scale, y, y_scale)).to_triton_code()
    torch.testing.assert_close(shifted(x, x_scale, y, y_scale), expected / 2, rtol=1e-4, atol=1e-3)


def test_text_and_facts() -> None:
    args, _ = operands(64, 128, 64, "e2m1", "e4m3")
    bound = by_groups.bind(meta(*args), target="sm_100")
    text = bound.to_triton_code(helion.Config(block_sizes=[64, 64, 4]))
    assert "acc = tl.dot_scaled(lhs, load_2, 'e2m1', rhs, load_3, 'e4m3', acc=acc, out_dtype=tl.float32)" in text
    (fact,) = bound.facts.matmuls
    assert (fact.lhs_format, fact.rhs_format) == ("e2m1", "e4m3")
    whole = whole_rows.bind(meta(*args), target="sm_100")
    (fact,) = whole.facts.matmuls
    assert fact.static_k == 128
    assert tile_shape(fact, whole.config_spec.sizes(whole.conservative_config()))[2] == 64


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
@pytest.mark.parametrize(("left", "right"), [("e4m3", "e4m3"), ("e2m1", "e2m1"), ("e2m1", "e5m2")])
def test_compiles_offline(target: str, left: str, right: str) -> None:
    args, _ = operands(128, 256, 128, left, right)
    bound = by_positions.bind(meta(*args), target=target)
    for blocks in ([128, 128, 4], [1, 1, 1]):
        report = bound.resources(helion.Config(block_sizes=blocks))
        assert report.registers > 0
        assert (report.tensor_memory_columns > 0) == (target == "sm_100" and blocks[0] == 128)


def test_tiles_hold_what_one_instruction_takes() -> None:
    args = meta(*operands(128, 256, 128, "e2m1", "e2m1")[0])
    sizes = {
        t: by_groups.bind(args, target=t).config_spec.normalize({"block_sizes": [1, 1, 1]}) for t in ("sm_90", "sm_100")
    }
    assert sizes["sm_90"]["block_sizes"] == [1, 1, 1]
    assert sizes["sm_100"]["block_sizes"] == [1, 1, 2]


# --- what is refused ----------------------------------------------------------------------------------------------------


def refused(args: tuple[Any, ...], kernel: helion.Kernel = whole_rows, target: str = "sm_90") -> exc.Base:
    with pytest.raises(exc.Base) as caught:
        kernel.bind(meta(*args), target=target)
    assert caught.value.location is not None
    return caught.value


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({4: "e3m2"}, exc.InvalidAPIUsage, "mat1_format of hl.dot_scaled must be one of 'e2m1', 'e4m3', 'e5m2', 'bf16', 'fp16', got 'e3m2'."),
        ({5: "bf16"}, exc.TypeInferenceError, "mat2 of hl.dot_scaled has the format 'bf16', which is held as torch.bfloat16, got torch.float8_e4m3fn."),
        ({0: torch.empty(45, 96)}, exc.TypeInferenceError, "mat1 of hl.dot_scaled has the format 'e4m3', which is held as torch.float8_e4m3fn or torch.uint8, got torch.float32."),
        ({1: torch.empty(45, 3, dtype=torch.int8)}, exc.TypeInferenceError, "mat1_scale of hl.dot_scaled must be e8m0 exponents as torch.uint8, got torch.int8; use .view(torch.uint8) on the host."),
        ({1: torch.empty(45, 4, dtype=torch.uint8)}, exc.ShapeMismatch, "mat1_scale of hl.dot_scaled must be [a, 96 / 32], one scale for 32 of the 96 numbers along K"),
        ({2: torch.empty(64, 37, dtype=torch.float8_e4m3fn)}, exc.ShapeMismatch, "as e4m3 and e4m3 they have 96 and 64 numbers along K"),
    ],
)  # fmt: skip
def test_refused_operands(change: dict[int, Any], kind: type, message: str) -> None:
    args: list[Any] = list(operands(45, 96, 37, "e4m3", "e4m3")[0])
    for at, value in change.items():
        args[at] = value
    error = refused(tuple(args))
    assert type(error) is kind and message in error.message
    if kind is not exc.ShapeMismatch:  # eager mode knows sizes, not tiles
        with pytest.raises(kind) as caught:
            run_reference(whole_rows, args)
        assert caught.value.message == message


def test_refused_on_some_targets() -> None:
    args, _ = operands(45, 96, 37, "fp16", "bf16")
    assert "hl.dot_scaled of bf16 and fp16" in refused(args).message
    args, _ = operands(45, 96, 37, "bf16", "e4m3")
    whole_rows.bind(meta(*args), target="sm_90")
    assert "multiply it into the operand and pass None as mat1_scale" in refused(args, target="sm_100").message
    args, _ = operands(45, 32, 37, "e2m1", "e2m1")
    whole_rows.bind(meta(*args), target="sm_90")
    assert "of these formats it takes at least 64; pad with zeros" in refused(args, target="sm_100").message


@helion.kernel
def one_scale(x, x_scale, y, left: hl.constexpr, right: hl.constexpr) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for a, b in hl.tile(out.size()):
        out[a, b] = hl.dot_scaled(x[a, :], x_scale[a, :], left, y[:, b], None, right)
    return out


@helion.kernel
def no_scale(x, y, left: hl.constexpr, right: hl.constexpr) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)], dtype=torch.float32, device=x.device)
    for a, b in hl.tile(out.size()):
        out[a, b] = hl.dot_scaled(x[a, :], None, left, y[:, b], None, right)
    return out


@pytest.mark.parametrize("decodes", [False, True])
def test_what_old_matrix_units_of_amd_take(decodes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton decodes one scaled operand for gfx942, and from 3.8 on both."""
    monkeypatch.setattr(capabilities, "_decodes_any_on_hip", lambda: decodes)

    def attempt(kernel: helion.Kernel, left: str, right: str, *used: int) -> str:
        args, _ = operands(64, 128, 64, left, right)
        try:
            helion.kernel(kernel.fn).bind(meta(*[args[i] for i in used]), target="gfx942")
        except exc.BackendUnsupported as error:
            return error.message
        return ""

    both, first, neither = (0, 1, 2, 3, 4, 5), (0, 1, 2, 4, 5), (0, 2, 4, 5)
    found = {
        "hl.dot_scaled with two scales on gfx942": attempt(whole_rows, "e4m3", "e4m3", *both),
        "": attempt(one_scale, "e2m1", "bf16", *first),
        "mat2 of hl.dot_scaled as e2m1 without a scale": attempt(one_scale, "e4m3", "e2m1", *first),
        "A scale of a bf16 operand on gfx942": attempt(one_scale, "bf16", "e4m3", *first),
        "mat1 of hl.dot_scaled as e2m1 without a scale": attempt(no_scale, "e2m1", "e4m3", *neither),
    }
    for text, message in found.items():
        assert message == "" if decodes or not text else text in message and "or use Triton 3.8" in message


def test_four_bits_and_fp16_need_a_target_with_8_bit_floats() -> None:
    args, _ = operands(64, 128, 64, "e2m1", "fp16")
    assert "convert fp16 to bf16" in refused(args, target="sm_80").message
    whole_rows.bind(meta(*args), target="sm_90")


def test_one_scale_compiles_for_amd() -> None:
    args, _ = operands(64, 128, 64, "e2m1", "bf16")
    bound = one_scale.bind(meta(*[args[i] for i in (0, 1, 2, 4, 5)]), target="gfx942")
    assert bound.resources(helion.Config(block_sizes=[32, 32])).registers > 0


def test_a_tile_of_groups_needs_a_known_size() -> None:
    @helion.kernel
    def open_tiles(x, x_scale, y, y_scale) -> torch.Tensor:
        out = torch.empty([x.size(0), y.size(1)])
        for a, b in hl.tile(out.size()):
            acc = hl.zeros([a, b])
            for k in hl.tile(x.size(1)):
                acc = hl.dot_scaled(x[a, k], x_scale[a, :], "e4m3", y[k, b], y_scale[b, :], "e4m3", acc=acc)
            out[a, b] = acc
        return out

    args, _ = operands(45, 96, 37, "e4m3", "e4m3")
    assert "give the loop over K a constant block_size, or tile over groups" in refused(args[:4], open_tiles).message


def test_scales_in_e4m3_are_of_16_numbers() -> None:
    """The eager reference decodes NVFP4; Triton has no such matmul."""
    (x, _, y, _, *_), _ = operands(37, 96, 21, "e2m1", "e2m1")
    scales = [(torch.rand(rows, 6) * 4 + 0.25).to(torch.float8_e4m3fn) for rows in (37, 21)]
    args = (x, scales[0], y, scales[1], "e2m1", "e2m1")
    left, right = (
        decoded(each, None, "e2m1").double() * scale.double().repeat_interleave(16, 1)
        for each, scale in ((x, scales[0]), (y.t(), scales[1]))
    )
    found = run_reference(whole_rows, args)
    torch.testing.assert_close(found.double(), left @ right.t(), rtol=1e-4, atol=1e-3)
    error = refused(args, target="sm_100")
    assert "hl.dot_scaled with scales in float8_e4m3fn is not supported by the Triton backend" in str(error)
    wrong = refused((x, scales[0][:, :3], y, scales[1], "e2m1", "e2m1"), target="sm_100")
    assert "mat1_scale of hl.dot_scaled must be [a, 96 / 16], one scale for 16 of the 96 numbers along K" in str(wrong)
    eight = (torch.zeros(37, 96, dtype=torch.float8_e4m3fn), scales[0], y, scales[1], "e4m3", "e2m1")
    assert "which scales numbers in 'e2m1', not in 'e4m3'" in str(refused(eight, target="sm_100"))
