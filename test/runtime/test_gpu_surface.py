"""What only a GPU shows of seeds drawn on the device, addresses of the user's, wide loads, and kernels for classes of sizes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import helion
import helion.language as hl

pytestmark = pytest.mark.gpu


@helion.kernel
def noise(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b, c = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    for rows, columns in hl.tile(x.size()):
        a[rows, columns] = torch.rand_like(x[rows, columns])
        b[rows, columns] = torch.randn_like(x[rows, columns])
        c[rows, columns] = F.dropout(x[rows, columns], 0.25)
    return a, b, c


def test_seeds_come_from_the_devices_generator() -> None:
    x = torch.full((37, 129), 3.0, device="cuda")
    bound = noise.bind((x,))
    torch.cuda.manual_seed(5)
    first = noise(x)
    torch.manual_seed(5)
    second = noise(x)
    torch.manual_seed(5)
    eager = bound.run_ref(x)
    for a, b, c in zip(first, second, eager, strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, c, rtol=1e-5, atol=2e-6)
    assert abs(first[0].mean() - 0.5) < 0.02 and abs(first[1].std() - 1) < 0.05
    assert set(first[2].unique().tolist()) == {0.0, 4.0}


def test_a_captured_graph_draws_anew_at_each_replay() -> None:
    x = torch.zeros(1000, 8, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        noise(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        a, b, _ = noise(x)
    seen = []
    for _ in range(3):
        graph.replay()
        torch.cuda.synchronize()
        seen.append((a.clone(), b.clone()))
    assert all((one[at] != other[at]).any() for at in (0, 1) for one, other in ((seen[0], seen[1]), (seen[1], seen[2])))


@helion.kernel
def gather(ptrs: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    out = torch.empty([ptrs.size(0), like.size(0)], dtype=like.dtype, device=like.device)
    for rows, tile in hl.tile([ptrs.size(0), like.size(0)]):
        out[rows, tile] = hl.stacktensor_like(like, ptrs[rows])[tile]
    return out


@helion.kernel
def scatter(ptrs: torch.Tensor, x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    for rows, tile in hl.tile(x.size()):
        hl.stacktensor_like(like, ptrs[rows])[tile] = x[rows, tile] * 2
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_stack_tensors(dtype: torch.dtype) -> None:
    tensors = [(torch.randn(1001, device="cuda") * 2).to(dtype) for _ in range(5)]
    ptrs = torch.tensor([t.data_ptr() for t in tensors], dtype=torch.uint64, device="cuda")
    assert torch.equal(gather(ptrs, tensors[0]), torch.stack(tensors))
    assert torch.equal(gather.bind((ptrs, tensors[0])).run_ref(ptrs, tensors[0]), torch.stack(tensors))
    if dtype.is_floating_point:
        x = torch.randn(5, 1001, device="cuda").to(dtype)
        scatter(ptrs, x, tensors[0])
        assert torch.equal(torch.stack(tensors), x * 2)


@helion.kernel
def groups(x: torch.Tensor, y: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a = torch.empty([offsets.size(0), 16], dtype=torch.float16, device=x.device)
    b = torch.empty([offsets.size(0), 16], dtype=torch.float16, device=x.device)
    for tile in hl.tile(offsets.size(0)):
        first = hl.load_float4_e2m1fn_x16_to_float16(x, offsets[tile])
        second = hl.load_bfloat16_x16_to_float16(y, offsets[tile], extra_mask=offsets[tile] != 3)
        for at in hl.static_range(16):
            a[tile, at] = first[at]
            b[tile, at] = second[at]
    return a, b


def test_groups_by_wide_loads() -> None:
    x = torch.randint(0, 256, (8 * 999,), dtype=torch.uint8, device="cuda")
    y = torch.randn(16 * 999, device="cuda").to(torch.bfloat16)
    offsets = torch.randint(0, 999, (777,), device="cuda")
    offsets[:5] = 3
    for given in (x, x.view(torch.float4_e2m1fn_x2)):
        a, b = groups(given, y, offsets)
        for found, right in zip((a, b), groups.bind((given, y, offsets)).run_ref(given, y, offsets), strict=True):
            assert torch.equal(found, right)
    assert torch.equal(b[5:], torch.where(offsets[5:, None] == 3, 0, y.view(-1, 16)[offsets[5:]].half()))


@helion.kernel(static_shapes=False, size_hints=(), backend="triton")
def rows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.size(), dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :] * w[:], -1)
    return out


def test_one_bound_kernel_for_sizes_and_strides() -> None:
    bound = rows.bind((torch.randn(64, 64, device="cuda"), torch.randn(64, device="cuda")))
    run = bound.compile_config()
    for n, m in ((64, 64), (63, 100), (1000, 2), (2, 4097), (128, 64)):
        for x in (
            torch.randn(n, m, device="cuda"),
            torch.randn(m, n, device="cuda").T,
            torch.randn(n, 2 * m, device="cuda")[:, ::2],
        ):
            w = torch.randn(m, device="cuda")
            assert rows.bind((x, w)) is bound
            for call in (run, bound, rows, rows):
                torch.testing.assert_close(call(x, w), torch.softmax(x * w, -1))


def test_auto_has_bound_kernels_by_what_cute_needs_of_sizes() -> None:
    """Another backend may be faster where rows have whole vectors: both kinds of rows have a bound kernel."""
    either = helion.kernel(rows.fn, static_shapes=False, size_hints=(), backend="auto")
    bound = set()
    for n, m in ((63, 100), (63, 64), (1000, 100), (1000, 3), (128, 102), (63, 3)):
        x, w = torch.randn(n, m, device="cuda"), torch.randn(m, device="cuda")
        bound.add(either.bind((x, w)))
        for _ in range(2):
            torch.testing.assert_close(either(x, w), torch.softmax(x * w, -1))
    assert len(bound) <= 2


INTERPRETED = """
import torch, helion, helion.language as hl

@helion.kernel(config=helion.Config(block_sizes=[8]))
def doubled(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        twice = x[tile] * 2
        breakpoint()
        out[tile] = twice
    return out

x = torch.arange(12.0, device="cuda").to(torch.bfloat16)[1:11]
for _ in range(2):
    print("right:", torch.equal(doubled(x), x * 2))
"""


def test_tritons_interpreter_takes_tensors_of_a_gpu(tmp_path: Path) -> None:
    script = tmp_path / "interpreted.py"
    script.write_text(INTERPRETED)
    root = str(Path(helion.__file__).parents[1])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": root}
    found = subprocess.run(
        [sys.executable, str(script)],
        env=environment,
        input="p twice\n" + "continue\n" * 4,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("right: True") == 2 and "-> tl.store(" in found.stdout
