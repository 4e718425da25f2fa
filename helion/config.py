"""``helion.Config``: one point in the space of ways to compile a kernel."""

from __future__ import annotations

import html
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import exc
from ._support import files
from .fields import EnumFragment, Fragment, IntegerFragment

_TRISTATE = EnumFragment((None, True, False))


@dataclass(frozen=True, kw_only=True)
class RangeOption:
    """A config key with one entry per loop, which generated code passes to the ``tl.range`` of the loop.

    ``keyword`` is the parameter of ``tl.range``; an ``inverted`` one takes the opposite of the entry. ``off`` is the
    entry that leaves the argument out.
    """

    key: str
    singular: str
    keyword: str
    values: Fragment
    off: int | None
    doc: str
    inverted: bool = False


#: All options of loops; a new one is one more row.
RANGE_OPTIONS = (
    RangeOption(
        key="range_unroll_factors",
        singular="range_unroll_factor",
        keyword="loop_unroll_factor",
        values=IntegerFragment(0, 4, 0),
        off=0,
        doc="Unroll factor of a loop; 0 leaves it to Triton.",
    ),
    RangeOption(
        key="range_warp_specializes",
        singular="range_warp_specialize",
        keyword="warp_specialize",
        values=_TRISTATE,
        off=None,
        doc="Specialize the warps of a loop; None leaves it to Triton.",
    ),
    RangeOption(
        key="range_num_stages",
        singular="range_num_stage",
        keyword="num_stages",
        values=IntegerFragment(0, 4, 0),
        off=0,
        doc="Pipeline stages of a loop; 0 takes `num_stages`.",
    ),
    RangeOption(
        key="range_multi_buffers",
        singular="range_multi_buffer",
        keyword="disallow_acc_multi_buffer",
        values=_TRISTATE,
        off=None,
        doc="Allow several buffers for an accumulator of a loop; None leaves it to Triton.",
        inverted=True,
    ),
    RangeOption(
        key="range_flattens",
        singular="range_flatten",
        keyword="flatten",
        values=_TRISTATE,
        off=None,
        doc="Merge a loop with the loop in it; None leaves it to Triton.",
    ),
)

#: Accepted short forms of list keys.
SINGULAR = {
    "block_size": "block_sizes",
    "loop_order": "loop_orders",
    "l2_grouping": "l2_groupings",
    "flatten_loop": "flatten_loops",
    "reduction_loop": "reduction_loops",
    **{option.singular: option.key for option in RANGE_OPTIONS},
    "static_range": "static_ranges",
}

#: Lists whose entries are lists.
_NESTED = "loop_orders"
#: The short form that, given one number, applies to every reduction loop of the kernel.
EVERY_REDUCTION = "reduction_loop"

#: Config keys and their meaning. A kernel's own tunables are added to them. The kernel and the target decide which keys
#: a kernel has, how long its lists are and which values are legal.
_KEYS: dict[str, str] = {
    "block_sizes": "Elements of a tile along each dimension of `hl.tile` whose size the kernel does not fix, then each registered block size.",
    "loop_orders": "Order of the dimensions of a multi-dimensional loop: in a grid loop the first one listed varies fastest, in an inner loop the last.",
    "l2_groupings": "Number of tiles along the first dimension that run before the next tile along the second, so that neighboring programs share data in L2; 1 disables the grouping.",
    "flatten_loops": "Flatten the dimensions of a loop into one, whose blocks have the product of their sizes.",
    "reduction_loops": "Loop over a whole dimension (`:`): None holds it in one tile (a persistent reduction), a number is the chunk size of a loop.",
    **{option.key: option.doc for option in RANGE_OPTIONS},
    "static_ranges": "Unroll a loop with few iterations completely.",
    "num_warps": "Warps of a program, of 32 threads each (64 on AMD's data-center GPUs).",
    "num_stages": "Depth of the software pipeline: iterations of a loop whose loads are in flight at once.",
    "pid_type": "Mapping of programs to the grid: `flat` numbers them, `xyz` uses the dimensions of the grid. The `persistent_` ones launch as many programs as run at once; each takes consecutive (`persistent_blocked`) or interleaved tiles.",
    "num_sm_multiplier": "Programs per SM of a persistent grid.",
    "cooperative_launch": "Launch the grid loops before and after `hl.barrier()` as one kernel, whose persistent programs meet in between.",
    "maxnreg": "Maximum of registers per thread; None leaves it to the compiler.",
    "indexing": "Memory addressing: `pointer`, `block_ptr` or `tensor_descriptor` (TMA, if the GPU has it and the access fits; a pointer otherwise).",
    "atomic_indexing": "Accepted and checked, without effect: atomic operations use pointers. Another value is reported once.",
    "load_eviction_policies": "Eviction policy of the cache lines of a load: `first` is evicted first, `last` is kept, empty is the default.",
    "load_cache_modifiers": "Cache levels of a load: `.cg` bypasses L1, empty uses all.",
    "store_cache_modifiers": "Cache levels of a store: `.cs` is evicted first, `.wt` writes through L2, empty uses all.",
    "epilogue_subtile": "Number of column slices into which the epilogue of a matmul splits its result; None keeps it whole.",
    "advanced_controls_file": "Path of a file with options for NVIDIA's assembler.",
    "waves_per_eu": "On AMD GPUs: waves per execution unit that the compiler makes room for; 0 leaves it to Triton.",
    "matrix_instr_nonkdim": "On AMD GPUs: rows and columns of the matrix instruction; 0 leaves it to Triton.",
    "xcd_remap": "On AMD GPUs of several dies: number programs so that neighbors run on one die and share its L2 cache.",
}  # fmt: skip
#: Keys beyond those of the public API, which ``declare`` adds. A kernel may have a tunable of the same name: then the
#: name is the user's, and the kernel lacks the key.
_OWN_KEYS: set[str] = {"cooperative_launch"}
#: Former names of keys. A kernel that has no tunable of that name accepts them, and a config can be read by them.
RENAMED: Mapping[str, str] = {
    "turn_products": "swap_ab",
    "load_ahead": "prefetch_distance",
    "join_loops": "fuse_loops",
    "hoist_operands": "precompute_operands",
    "materialize_products": "unfuse_matmul",
    "product_num_warps": "matmul_num_warps",
    "product_num_stages": "matmul_num_stages",
}
#: Prefix of the name of such a tunable in the config space.
TUNABLE = "tunable_"
#: Values of keys that a config leaves out.
_LEFT_OUT: Mapping[str, Any] = {"num_warps": 4, "num_stages": 1, "pid_type": "flat", "num_sm_multiplier": 1}
_LISTS = frozenset(
    (*SINGULAR.values(), "indexing", "atomic_indexing", "load_eviction_policies", "load_cache_modifiers", "store_cache_modifiers")
)  # fmt: skip


_FLAT = frozenset(SINGULAR.values())


def _flat(value: Any) -> list[Any]:
    """Flatten nested lists, in order; anything else becomes a list of one."""
    if isinstance(value, (list, tuple)):
        for item in value:
            if isinstance(item, (list, tuple)):
                return [entry for item in value for entry in _flat(item)]
        return [*value]
    return [value]


def _list(key: str, value: Any, *, singular: bool) -> Any:
    """Return a list key's value: flat, except for loop orders, of which a singular key gives one."""
    if key != _NESTED:
        return _flat(value)
    return [value] if singular else value


#: Types of entries that are hashable as they are. Testing them first makes comparing configs fast.
_PLAIN = frozenset((int, float, bool, str, type(None)))


def _freeze(value: object) -> object:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (list, tuple)):
        return tuple([item if type(item) in _PLAIN else _freeze(item) for item in value])
    if isinstance(value, Mapping):
        return frozenset([(key, item if type(item) in _PLAIN else _freeze(item)) for key, item in value.items()])
    return value


def _property(key: str, doc: str) -> Any:
    """Make the property that reads a key. A key that is left out reads as its default; lists are empty then."""

    def read(config: Config) -> Any:
        return config.config.get(key, [] if key in _LISTS else _LEFT_OUT.get(key))

    return property(read, doc=doc)


class Config(Mapping[str, Any]):
    """Values for all that a kernel's source leaves open: tile sizes, loop orders, warps, stages, memory addressing.

    A mapping from config keys to values, hashable and immutable by convention. Values are attributes too.

    Lists are flattened, except for ``loop_orders``, which is a list of lists. A single value becomes a list of one.
    None for a list means that it is left out. The short forms (``block_size`` for ``block_sizes``) take the same.
    ``reduction_loop=n`` gives every reduction dimension that can be a loop the chunk size ``n``. Keys that are left out
    take their defaults when the config is applied to a kernel. Each kernel has its own keys and list lengths:
    ``bound.config_spec`` lists them, and refuses others with ``exc.InvalidConfig``.

    Args:
        keys: config keys and their values.

    Raises:
        exc.InvalidConfig: a key is given in both its forms.
    """

    __slots__ = ("_frozen", "_hash", "config")

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
        self._frozen: object = None

    @classmethod
    def of_full(cls, config: dict[str, Any]) -> Config:
        """Make a config of a dict whose keys are no short forms, and whose lists are flat. The dict becomes its own."""
        made = cls()
        made.config = config
        return made

    def __getitem__(self, key: str) -> Any:
        if key not in self.config and RENAMED.get(key) in self.config:
            key = RENAMED[key]
        return self.config[key]

    def __getattr__(self, name: str) -> Any:
        """Return the value of a kernel's own key, such as a tunable, as an attribute."""
        if name != "config" and name in self:
            return self[name]
        if not name.startswith("_"):
            _declare_all()
            if name in _KEYS:
                return getattr(self, name)
        raise AttributeError(f"helion.Config has no attribute {name!r}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.config)

    def __len__(self) -> int:
        return len(self.config)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Config) and self._key() == other._key())

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self._key())
        return self._hash

    def _key(self) -> object:
        if self._frozen is None:
            self._frozen = _freeze(self.config)
        return self._frozen

    def __reduce__(self) -> tuple[Any, ...]:
        return (Config.from_dict, (self.config,))  # hashes of strings differ between processes

    def __repr__(self) -> str:
        return f"helion.Config({', '.join(f'{key}={value!r}' for key, value in self.config.items())})"

    def _repr_html_(self) -> str:
        """Return a table of keys and values, as notebooks show it."""
        pairs = ((html.escape(str(each)) for each in (key, repr(value))) for key, value in self.config.items())
        rows = "".join(f"<tr><th>{key}</th><td><code>{value}</code></td></tr>" for key, value in pairs)
        return f"<table>{rows}</table>"

    def to_dict(self) -> dict[str, Any]:
        """Return a copy as a dict of plain values."""
        return json.loads(json.dumps(self.config))

    def to_json(self) -> str:
        """Return the config as JSON text."""
        return json.dumps(self.config, indent=2)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Config:
        """Make a config from a mapping of keys to values. Raises TypeError for anything else."""
        if not isinstance(config, Mapping):
            raise TypeError(f"a config is made of a dict, got {config!r}")
        return cls(**config)

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Make a config from JSON text.

        Raises:
            exc.InvalidConfig: ``text`` is no JSON object.
        """
        try:
            config = json.loads(text)
        except json.JSONDecodeError as error:
            raise exc.InvalidConfig(f"A config must be a JSON object: {error}.") from error
        if not isinstance(config, dict):
            raise exc.InvalidConfig(f"A config must be a JSON object, got {type(config).__name__}.")
        return cls(**config)

    def save(self, path: str | pathlib.Path) -> None:
        """Write the config to a file as JSON. The file appears whole or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        files.write_whole(pathlib.Path(path), self.to_json())

    @classmethod
    def load(cls, path: str | pathlib.Path) -> Config:
        """Read a config that ``save`` wrote.

        Raises:
            OSError: the file cannot be read.
            exc.InvalidConfig: it holds no JSON object.
        """
        return cls.from_json(pathlib.Path(path).read_text())

    def minimize(self, spec: Any) -> Config:
        """Return a config without the keys that are at their defaults.

        Args:
            spec: the space of a kernel, ``bound.config_spec``.

        Raises:
            exc.InvalidConfig: the config is not legal for that kernel.
        """
        full, defaults = spec.normalize(self), spec.normalize(Config())
        named = {key for key, value in full.items() if _freeze(value) != _freeze(defaults[key])}
        # some defaults follow other keys, and some do not fit them
        try:
            again = spec.normalize(Config(**{key: full[key] for key in full if key in named}))
        except exc.InvalidConfig:
            return Config(**full)
        named |= {key for key, value in full.items() if _freeze(value) != _freeze(again[key])}
        return Config(**{key: value for key, value in full.items() if key in named})


for _key, _doc in _KEYS.items():
    setattr(Config, _key, _property(_key, _doc))


def declare(key: str, doc: str) -> None:
    """Add a key beyond those of the public API. Each rewrite does so for its keys when it is imported."""
    _KEYS[key] = doc
    _OWN_KEYS.add(key)
    setattr(Config, key, _property(key, doc))


#: Functions that import modules which declare keys.
_DECLARING: list[Callable[[], object]] = []
if TYPE_CHECKING:
    KEYS, OWN_KEYS = _KEYS, _OWN_KEYS


def declared_by(load: Callable[[], object]) -> None:
    """Call ``load`` before ``KEYS``, ``OWN_KEYS`` or an unknown key is read: it imports a module that declares keys."""
    _DECLARING.append(load)


def _declare_all() -> None:
    for load in _DECLARING:
        load()


def key_named(name: str) -> str | None:
    """Return the config key with a name, also a short or a former one; None if there is none."""
    _declare_all()
    key = SINGULAR.get(name, name)
    key = RENAMED.get(key, key)
    return key if key in _KEYS else None


def __getattr__(name: str) -> Any:
    if name not in ("KEYS", "OWN_KEYS"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _declare_all()
    return _KEYS if name == "KEYS" else _OWN_KEYS


declare(
    "kpack",
    "On some AMD GPUs: steps of a matmul along K that one access to shared memory reads; None leaves it to Triton.",
)


def as_config(given: Config | Mapping[str, Any]) -> Config:
    """Return a config as it is, or make one from a dict.

    Raises TypeError for anything else and for keys that are not strings.
    """
    if isinstance(given, Config):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(f"a config is a helion.Config or a dict, got {given!r}")
    if wrong := [key for key in given if not isinstance(key, str)]:
        raise TypeError(f"the keys of a config are strings, got {wrong[0]!r}")
    return Config(**given)
