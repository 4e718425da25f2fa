"""Configs that ask for two rewrites, or three, of one kernel, and runs of them that find memory which nobody has written."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

import helion
from helion import exc
from helion._testing import check, map_tensors
from helion.backends.triton.execute.interpreter.races import detect_races

_EVERY = object()
#: Above this many bodies of grids and loops a config takes seconds in the interpreter.
MOST_BODIES = 120

#: Config keys that rewrite a program, with the values that are tried; a list's entries all have the value.
REWRITES: dict[str, tuple[Any, ...]] = {
    "split_k": (2, 4),
    "swap_ab": (True,),
    "transpose_operands": (True,),
    "pack_operands": (True,),
    "precompute_operands": (True,),
    "fuse_loops": (True,),
    "peel_masks": (True,),
    "prefetch_distance": (1, 2, 3),
    "unfuse_matmul": ([16, 16, 16], [32, 16, 32]),
    "epilogue_subtile": (2, 4),
    "flatten_loops": (True,),
    "reduction_loops": (8, 16),
    "static_ranges": (True,),
    "range_unroll_factors": (2,),
    "loop_orders": (_EVERY,),
    "pid_type": ("persistent_blocked", "persistent_interleaved"),
    "indexing": ("block_ptr", "tensor_descriptor"),
}
#: Those of which nothing but the rewrite is asked: the others go along with anything.
PROGRAM_REWRITES = tuple(REWRITES)[:12]


class Poison(TorchFunctionMode):
    """Memory that torch makes without contents holds NaN, or large numbers."""

    _MAKERS = frozenset((torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in self._MAKERS and made.device.type == "cpu":
            poison(made)
        return made


def poison(tensor: torch.Tensor) -> None:
    """Fill memory that nobody has written."""
    if tensor.dtype.is_complex or tensor.dtype == torch.bool:
        return
    if tensor.dtype.is_floating_point:
        tensor.fill_(float("nan"))
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).max - 5)


def asked(config: dict[str, Any], key: str, value: Any) -> Any:
    """What a config says that asks for ``value`` of ``key`` everywhere."""
    before = config[key]
    if value is _EVERY:
        return [order[::-1] for order in before]
    if key == "unfuse_matmul" or not isinstance(before, list):
        return value
    return [value] * len(before)


def pairs_of(bound: Any, count: int) -> list[tuple[str, ...]]:
    """Return all sets of ``count`` rewrites that a kernel has keys for."""
    config = bound.conservative_config()
    keys = [key for key in REWRITES if config.get(key, []) != []]
    sets = itertools.combinations(keys, count)
    return [each for each in sets if any(key in PROGRAM_REWRITES for key in each)]


def configs_of(bound: Any, keys: tuple[str, ...], rng: random.Random, count: int) -> Iterator[helion.Config]:
    """Give up to ``count`` configs that have all ``keys``, in tiles that a seed, a random config, or the conservative one has."""
    spec = bound.config_spec
    given: list[helion.Config] = []
    for _ in range(6 * count):
        base = rng.choice((bound.conservative_config, lambda: spec.random(rng), lambda: spec.random(rng)))()
        wish = dict(base)
        for key, neutral in (("flatten_loops", False), ("static_ranges", False), ("range_unroll_factors", 0)):
            if isinstance(wish.get(key), list):
                wish[key] = [neutral] * len(wish[key])
        if "epilogue_subtile" not in keys:
            wish["epilogue_subtile"] = None
        wish.update({key: asked(wish, key, rng.choice(REWRITES[key])) for key in keys})
        try:
            config = spec.repair(wish)
        except exc.InvalidConfig:
            continue
        if bodies(bound, config) > MOST_BODIES:
            continue
        granted = all(has_rewrite(config, bound.conservative_config(), key) for key in keys)
        if granted and config not in given:
            given.append(config)
            yield config
            if len(given) == count:
                return


def bodies(bound: Any, config: helion.Config) -> int:
    """Return how many bodies of grids and loops the interpreter runs for a config."""
    facts, sizes = bound.facts, bound.config_spec.sizes(config)

    def tiles(axis: int) -> int:
        fact, size = facts.axes[axis], sizes[axis]
        extent = fact.mean if fact.extent is None else fact.extent
        if extent is None:  # of the tile of another loop, or unknown
            extent = size if fact.outer is None else sizes[fact.outer]
        return max(1, -(-extent // size))

    return sum(math.prod(map(tiles, facts.enclosing_axes(region.region))) for region in facts.regions)


def has_rewrite(config: helion.Config, plain: helion.Config, key: str) -> bool:
    return config[key] != plain[key]


def run_poisoned(
    what: str, bound: Any, config: helion.Config, reference: Callable[..., Any], args: tuple[Any, ...], tolerance: float
) -> None:
    """Compare one config with eager PyTorch; results of 8 bits by the precision of their dtype."""
    given = map_tensors(args, _like)
    in_bytes = any(isinstance(arg, torch.dtype) and arg.itemsize == 1 for arg in args)
    with Poison(), detect_races():
        compiled = bound.compile_config(config)
        check(f"{what} with {config}", compiled, reference, given, rtol=None if in_bytes else tolerance)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy that lies in memory as ``tensor`` does."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
