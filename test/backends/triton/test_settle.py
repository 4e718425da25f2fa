"""Normal forms: two configs are equal exactly when their code is, and what is predicted is what is launched."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import helion
from helion import exc
from helion._testing import EXAMPLES_DIR, as_meta, import_path
from helion.autotuner.space import ConfigSpace

#: Random configs per kernel, and keys changed in each: a sample, and what `make prove` looks at.
SAMPLED, PROVEN = (1, 4), (20, 12)
TARGETS = ("sm_90", "sm_100", "gfx942")
NAMES = sorted(p.stem for p in Path(EXAMPLES_DIR).glob("*.py") if p.stem != "demo" and not p.stem.startswith("_"))


@functools.cache
def kernels(example: str) -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """The kernels of an example, each with the arguments of its first case."""
    found: dict[str, tuple[Any, tuple[Any, ...]]] = {}
    for _, kernel, args in import_path(Path(EXAMPLES_DIR) / f"{example}.py").cases():
        found.setdefault(kernel.name, (kernel, as_meta(args)))
    return found


def pairs(space: ConfigSpace, count: int, changes: int, rng: Random) -> Iterator[tuple[helion.Config, helion.Config]]:
    """Random configs with ones that differ in one key before they are settled."""
    for _ in range(count):
        asked = {field.key: field.random(rng) for field in space.fields}
        if True not in asked["flatten_loops"]:  # a search tries it for long sums only
            asked["epilogue_subtile"] = rng.choice((None, 2, 4))
        config = space.repair(asked)
        fields = rng.sample(space.fields, changes)
        for field in fields:
            if others := field.neighbours(config[field.key]):
                yield config, space.repair({**asked, field.key: rng.choice(others)})


def check(example: str, targets: tuple[str, ...], count: int, changes: int) -> None:
    for name, (kernel, args) in kernels(example).items():
        for on in targets:
            try:
                bound = kernel.bind(args, target=on)
            except exc.BackendUnsupported:
                continue
            code = functools.cache(functools.partial(_code, bound))
            for config, other in pairs(bound.config_spec, count, changes, Random(f"{name} {on}")):
                assert bound.config_spec.normalize(config) == config, (name, on)
                differing = {key: (config[key], other[key]) for key in config if config[key] != other[key]}
                assert (code(config) == code(other)) == (not differing), (name, on, differing, config)
                launched = dict(bound._analysis.code(config).plan.launch.options)
                assert launched["num_warps"] == config["num_warps"], (name, on, config)


def _code(bound: Any, config: helion.Config) -> str:
    try:
        return bound.to_triton_code(config, output_origin_lines=False)
    except exc.ReadModifyWriteRace as refusal:
        return f"{refusal} {config!r}"


@pytest.mark.parametrize("example", NAMES)
def test_configs_are_equal_when_their_code_is(example: str) -> None:
    check(example, TARGETS[:1], *SAMPLED)


@pytest.mark.prove
@pytest.mark.parametrize("example", NAMES)
def test_all_configs_are_equal_when_their_code_is(example: str) -> None:
    check(example, TARGETS, *PROVEN)
