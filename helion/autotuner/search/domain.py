"""Domains of a search: the whole space of a kernel, or a list of configs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Protocol

import numpy as np

from ... import exc
from ...config import Config
from ..space import ConfigSpace, Field
from .time_model import TimeModel

#: Maximum of draws for a sample that is predicted to fit and not refused.
_TRIES = 20
#: Distance of one step of a key of weight 1, and the power of the weight that scales it for others. Without it, the
#: many unimportant keys make all configs of a large space equally distant.
_UNIT, _BY_WEIGHT = 0.4, 0.7
#: Keys of the sizes of tiles, and of the threads that share them.
_SIZES, _THREADS = frozenset({"block_sizes", "reduction_loops"}), frozenset({"num_warps"})
#: Configs of a list that count as one step away.
_NEAREST = 8


class Domain(Protocol):
    """Full configs that can be tried, with a neighborhood."""

    @property
    def seeds(self) -> tuple[Config, ...]:
        """The configs to begin with, the most promising first."""
        ...

    @property
    def configs(self) -> tuple[Config, ...] | None:
        """All configs; None if they are too many to list."""
        ...

    def random(self, rng: Random) -> Config | None:
        """Draw a config; None if none was found."""
        ...

    def mutated(self, config: Config, rng: Random) -> Config | None:
        """Mutate a config by one or a few steps."""
        ...

    def neighbours(self, config: Config) -> Iterator[Config]:
        """Yield all configs one step away, those along the most important keys first; made on demand."""
        ...

    def balanced(self, config: Config) -> Iterator[Config]:
        """Yield configs two steps away in which a thread has as many elements: smaller tiles with fewer warps, and one
        tile traded for another.
        """
        ...

    def differed(self, base: Config, plus: Config, minus: Config, rng: Random) -> Config | None:
        """Move ``base`` in the direction from ``minus`` to ``plus``, in most of its keys."""
        ...

    def features(self, config: Config) -> Sequence[float]:
        """Return features: configs of similar times have close ones."""
        ...

    def log_time(self, config: Config) -> float:
        """Return the natural logarithm of the predicted microseconds."""
        ...


def scale(field: Field) -> float:
    """Return the scale of distances between values of a field, relative to other fields."""
    return _UNIT * field.weight**_BY_WEIGHT


def _often(field: Field) -> float:
    """Return the relative frequency of changes of a field; important list fields count once per entry."""
    entries = field.default()
    return field.weight * (len(entries) if field.weight > 1 and isinstance(entries, list) else 1)


def coordinates(fields: Sequence[Field], config: Mapping[str, Any]) -> list[float]:
    """Return the coordinates of a full config; see ``Field.coordinates``.

    The most important keys have the largest distances.
    """
    return [scale(field) * place for field in fields for place in field.coordinates(config[field.key])]


class SpaceDomain:
    """The space of a kernel, without configs that are predicted not to fit; ``overrides`` are fixed.

    ``admit`` filters or replaces a full config, None drops it. ``seeds`` are used unchanged. Steps change only fields
    that ``moves`` accepts. ``scales`` are those of distances.
    """

    configs = None

    def __init__(
        self,
        space: ConfigSpace,
        model: TimeModel,
        seeds: Sequence[Config] = (),
        overrides: Mapping[str, Any] | None = None,
        admit: Callable[[Config], Config | None] = lambda config: config,
        moves: Callable[[Field], bool] = lambda field: True,
        scales: Callable[[Field], float] = scale,
    ) -> None:
        self.seeds = tuple(dict.fromkeys(seeds))
        self._admit = admit
        self._space = space
        self._model = model
        self._scales = {field.key: scales(field) for field in space.fields}
        self._overrides = dict(overrides or {})
        free = (field for field in space.fields if field.key not in self._overrides and field.default() != [])
        self._movable = [field for field in free if moves(field)]
        self._weights = [_often(field) for field in self._movable]

    def random(self, rng: Random) -> Config | None:
        return self._first(lambda: {field.key: field.random(rng) for field in self._space.fields})

    def mutated(self, config: Config, rng: Random) -> Config | None:
        def changed() -> Mapping[str, Any]:
            values = dict(config)
            while True:
                (field,) = rng.choices(self._movable, self._weights)
                options = field.neighbours(values[field.key])
                values[field.key] = rng.choice(options) if options else values[field.key]
                if rng.random() < 0.5:
                    return values

        return self._first(changed, other_than=config)

    def neighbours(self, config: Config) -> Iterator[Config]:
        steps = list(_steps(self._movable, config))
        steps.sort(key=lambda step: -step[0].weight)
        given = {config}
        for field, value in steps:
            other = self._legal({**config, field.key: value})
            if other is not None and other not in given:
                given.add(other)
                yield other

    def balanced(self, config: Config) -> Iterator[Config]:
        sizes = [field for field in self._movable if field.key in _SIZES]
        threads = [field for field in self._movable if field.key in _THREADS]
        given = {config}
        for one, value in _steps(sizes, config):
            grown, changed = _growth(one, config[one.key], value), {**config, one.key: value}
            with_fewer = [(threads, grown)] if grown < 0.0 else []
            for fields, balance in (*with_fewer, (sizes, -grown)):
                for other, second in _steps(fields, changed):
                    if _growth(other, changed[other.key], second) != balance:
                        continue
                    found = self._legal({**changed, other.key: second})
                    if found is not None and found not in given:
                        given.add(found)
                        yield found

    def differed(self, base: Config, plus: Config, minus: Config, rng: Random) -> Config | None:
        def moved() -> Mapping[str, Any]:
            return {**base, **{f.key: _moved(f, base, plus, minus) for f in self._movable if rng.random() < _CROSSOVER}}

        return self._first(moved, other_than=base)

    def features(self, config: Config) -> Sequence[float]:
        places = ((self._scales[field.key], field.coordinates(config[field.key])) for field in self._space.fields)
        return [*(each * place for each, found in places for place in found), *self._model.features(config)]

    def log_time(self, config: Config) -> float:
        return self._model.log_time(config)

    def _first(self, draw: Any, other_than: Config | None = None) -> Config | None:
        for _ in range(_TRIES):
            found = self._legal(draw())
            if found is not None and found != other_than:
                return found
        return None

    def _legal(self, wish: Mapping[str, Any]) -> Config | None:
        """Return the legal config for given values; None if it is refused, or predicted not to fit."""
        try:
            config = self._admit(self._space.repair({**wish, **self._overrides}))
        except (exc.InvalidConfig, exc.NoFeasibleConfig):
            return None
        return config if config is not None and self._model.fits(config) else None


def _steps(fields: Iterable[Field], values: Mapping[str, Any]) -> Iterator[tuple[Field, Any]]:
    """Yield the fields with each value one step away."""
    return ((field, value) for field in fields for value in field.neighbours(values[field.key]))


def _growth(field: Field, before: Any, after: Any) -> float:
    """Return the steps of size from one value of a field to another, less than 0 if it becomes smaller."""
    return sum(field.coordinates(after)) - sum(field.coordinates(before))


#: The fraction of keys that differential evolution changes.
_CROSSOVER = 0.8


def _moved(field: Field, base: Config, plus: Config, minus: Config) -> Any:
    """Return the value one step from that of ``base`` that is farthest in the direction from ``minus`` to ``plus``."""
    key = field.key
    here, up, down = (np.array(field.coordinates(config[key])) for config in (base, plus, minus))
    direction = up - down
    if not direction.any():
        return base[key]
    steps = field.neighbours(base[key])
    return max(steps, key=lambda value: float((field.coordinates(value) - here) @ direction), default=base[key])


class ListedDomain:
    """The configs of a list, which are full ones of a space with these ``fields``.

    The first one is the start unless there are ``seeds``.
    """

    def __init__(
        self,
        configs: Sequence[Config],
        fields: Sequence[Field],
        model: TimeModel,
        seeds: Sequence[Config] | None = None,
    ) -> None:
        self.configs: tuple[Config, ...] = tuple(dict.fromkeys(configs))
        self.seeds = self.configs[:1] if seeds is None else tuple(seed for seed in seeds if seed in set(self.configs))
        self._model = model
        self._places = np.array([coordinates(fields, config) for config in self.configs])
        self._at = {config: at for at, config in enumerate(self.configs)}

    def random(self, rng: Random) -> Config | None:
        return rng.choice(self.configs) if self.configs else None

    def mutated(self, config: Config, rng: Random) -> Config | None:
        near = list(self.neighbours(config))
        return rng.choice(near) if near else None

    def neighbours(self, config: Config) -> Iterator[Config]:
        return iter(self._near(self._places[self._at[config]], config)[:_NEAREST])

    def balanced(self, config: Config) -> Iterator[Config]:
        return iter(())

    def differed(self, base: Config, plus: Config, minus: Config, rng: Random) -> Config | None:
        up, down = self._places[self._at[plus]], self._places[self._at[minus]]
        chosen = np.array([rng.random() < _CROSSOVER for _ in range(self._places.shape[1])])
        return next(iter(self._near(self._places[self._at[base]] + chosen * (up - down), base)), None)

    def features(self, config: Config) -> Sequence[float]:
        return [*self._places[self._at[config]], *self._model.features(config)]

    def log_time(self, config: Config) -> float:
        return self._model.log_time(config)

    def _near(self, place: Any, other_than: Config) -> list[Config]:
        """List the configs by their distance from a place."""
        order = np.argsort(((self._places - place) ** 2).sum(1), kind="stable")
        return [self.configs[at] for at in order if self.configs[at] != other_than]
