"""``helion.Config``: one point in the space of ways to compile a kernel."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from . import exc

#: Accepted short forms: a scalar is wrapped into a list of one.
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

#: What every kernel's config may say; a kernel's own tunables come on top.
KEYS = frozenset(
    (
        *SINGULAR.values(), "num_warps", "num_stages", "pid_type", "num_sm_multiplier", "maxnreg", "indexing",
        "atomic_indexing", "load_eviction_policies", "load_cache_modifiers", "store_cache_modifiers",
        "epilogue_subtile", "advanced_controls_file",
    )
)  # fmt: skip


def _freeze(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return tuple(_freeze(item) for item in value)
    if isinstance(value, Mapping):
        return tuple(sorted((key, _freeze(item)) for key, item in value.items()))
    return value


class Config(Mapping[str, Any]):
    """A mapping from config keys to values, hashable and immutable by convention.

    Keys that are left out take their defaults when the config meets a kernel. Which keys exist and how long their
    lists are depends on the kernel: ``bound.config_spec`` knows, and refuses others with ``exc.InvalidConfig``.
    """

    __slots__ = ("_hash", "config")

    def __init__(self, **keys: Any) -> None:
        config: dict[str, Any] = {}
        for key, value in keys.items():
            plural = SINGULAR.get(key)
            if plural is None:
                config[key] = value
            elif plural in keys:
                raise exc.InvalidConfig(f"Both {key!r} and {plural!r} are given; keep one of them.")
            else:
                config[plural] = [value]
        self.config = config
        self._hash: int | None = None

    def __getitem__(self, key: str) -> Any:
        return self.config[key]

    def __getattr__(self, name: str) -> Any:
        """Values can be read as attributes too; keys that are left out of the config are None."""
        if name in KEYS or (name != "config" and name in self.config):
            return self.config.get(name)
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
        """Write as JSON; the file appears whole or not at all."""
        path = pathlib.Path(path)
        temporary = path.with_name(f"{path.name}.tmp")
        temporary.write_text(self.to_json())
        temporary.replace(path)

    @classmethod
    def load(cls, path: str | pathlib.Path) -> Config:
        return cls.from_json(pathlib.Path(path).read_text())

    def minimize(self, spec: Any) -> Config:
        """Without the keys that equal the defaults of ``spec`` (a kernel's ``bound.config_spec``)."""
        full, defaults = spec.normalize(self), spec.normalize(Config())
        return Config(**{key: value for key, value in full.items() if _freeze(value) != _freeze(defaults[key])})
