"""Configs change how a kernel runs, never what it computes: random legal configs of every example against eager."""

from __future__ import annotations

import functools
import math
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import PROVE
from rewrite_pairs import bodies, configs_of, pairs_of, run_poisoned
from triton.runtime.errors import OutOfResources

import helion
from helion._testing import EXAMPLES_DIR, check, import_path
from helion.backends.triton.execute.interpreter.races import detect_races

#: Random configs per case: a sample, and what `make prove` runs.
SAMPLED, PROVEN = 1, 20
#: The sample has every third case of an example.
EVERY = 3
#: Bodies of grids and loops, over all programs and iterations: above this many take seconds in the interpreter, and say
#: nothing that fewer do not.
MOST_BODIES = 600
#: Random tiles go down to one element, where a row of a thousand is a chain of a thousand fp32 additions: an error
#: that grows with their number (half a unit each), not with its logarithm as in the tree of a usual tile.
SLACK = 2.0

NAMES = sorted(p.stem for p in Path(EXAMPLES_DIR).glob("*.py") if p.stem != "demo" and not p.stem.startswith("_"))


@functools.cache
def example(name: str) -> ModuleType:
    return import_path(Path(EXAMPLES_DIR) / f"{name}.py")


def cases(name: str) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield the cases of an example: a third of them, the first of which depends on its name, or all to prove it."""
    everything = list(example(name).cases())
    first = zlib.crc32(name.encode()) % min(EVERY, len(everything))
    yield from everything if PROVE else everything[first::EVERY]


def is_small(bound: Any, config: helion.Config) -> bool:
    """Whether a launch of ``config`` runs few enough bodies to interpret, as the sizes are that ``bound`` was made for."""
    facts, sizes = bound.facts, bound.config_spec.sizes(config)
    chunks = math.prod(-(-axis.padded // sizes[axis.block_id]) for axis in facts.rolled_axes)
    return bodies(bound, config) * chunks <= MOST_BODIES


def run(kernel: Any, reference: Callable[..., Any], case: str, args: tuple[Any, ...], count: int) -> None:
    bound = kernel.bind(args)
    rng = random.Random(f"{kernel.name} {case}")
    left = count
    for _ in range(20 * count):
        config = bound.config_spec.random(rng)
        if True not in config["flatten_loops"]:  # a search tries it for long sums only
            config = bound.config_spec.normalize({**config, "epilogue_subtile": rng.choice((None, 2, 4))})
        if not is_small(bound, config):
            continue
        try:
            with detect_races():
                check(case, bound.compile_config(config), reference, args, slack=SLACK)
        except AssertionError as error:
            raise AssertionError(f"{kernel.name}, {case}, with {config!r}: {error}") from error
        except helion.exc.TritonError as error:
            if isinstance(error.__cause__, OutOfResources):
                continue  # a GPU has limits that the interpreter does not have
            raise
        left -= 1
        if not left:
            return
    assert left < count, f"no config of {kernel.name}, {case}, is small enough to run"


@pytest.mark.parametrize("name", NAMES)
def test_a_random_config_gives_the_eager_result(name: str) -> None:
    for case, kernel, args in cases(name):
        run(kernel, example(name).reference, case, args, SAMPLED)


@pytest.mark.prove
@pytest.mark.parametrize("name", NAMES)
def test_random_configs_give_the_eager_result(name: str) -> None:
    module = example(name)
    for case, kernel, args in module.cases():
        run(kernel, module.reference, case, args, PROVEN)


def small_config(kernel: Any, bound: Any, args: tuple[Any, ...]) -> helion.Config:
    """The conservative config, or the smallest tiles of twice, four times ... its sides that can be interpreted."""
    static, config = kernel.bind(args), bound.conservative_config()
    while not is_small(static, config):
        larger = {**config, "block_sizes": [2 * size for size in config["block_sizes"]]}
        config = bound.config_spec.normalize(larger)
    return config


@pytest.mark.parametrize("name", NAMES)
def test_dynamic_shapes_give_the_eager_result(name: str) -> None:
    module = example(name)
    dynamic = {}
    for case, kernel, args in cases(name):
        if kernel not in dynamic:
            dynamic[kernel] = helion.kernel(
                kernel.fn, static_shapes=False, ignore_warnings=["TensorOperationInWrapper"]
            )
        bound = dynamic[kernel].bind(args)
        check(case, bound.compile_config(small_config(kernel, bound, args)), module.reference, args)


@pytest.mark.prove
@pytest.mark.parametrize("name", NAMES)
def test_two_rewrites_give_the_eager_result(name: str) -> None:
    """All pairs of rewriting keys that a kernel has, with NaN in memory that nobody has written."""
    module = example(name)
    for case, kernel, args in module.cases():
        bound = kernel.bind(args)
        rng = random.Random(f"{kernel.name} {case}")
        for keys in pairs_of(bound, 2):
            for config in configs_of(bound, keys, rng, 1):
                run_poisoned(f"{name}, {case}", bound, config, module.reference, args, 3e-2)
