"""``helion.Config``: one point in the space of ways to compile a kernel."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from . import _files, exc

#: Accepted short forms of list keys.
SINGULAR = {
    "block_size": "block_sizes",
    "loop_order": "loop_orders",
    "l2_grouping": "l2_groupings",
    "flatten_loop": "flatten_loops",
    "reduction_loop": "reduction_loops",
    "range_unroll_factor": "range_unroll_factors",
    "range_warp_specialize": "range_warp_specializes",
    "range_num_stage": "range_num_stages",
    "range_multi_buffer": "range_multi_buffers",
    "range_flatten": "range_flattens",
    "static_range": "static_ranges",
}

#: Lists whose entries are lists.
_NESTED = "loop_orders"
#: The short form that, given one number, stands for a list as long as the kernel has room for.
EVERY_REDUCTION = "reduction_loop"

#: What every kernel's config may say; a kernel's own tunables come on top.
KEYS = frozenset(
    (
        *SINGULAR.values(), "num_warps", "num_stages", "pid_type", "num_sm_multiplier", "maxnreg", "indexing",
        "atomic_indexing", "load_eviction_policies", "load_cache_modifiers", "store_cache_modifiers",
        "epilogue_subtile", "advanced_controls_file",
    )
)  # fmt: skip
#: What a key that is left out of a config reads as.
_LEFT_OUT: Mapping[str, Any] = {"num_warps": 4, "num_stages": 1, "pid_type": "flat", "num_sm_multiplier": 1}
_LISTS = frozenset(
    (*SINGULAR.values(), "indexing", "atomic_indexing", "load_eviction_policies", "load_cache_modifiers", "store_cache_modifiers")
)  # fmt: skip


_FLAT = frozenset(SINGULAR.values())


def _flat(value: Any) -> list[Any]:
    """The entries of lists in lists, in order; anything else is a list of one."""
    if isinstance(value, (list, tuple)):
        return [entry for item in value for entry in _flat(item)]
    return [value]


def _list(key: str, value: Any, *, singular: bool) -> Any:
    """A list key's value: flat, but for orders of loops, of which a singular key gives one."""
    if key != _NESTED:
        return _flat(value)
    return [value] if singular else value


#: Types of entries that are hashable as they are; asking first is what makes comparing configs fast.
_PLAIN = frozenset((int, float, bool, str, type(None)))


def _freeze(value: object) -> object:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(item) for item in value)
    if isinstance(value, Mapping):
        return tuple(sorted((key, _freeze(item)) for key, item in value.items()))
    return value


class Config(Mapping[str, Any]):
    """A mapping from config keys to values, hashable and immutable by convention.

    Lists are flat however they are nested when given (``loop_orders`` has lists in it), a value alone is a list of one,
    and None for a list is as if it were left out. The short forms (``block_size`` for ``block_sizes``) take the same;
    ``reduction_loop=n`` gives every whole dimension that can be walked in chunks the chunk ``n``. Keys that are left out take their defaults when the config meets a kernel. Which keys exist and how long their
    lists are depends on the kernel: ``bound.config_spec`` knows, and refuses others with ``exc.InvalidConfig``.
    """

    __slots__ = ("_hash", "config")

    def __init__(self, **keys: Any) -> None:
        config: dict[str, Any] = {}
        for key, value in keys.items():
            plural = SINGULAR.get(key, key)
            if plural != key and plural in keys:
                raise exc.InvalidConfig(f"Both {key!r} and {plural!r} are given; keep one of them.")
            if plural not in _FLAT or (key == EVERY_REDUCTION and isinstance(value, int)):
                config[key] = value
            elif value is not None:
                config[plural] = _list(plural, value, singular=plural != key)
        self.config = config
        self._hash: int | None = None

    def __getitem__(self, key: str) -> Any:
        return self.config[key]

    def __getattr__(self, name: str) -> Any:
        """Values can be read as attributes too. Keys that are left out of the config are what the public API says they
        are then: lists are empty, ``num_warps`` is 4, ``num_stages`` 1, and others are None."""
        if name != "config" and name in self.config:
            return self.config[name]
        if name in KEYS:
            return [] if name in _LISTS else _LEFT_OUT.get(name)
        raise AttributeError(f"helion.Config has no attribute {name!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.config)

    def __len__(self) -> int:
        return len(self.config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and _freeze(self.config) == _freeze(other.config)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(_freeze(self.config))
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (Config.from_dict, (self.config,))  # hashes of strings differ between processes

    def __repr__(self) -> str:
        return f"helion.Config({', '.join(f'{key}={value!r}' for key, value in self.config.items())})"

    def to_dict(self) -> dict[str, Any]:
        """A copy as a plain dict."""
        return json.loads(json.dumps(self.config))

    def to_json(self) -> str:
        return json.dumps(self.config, indent=2)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Config:
        return cls(**config)

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Raises ``exc.InvalidConfig`` unless ``text`` is a JSON object."""
        try:
            config = json.loads(text)
        except json.JSONDecodeError as error:
            raise exc.InvalidConfig(f"A config must be a JSON object: {error}.") from error
        if not isinstance(config, dict):
            raise exc.InvalidConfig(f"A config must be a JSON object, got {type(config).__name__}.")
        return cls(**config)

    def save(self, path: str | pathlib.Path) -> None:
        """Write as JSON; the file appears whole or not at all, and a link in its place is replaced. Raises OSError."""
        _files.write_whole(pathlib.Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | pathlib.Path) -> Config:
        return cls.from_json(pathlib.Path(path).read_text())

    def minimize(self, spec: Any) -> Config:
        """Without the keys that equal the defaults of ``spec`` (a kernel's ``bound.config_spec``)."""
        full, defaults = spec.normalize(self), spec.normalize(Config())
        return Config(**{key: value for key, value in full.items() if _freeze(value) != _freeze(defaults[key])})


def as_config(given: Config | Mapping[str, Any]) -> Config:
    """A config as it is, or made of a dict. Raises TypeError for anything else, and for keys that are no strings."""
    if isinstance(given, Config):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(f"a config is a helion.Config or a dict, got {given!r}")
    if wrong := [key for key in given if not isinstance(key, str)]:
        raise TypeError(f"the keys of a config are strings, got {wrong[0]!r}")
    return Config(**given)
