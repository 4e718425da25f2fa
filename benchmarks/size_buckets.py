"""What kernels lose where one config serves many sizes (``static_shapes=False``), beside a config for each size.

    python benchmarks/size_buckets.py                        predicted, at powers of two from 16 to 65536
    python benchmarks/size_buckets.py --hints 64,256,4096    with other size hints; several may be given
    python benchmarks/size_buckets.py --kept                 measured: the configs that the kept sweeps of an H200 have times of

The regret at a size is the time of the config of its bucket over that of the config made for the size alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import helion  # noqa: E402
from benchmarks.cells import timed_cells  # noqa: E402
from benchmarks.sweep import KEPT, KEPT_TARGET, parse  # noqa: E402
from examples.add import add  # noqa: E402
from examples.bmm import bmm  # noqa: E402
from examples.long_sum import long_sum_wide  # noqa: E402
from examples.matmul import matmul  # noqa: E402
from examples.rms_norm import rms_norm  # noqa: E402
from examples.softmax import softmax, softmax_two_pass  # noqa: E402
from helion import exc  # noqa: E402
from helion.settings import Settings  # noqa: E402

SIZES = tuple(1 << bit for bit in range(4, 17))
#: How much longer a config that is predicted to spill is taken to be; see ``autotuner.default``.
SPILLING = 4.0


@dataclasses.dataclass(frozen=True)
class Case:
    """A kernel with arguments, of which one size is the one that changes."""

    name: str
    kernel: helion.Kernel
    arguments: Callable[[int], tuple[torch.Tensor, ...]]


def tensor(*shape: int) -> torch.Tensor:
    return torch.empty(*shape, dtype=torch.bfloat16, device="meta")


CASES = (
    Case("add, rows", add, lambda n: (tensor(n, 4096), tensor(n, 4096))),
    Case("add, columns", add, lambda n: (tensor(4096, n), tensor(4096, n))),
    Case("softmax, rows", softmax, lambda n: (tensor(n, 4096),)),
    Case("softmax, columns", softmax, lambda n: (tensor(4096, n),)),
    Case("softmax in two passes, columns", softmax_two_pass, lambda n: (tensor(4096, n),)),
    Case("rms_norm, rows", rms_norm, lambda n: (tensor(n, 4096), tensor(4096))),
    Case("rms_norm, columns", rms_norm, lambda n: (tensor(4096, n), tensor(n))),
    Case("sum in a loop, columns", long_sum_wide, lambda n: (tensor(4096, n),)),
    Case("matmul, M", matmul, lambda n: (tensor(n, 4096), tensor(4096, 4096))),
    Case("matmul, N", matmul, lambda n: (tensor(4096, 4096), tensor(4096, n))),
    Case("matmul, K", matmul, lambda n: (tensor(4096, n), tensor(n, 4096))),
    Case("matmul, square", matmul, lambda n: (tensor(n, n), tensor(n, n))),
    Case("bmm, batches", bmm, lambda n: (tensor(n, 512, 512), tensor(n, 512, 512))),
)


def bound(kernel: helion.Kernel, args: tuple[Any, ...], hints: Sequence[int]) -> Any:
    """For sizes that differ from call to call."""
    return helion.kernel(kernel.fn, static_shapes=False, size_hints=tuple(hints)).bind(args, target=KEPT_TARGET)


def predicted(own: Any, config: helion.Config) -> float:
    """Microseconds of a config at the sizes that ``own`` was bound for; infinite where it does not fit."""
    found = own._analysis.predict(own.config_spec.repair(config))
    return found.time_us * (SPILLING if found.spills else 1.0) if found.fits else math.inf


def regrets(case: Case, hints: Sequence[int], sizes: Sequence[int] = SIZES) -> list[float]:
    """The predicted regret at each size, at least 1."""
    found = []
    for size in sizes:
        own, shared = (bound(case.kernel, case.arguments(size), each) for each in ((), hints))
        times = [predicted(own, each.default_config()) for each in (shared, own)]
        found.append(max(1.0, times[0] / times[1]))
    return found


@dataclasses.dataclass(frozen=True)
class Measured:
    """Microseconds of a cell with the config of its bucket, with the one made for its sizes, and with the best kept."""

    name: str
    bucket: float
    own: float
    best: float


def measured(hints: Sequence[int]) -> Iterator[Measured]:
    """Of the cells whose sweeps have both configs."""
    times: dict[tuple[str, str, str], list[Any]] = {}
    for row in parse(KEPT.read_text()):
        times.setdefault(row.key, []).append(row)
    for cell in timed_cells():
        rows = times.get(cell.key[1:])
        if rows is None:
            continue
        static = cell.function.bind(cell.args, target=KEPT_TARGET)
        by_config = {static.config_spec.normalize(row.config): row.microseconds for row in rows}
        shared = bound(cell.function, cell.args, hints).default_config()
        try:
            config = static.config_spec.normalize(shared)
        except exc.InvalidConfig:  # lists that are longer where sizes are not known
            continue
        own = static.default_config()
        if config in by_config and own in by_config:
            name = " ".join(cell.key[1:])
            yield Measured(name, by_config[config], by_config[own], min(by_config.values()))


def main() -> int:
    parser = argparse.ArgumentParser(description="what one config for many sizes costs")
    parser.add_argument("--hints", action="append", type=lambda text: tuple(map(int, text.split(","))))
    parser.add_argument("--kept", action="store_true", help="measured, from the kept sweeps")
    options = parser.parse_args()
    for hints in options.hints or [Settings().size_hints]:
        print(f"size hints {hints}")
        if options.kept:
            found = list(measured(hints))
            for each in found:
                print(f"  {each.bucket / each.own:5.2f}  {each.bucket / each.best:5.2f} of the best  {each.name}")
            mean = math.exp(sum(math.log(each.bucket / each.own) for each in found) / max(len(found), 1))
            print(f"  geometric mean {mean:.3f} over {len(found)} cells")
            continue
        for case in CASES:
            each = regrets(case, hints)
            print(f"  {case.name:32} at most {max(each):5.2f}: {' '.join(f'{regret:.2f}' for regret in each)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
