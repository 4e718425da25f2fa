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

#: Config keys and their meaning; a kernel's own tunables come on top. Which of them a kernel has, how long its lists are and
#: which values are legal, depends on the kernel and the target.
KEYS: Mapping[str, str] = {
    "block_sizes": "Elements of a tile along each dimension of `hl.tile` whose size the kernel leaves open, and each registered block size.",
    "loop_orders": "The order in which the tiles of a multi-dimensional loop are walked, the last dimension fastest.",
    "l2_groupings": "How many tiles along the first dimension are visited together before the next along the second, so that neighbouring programs share data in L2; 1 is row by row.",
    "flatten_loops": "Whether the dimensions of a loop are walked as one, with blocks of the product of their sizes.",
    "reduction_loops": "How a whole dimension (`:`) is walked: None holds it at once, a number walks it in chunks of so many elements.",
    "range_unroll_factors": "How often the body of a loop is repeated; 0 leaves it to Triton.",
    "range_warp_specializes": "Whether a loop gives its warps different roles; None leaves it to Triton.",
    "range_num_stages": "Pipeline stages of a loop; 0 takes `num_stages`.",
    "range_multi_buffers": "Whether an accumulator of a loop may have several buffers; None leaves it to Triton.",
    "range_flattens": "Whether a loop is merged with the loop in it; None leaves it to Triton.",
    "static_ranges": "Whether a loop with few iterations is unrolled completely.",
    "num_warps": "Warps of a program, of 32 threads each (64 on AMD's data-centre GPUs).",
    "num_stages": "Iterations of a loop whose loads are in flight at once.",
    "pid_type": "How programs are mapped to the grid: `flat` numbers them, `xyz` uses the dimensions of the grid, and the `persistent_` ones launch as many programs as run at once, each of which takes tiles in blocks or interleaved.",
    "num_sm_multiplier": "Programs per SM of a persistent grid.",
    "maxnreg": "Most registers of a thread; None leaves it to the compiler.",
    "indexing": "How memory is addressed: `pointer`, `block_ptr` or `tensor_descriptor` (copied by the GPU's copy engine, where it has one and the access fits; a pointer otherwise).",
    "atomic_indexing": "Accepted and checked, without effect: atomic operations use pointers, and a line says so where something else is asked for.",
    "load_eviction_policies": "What a load's cache lines are good for: `first` to be evicted first, `last` to be kept, empty for neither.",
    "load_cache_modifiers": "Cache levels of a load: `.cg` bypasses L1, empty uses all.",
    "store_cache_modifiers": "Cache levels of a store: `.cs` is evicted first, `.wt` writes through L2, empty uses all.",
    "epilogue_subtile": "Parts into which the columns of a matrix product's result are split before they are worked on and stored; None keeps them whole.",
    "split_k": "Programs that share the sums of a matrix product, or the sums and extrema of a loop, each for a part of the loop; a second kernel combines the parts, in their order, and does what follows, loops too by as many programs.",
    "turn_products": "Whether products of fp32 in TF32 are computed as their transposes, so that a right operand that is contiguous along N goes to the matrix unit through registers, as it is.",
    "peel_masks": "Whether loops with several matrix products are split into runs of tiles in which masks hide nothing, or everything, and of those between them.",
    "load_ahead": "Steps ahead of which loops over single indices load what their index says, into registers; 0 loads in the step itself. Where a loop has stages of its own, those are for what a thread has 4 bytes or more of, and this for the rest.",
    "join_loops": "Whether loops with matrix products that stand one behind the other and differ in numbers alone, such as those over the taps of a convolution, are one loop.",
    "hoist_operands": "Whether operands of a matrix product that are computed, such as weights of few bits, are computed once by a kernel in front, where each tile of the output would compute them again.",
    "pack_operands": "Whether operands of a matrix product whose rows are no multiples of 16 bytes are first copied to memory where they are.",
    "transpose_operands": "Whether operands of a product in TF32, or of 8 bits, that are not contiguous along K are first copied to memory where they are, which Hopper's matrix unit reads (a GPU that has it).",
    "materialize_products": "Rows, columns and elements along K of the tiles in which matrix products whose rows are reduced are computed by a kernel in front, which stores them, such as `[128, 128, 32]`; None computes them where they are used.",
    "product_num_warps": "Warps of the kernel that computes such products first; None takes `num_warps`.",
    "product_num_stages": "Iterations of its loop whose loads are in flight at once; None takes `num_stages`.",
    "advanced_controls_file": "Path of a file with options for NVIDIA's assembler.",
    "waves_per_eu": "On AMD GPUs: waves per execution unit that the compiler makes room for; 0 leaves it to Triton.",
    "matrix_instr_nonkdim": "On AMD GPUs: rows and columns of the matrix instruction; 0 leaves it to Triton.",
}  # fmt: skip
#: Keys beyond those of the public API, whose names kernels may have given to tunables: then the name is the user's, and the
#: kernel lacks the key.
OWN_KEYS = frozenset(
    (
        "split_k", "turn_products", "peel_masks", "load_ahead", "join_loops", "hoist_operands", "pack_operands",
        "transpose_operands", "materialize_products", "product_num_warps", "product_num_stages",
    )
)  # fmt: skip
#: What such a tunable is called where a config is decided on, before its own name.
TUNABLE = "tunable_"
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


def _property(key: str, doc: str) -> Any:
    """The value of a key, or what it reads as where it is left out: lists are empty then."""

    def read(config: Config) -> Any:
        return config.config.get(key, [] if key in _LISTS else _LEFT_OUT.get(key))

    return property(read, doc=doc)


class Config(Mapping[str, Any]):
    """All that a kernel's source leaves open: tile sizes, loop orders, warps, stages, how memory is addressed.

    A mapping from config keys to values, hashable and immutable by convention; values can be read as attributes too.

    Lists are flat however they are nested when given (``loop_orders`` has lists in it), a value alone is a list of one,
    and None for a list is as if it were left out. The short forms (``block_size`` for ``block_sizes``) take the same;
    ``reduction_loop=n`` gives every whole dimension that can be walked in chunks the chunk ``n``. Keys that are left out
    take their defaults when the config meets a kernel. Which keys exist and how long their lists are depends on the
    kernel: ``bound.config_spec`` knows, and refuses others with ``exc.InvalidConfig``.

    Args:
        keys: config keys and their values.

    Raises:
        exc.InvalidConfig: a key is given in both its forms.
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
        """Values of a kernel's own keys, such as tunables, as attributes."""
        if name != "config" and name in self.config:
            return self.config[name]
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
        """Return a copy as a dict of plain values."""
        return json.loads(json.dumps(self.config))

    def to_json(self) -> str:
        """Return the config as JSON text."""
        return json.dumps(self.config, indent=2)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Config:
        """Make a config of a mapping from keys to values. Raises TypeError for anything else."""
        if not isinstance(config, Mapping):
            raise TypeError(f"a config is made of a dict, got {config!r}")
        return cls(**config)

    @classmethod
    def from_json(cls, text: str) -> Config:
        """Make a config of JSON text.

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
        _files.write_whole(pathlib.Path(path), self.to_json())

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
        # some defaults follow other keys
        again = spec.normalize(Config(**{key: full[key] for key in full if key in named}))
        named |= {key for key, value in full.items() if _freeze(value) != _freeze(again[key])}
        return Config(**{key: value for key, value in full.items() if key in named})


for _key, _doc in KEYS.items():
    setattr(Config, _key, _property(_key, _doc))


def as_config(given: Config | Mapping[str, Any]) -> Config:
    """A config as it is, or made of a dict. Raises TypeError for anything else, and for keys that are no strings."""
    if isinstance(given, Config):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(f"a config is a helion.Config or a dict, got {given!r}")
    if wrong := [key for key in given if not isinstance(key, str)]:
        raise TypeError(f"the keys of a config are strings, got {wrong[0]!r}")
    return Config(**given)
