"""The full config of one call, at every other size of the kernel: what a size lacks is dropped, and the result is right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc
from helion._testing import as_meta, import_path
from helion.autotuner import PowerOfTwoFragment


def cumulative(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t, :] = torch.cumsum(x[t, :], 1)
    return out


def matmul(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, k = x.shape
    n = w.shape[1]
    out = torch.empty([m, n])
    for a, b in hl.tile([m, n]):
        acc = hl.zeros([a, b])
        for c in hl.tile(k):
            acc = hl.dot(x[a, c], w[c, b], acc=acc)
        out[a, b] = acc
    return out


def soft_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    m, k = x.shape
    n = hl.specialize(w.shape[1])
    out = torch.empty([m, n])
    for a in hl.tile(m):
        acc = hl.zeros([a, n])
        for c in hl.tile(k):
            acc = hl.dot(x[a, c], w[c, :], acc=acc)
        out[a, :] = torch.softmax(acc, 1)
    return out


def recurrence(x: torch.Tensor) -> torch.Tensor:
    n, m = x.shape
    out = torch.empty_like(x)
    for t in hl.tile(m):
        h = hl.zeros([t])
        for i in hl.grid(n):
            h = h * 0.5 + x[i, t]
            out[i, t] = h
    return out


def recurrence_reference(x: torch.Tensor) -> torch.Tensor:
    h, out = torch.zeros(x.size(1)), torch.empty_like(x)
    for i in range(x.size(0)):
        h = h * 0.5 + x[i]
        out[i] = h
    return out


def two_reductions(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t, :] = torch.softmax(x[t, :], 1) + torch.cumsum(y[t, :], 1).sum(1)[:, None]
    return out


def looked_up(index: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    out = torch.empty([index.size(0), table.size(1)])
    for a, b in hl.tile(out.size()):
        out[a, b] = table[index[a], b]
    return out


CASES: list[tuple[Callable[..., Any], Callable[..., Any], list[Any], list[dict[str, Any]]]] = [
    (
        cumulative,
        lambda x: x.cumsum(1),
        [[(8, 70)], [(8, 1)], [(1, 70)], [(3, 300)], [(0, 70)]],
        [{"block_sizes": [2], "reduction_loops": [16]}, {"block_sizes": [8], "reduction_loops": [None]}],
    ),
    (
        matmul,
        torch.matmul,
        [[(16, 70), (70, 16)], [(16, 1), (1, 16)], [(1, 70), (70, 1)], [(1, 1), (1, 1)], [(33, 62), (62, 40)]],
        [
            {"block_sizes": [16, 16, 16], "range_num_stages": [0, 2], "loop_orders": [[1, 0]], "pid_type": "xyz"},
            {"block_sizes": [16, 16, 16], "split_k": 2, "pack_operands": True},
        ],
    ),
    (
        soft_product,
        lambda x, w: torch.softmax(x @ w, 1),
        [[(1, 20), (20, 16)], [(40, 20), (20, 33)], [(7, 1), (1, 33)]],
        [{"block_sizes": [16, 16]}],
    ),
    (recurrence, recurrence_reference, [[(7, 20)], [(0, 20)], [(1, 20)], [(3, 1)]], [{"prefetch_distance": 2, "block_sizes": [16]}]),
    (
        two_reductions,
        lambda x, y: torch.softmax(x, 1) + y.cumsum(1).sum(1, keepdim=True),
        [[(8, 70), (8, 40)], [(8, 1), (8, 40)], [(8, 70), (8, 1)], [(1, 1), (1, 1)]],
        [{"block_sizes": [1], "reduction_loops": [None, 16]}, {"block_sizes": [1], "reduction_loops": [16, 8]}],
    ),
]  # fmt: skip


def _arguments(shapes: Sequence[tuple[int, ...]]) -> list[torch.Tensor]:
    return [torch.randn(*shape) + 0.25 for shape in shapes]


@pytest.mark.parametrize("static", (False, True))
@pytest.mark.parametrize("case", CASES, ids=[case[0].__name__ for case in CASES])
def test_full_configs_run_at_every_size(case: Any, static: bool) -> None:
    fn, reference, sizes, configs = case
    for shapes, asked in itertools.product(sizes[:3], configs):
        spec = helion.kernel(fn, static_shapes=static).bind(_arguments(shapes)).config_spec
        try:
            full = spec.normalize(helion.Config(**asked))
        except exc.InvalidConfig:  # what this size has not, asked for by name
            full = spec.normalize(helion.Config(block_sizes=asked["block_sizes"]))
        kernel = helion.kernel(fn, config=full, static_shapes=static)
        for others in sizes:
            args = _arguments(others)
            torch.testing.assert_close(kernel(*args), reference(*args), atol=1e-3, rtol=1e-3)


SHAPES = ((4096, 4096, 4096), (1, 4096, 1024), (16, 512, 4096), (512, 256, 128), (4096, 64, 256), (100, 6216, 1000))


@pytest.mark.parametrize("target", ("h100", "b200"))
@pytest.mark.parametrize("static", (False, True))
def test_full_configs_of_the_cute_backend_at_every_size(target: str, static: bool) -> None:
    """What K or the rows of one size have too few tiles for is adjusted, whatever the sizes that a config comes from."""
    half = {"dtype": torch.float16, "device": "meta"}
    for fn in (half_product, half_softmax) if static else (half_product,):
        kernel = helion.kernel(fn, backend="cute", static_shapes=static)
        arguments = [(torch.empty(m, k, **half), torch.empty(k, n, **half)) for m, k, n in SHAPES]
        spaces = [kernel.bind(each, target=target).config_spec for each in arguments]
        for one, other in itertools.permutations(spaces, 2):
            full = other.normalize(one.default_config())
            assert other.normalize(full) == full


def half_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), w.size(1)], dtype=x.dtype, device=x.device)
    for a, b in hl.tile(out.size()):
        acc = hl.zeros([a, b])
        for c in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[a, c], w[c, b])
        out[a, b] = acc.to(x.dtype)
    return out


def half_softmax(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), w.size(1)], dtype=x.dtype, device=x.device)
    for a in hl.tile(x.size(0)):
        acc = hl.zeros([a, w.size(1)])
        for c in hl.tile(x.size(1)):
            acc = torch.addmm(acc, x[a, c], w[c, :])
        out[a, :] = torch.softmax(acc, -1).to(x.dtype)
    return out


def computed_tiles(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([x.size(1)])
    split = hl.register_tunable("split", PowerOfTwoFragment(1, 16, 4))
    for rows, columns in hl.tile(x.size(), block_size=[helion.cdiv(x.size(0), split), None]):
        hl.atomic_add(out, [columns], x[rows, columns].sum(0))
    return out


@pytest.mark.parametrize("static", (False, True))
def test_tile_sizes_that_tunables_compute(static: bool) -> None:
    kernel = helion.kernel(computed_tiles, static_shapes=static)
    x = torch.randn(64, 33) + 1
    torch.testing.assert_close(kernel(x), x.sum(0))
    with pytest.raises(exc.InvalidConfig, match="'rows' in kernel 'computed_tiles' have 24 elements with split=4"):
        kernel(torch.randn(96, 33))
    fixed = helion.kernel(fixed_tiles, static_shapes=static)
    with pytest.raises(exc.BackendUnsupported, match="block_size=24.*next_power_of_2"):
        fixed(torch.randn(96, 33))


def fixed_tiles(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([x.size(1)])
    for rows, columns in hl.tile(x.size(), block_size=[helion.cdiv(x.size(0), 4), None]):
        hl.atomic_add(out, [columns], x[rows, columns].sum(0))
    return out


def test_accesses_that_are_not_there() -> None:
    index, table = torch.tensor([2, 0, 1]), torch.randn(3, 20)
    full = helion.kernel(looked_up).bind((index, table)).config_spec.normalize(
        helion.Config(block_sizes=[2, 8], load_cache_modifiers=["", ".cg"], indexing=["pointer", "pointer", "block_ptr"])
    )  # fmt: skip
    kernel = helion.kernel(looked_up, config=full, static_shapes=False)
    assert torch.equal(kernel(index, table), table[index])
    assert torch.equal(kernel(index * 0, table[:1]), table[index * 0])


def test_what_is_dropped_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helion.pipeline._REPORTED", set())  # another test may have run the same config
    kernel = helion.kernel(recurrence, config=helion.Config(block_sizes=[16], prefetch_distance=2), static_shapes=False)
    for rows in (7, 1, 0, 1):
        kernel(torch.randn(rows, 20))
    assert [r.getMessage() for r in caplog.records] == [
        "helion: config of recurrence on sm_90: prefetch_distance=2 is dropped: no loop over single indices loads data that it does not write, at addresses from its index"
    ]


def test_what_no_size_has_is_refused() -> None:
    for asked in (
        {"prefetch_distance": 2},
        {"split_k": 2},
        {"reduction_loops": [16, 16]},
        {"block_sizes": [16, 16]},
        {"fuse_loops": True},
    ):
        kernel = helion.kernel(cumulative, config=helion.Config(**{"block_sizes": [2], **asked}))
        with pytest.raises(exc.InvalidConfig, match=next(iter(asked))):
            kernel.bind((torch.randn(8, 70),)).to_triton_code()
    narrow = helion.kernel(cumulative).bind((torch.randn(8, 1),)).config_spec
    with pytest.raises(exc.InvalidConfig, match="split_k must be a power of two, got 3"):
        narrow.normalize(helion.Config(split_k=3))
    with pytest.raises(exc.InvalidConfig, match="num_ctas cannot be 2"):
        narrow.normalize(helion.Config(num_ctas=2))
    with pytest.raises(exc.InvalidConfig, match="block_sizes has 2 entries, expected 1"):
        narrow.normalize(helion.Config(block_sizes=[2, 2]))


def test_the_smallest_chunks_are_kept() -> None:
    field = (
        helion.kernel(cumulative, static_shapes=False).bind((torch.randn(8, 70),)).config_spec.field("reduction_loops")
    )
    assert [list(field.kept(chunks)) for chunks in ([None, 16], [16, None], [32, 16], [16])] == [[16]] * 4  # type: ignore[attr-defined]


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SAMPLED = ("embedding", "matmul", "softmax")
#: Examples that take static shapes only, and one without cases.
STATIC = ("decode_layer", "demo")
OTHERS = tuple(sorted(p.stem for p in EXAMPLES.glob("*.py") if p.stem not in (*STATIC, *SAMPLED) and p.stem[0] != "_"))

#: Sizes that loops are unrolled for: a config has entries for the loads of each turn.
UNROLLED = {"causal_conv1d": {4}}


def _with(value: Any, size: int, other: int) -> Any:
    """An argument with another size in place of ``size``."""
    if isinstance(value, torch.Tensor):
        return torch.empty([other if n == size else n for n in value.shape], dtype=value.dtype, device="meta")
    if isinstance(value, (tuple, list)):
        return type(value)(_with(each, size, other) for each in value)
    return other if type(value) is int and value == size else value


@pytest.mark.parametrize("example", (*SAMPLED, *(pytest.param(name, marks=pytest.mark.prove) for name in OTHERS)))
def test_default_configs_of_examples_at_every_size(example: str) -> None:
    seen: set[str] = set()
    for _, kernel, args in import_path(EXAMPLES / f"{example}.py").cases():
        if kernel.name in seen:
            continue
        seen.add(kernel.name)
        one = helion.kernel(kernel.fn, static_shapes=False)
        space = one.bind(as_meta(args), target="sm_90").config_spec
        full = space.normalize(space.default_config())
        sizes = {n for tensor in args if isinstance(tensor, torch.Tensor) for n in tensor.shape if n > 1}
        changed = sorted(sizes - UNROLLED.get(example, set()))
        for size, other in itertools.product(changed, (0, 1, 3)):
            try:
                small = one.bind(tuple(_with(each, size, other) for each in args), target="sm_90").config_spec
            except (exc.Base, AssertionError):  # the kernel itself does not take these sizes
                continue
            small.normalize(full)
            space.normalize(small.normalize(small.default_config()))
