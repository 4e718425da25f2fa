"""The same source and config give the same text: in other processes, in other threads, in any order."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import torch

import helion
import helion.language as hl

ROOT = Path(__file__).resolve().parents[2]

SOURCE = """
import random, sys
import torch
import helion
import helion.language as hl

@helion.kernel
def rows(x, weight, eps: float):
    out, mean_out = torch.empty_like(x), torch.empty([x.size(0)])
    for tile in hl.tile(x.size(0)):
        v = x[tile, :]
        mean = v.mean(-1)
        centred = v - mean[:, None]
        out[tile, :] = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + eps) * weight[:]
        mean_out[tile] = mean
    return out, mean_out

@helion.kernel
def product(x, y, f):
    out = torch.empty([x.size(0), y.size(1)])
    for a, b in hl.tile(out.size()):
        acc = hl.zeros([a, b])
        for c in hl.tile(x.size(1)):
            acc = hl.dot(x[a, c], y[c, b], acc=acc)
        out[a, b] = f(acc)
    return out

x = torch.empty(33, 77)
for bound in (rows.bind((x, torch.empty(77), 1e-5)), product.bind((x, torch.empty(77, 21), torch.nn.functional.gelu))):
    spec = bound.config_spec
    print(bound.default_config())
    print(bound.seeds)
    for seed in range(5):
        config = spec.random(random.Random(seed))
        print(config)
        print(bound.to_triton_code(config))
"""


def test_text_is_the_same_in_fresh_processes(tmp_path: Path) -> None:
    script = tmp_path / "kernels.py"
    script.write_text(SOURCE)
    outputs = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        run = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, run.stderr
        outputs.append(run.stdout)
    assert outputs[0] == outputs[1]
    assert outputs[0].count("@triton.jit") >= 10


@helion.kernel
def first(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :], -1)
    return out


@helion.kernel
def second(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty([x.size(0), y.size(1)])
    for a, b in hl.tile(out.size()):
        acc = hl.zeros([a, b])
        for c in hl.tile(x.size(1)):
            acc = hl.dot(x[a, c], y[c, b], acc=acc)
        out[a, b] = acc
    return out


def texts(kernel: helion.Kernel, args: tuple[torch.Tensor, ...]) -> list[str]:
    bound = helion.kernel(kernel.fn).bind(args)
    return [bound.to_triton_code(bound.config_spec.random(random.Random(seed))) for seed in range(6)]


def test_threads_do_not_disturb_each_other() -> None:
    x, y = torch.empty(33, 77), torch.empty(77, 21)
    jobs = [(first, (x,)), (second, (x, y)), (first, (x[:, :63],)), (second, (y.t(), x.t()))]
    alone = [texts(*job) for job in jobs]
    found: list[list[str] | BaseException | None] = [None] * 8
    barrier = threading.Barrier(8)

    def work(at: int) -> None:
        barrier.wait()
        try:
            found[at] = texts(*jobs[at % 4])
        except BaseException as error:  # shown by the assertion below
            found[at] = error

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at, result in enumerate(found):
        assert result == alone[at % 4]


def test_threads_share_one_kernel() -> None:
    kernel = helion.kernel(first.fn)
    inputs = [torch.randn(5, width) for width in (7, 63, 77)]
    results: list[torch.Tensor | BaseException | None] = [None] * 9

    def work(at: int) -> None:
        try:
            x = inputs[at % 3]
            bound = kernel.bind((x,))
            results[at] = bound.compile_config(bound.conservative_config())(x)
        except BaseException as error:  # shown by the assertion below
            results[at] = error

    threads = [threading.Thread(target=work, args=(at,)) for at in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for at, result in enumerate(results):
        assert isinstance(result, torch.Tensor), result
        torch.testing.assert_close(result, torch.softmax(inputs[at % 3], -1))
    assert kernel.bind((inputs[0],)) is kernel.bind((inputs[0].clone(),))


def test_the_order_of_configs_does_not_matter() -> None:
    x = torch.empty(33, 77)
    one, other = helion.kernel(first.fn).bind((x,)), helion.kernel(first.fn).bind((x,))
    configs = [one.config_spec.random(random.Random(seed)) for seed in range(6)]
    forward = [one.to_triton_code(config) for config in configs]
    backward = [other.to_triton_code(config) for config in reversed(configs)]
    assert forward == backward[::-1]
    assert all(one.to_triton_code(dict(config)) == text for config, text in zip(configs, forward, strict=True))
