"""Configs to try for a kernel: its default, all of its seeds, and random legal ones that compile quickly."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import helion
from helion.autotuner.space import ConfigSpace
from helion.runtime.bound import BoundKernel

#: Limits on the elements of a program's largest value, and on its elements per thread over all copies of an unrolled
#: loop. Matmuls may exceed the latter. Other kernels take seconds to compile; one draw in ``RARELY`` may have ``MORE``
#: times as many.
ELEMENTS, PER_THREAD, PER_THREAD_OF_PRODUCTS, RARELY, MORE = 8192, 16, 64, 24, 8
#: Fraction of random configs that are a seed with some keys changed, and the chance that a key changes. Seeds have
#: tiles that users choose and matrix units need. Of these, the fraction in which every access uses TMA if it can.
NEAR_SEEDS, MUTATED, DESCRIPTORS = 0.5, 0.2, 0.25
#: Of random configs, the part that is tried on a backend whose compiler takes seconds.
SLOW_BACKENDS = {"cute": 3}
#: Programs and loop iterations that the interpreter can run in a moment, and draws until one is taken anyway.
MOST_TILES, DRAWS = 400, 40


def choose(bound: BoundKernel, rng: random.Random, count: int, small: bool) -> list[helion.Config]:
    """Return the default config, the seeds and at least ``count`` others where there are so many, each once."""
    count //= SLOW_BACKENDS.get(bound.backend, 1)
    chosen = dict.fromkeys(
        [bound.default_config(), bound.conservative_config(), *(seed.config for seed in bound.seeds)]
    )
    for _ in range(3 * count):
        if len(chosen) >= count + 2 + len(bound.seeds):
            break
        chosen.setdefault(_drawn(bound, rng, small))
    return list(chosen)


def _drawn(bound: BoundKernel, rng: random.Random, small: bool) -> helion.Config:
    space = bound.config_spec
    factor = MORE if rng.randrange(RARELY) == 0 and not small else 1
    near = [seed.config for seed in bound.seeds] if rng.random() < NEAR_SEEDS else []
    for _ in range(DRAWS):
        config = _mutated(space, rng.choice(near), rng) if near else space.random(rng)
        sizes = space.sizes(config)
        if _is_quick(bound, config, sizes, factor) and not (small and _tiles(bound, sizes) > MOST_TILES):
            return config
    return space.conservative()


def _mutated(space: ConfigSpace, config: Mapping[str, Any], rng: random.Random) -> helion.Config:
    """Return a legal config that differs from ``config`` in some keys: in one entry of a list, or in all of it."""
    changed = dict(config)
    for field in space.fields:
        if rng.random() >= MUTATED:
            continue
        value, now = field.random(rng), changed.get(field.key)
        if isinstance(value, list) and isinstance(now, list) and len(value) == len(now) > 0 and rng.random() < 0.5:
            at = rng.randrange(len(now))
            value = [*now[:at], value[at], *now[at + 1 :]]
        changed[field.key] = value
    if "indexing" in changed and rng.random() < DESCRIPTORS:
        changed["indexing"] = ["tensor_descriptor" for _ in changed["indexing"]]
    return space.repair(changed)


def _is_quick(bound: BoundKernel, config: Mapping[str, Any], sizes: Mapping[int, int], factor: int) -> bool:
    """Return whether a config compiles quickly, by its largest value, its precomputed matmuls, and its unrolling."""
    largest = max((volume.numel(sizes) for volume in bound.config_spec.shape.volumes), default=1)
    first = config.get("unfuse_matmul")
    if first:
        m, n, k = first
        largest = max(largest, m * n, m * k, n * k)
    copies = math.prod(max(1, each) for each in config.get("range_unroll_factors", ()))
    threads = 32 * config.get("num_warps", 4)
    most = PER_THREAD_OF_PRODUCTS if bound.config_spec.shape.matrix_blocks else PER_THREAD
    return largest <= factor * ELEMENTS and largest * copies <= factor * most * threads


def _tiles(bound: BoundKernel, sizes: Mapping[int, int]) -> int:
    """Return approximately how many tiles the loops of a kernel iterate over, as if all were nested."""
    shape = bound.config_spec.shape
    counts = [1]
    for loop in shape.loops:
        for block in (shape.blocks[axis.block] for axis in loop.axes):
            if isinstance(block.extent, int):
                counts.append(math.ceil(block.extent / sizes[block.id]))
    return math.prod(counts)


def fitted(bound: BoundKernel, wanted: Mapping[str, Any]) -> helion.Config:
    """Return a legal config of ``bound`` that is like one of another kernel: lists have the lengths that they have here."""
    full = bound.conservative_config()
    kept: dict[str, Any] = {}
    for key, default in full.items():
        value = wanted.get(key, default)
        if isinstance(default, list) and isinstance(value, list):
            value = [*value[: len(default)], *default[len(value) :]]
        kept[key] = value
    return bound.config_spec.repair(kept)
