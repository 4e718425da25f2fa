"""Fitted parameters of the predicted time, as data."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Written by ``python benchmarks/time_model.py --fit`` from benchmarks/results/nvidia-h200-sweeps.tsv.
FITTED = Path(__file__).with_name("fitted.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters that no data sheet gives. Times in microseconds; shares are relative to the target's own number."""

    launch_us: float
    """From one launch to the next, without any work."""
    memory_share: float
    """Fraction of the memory bandwidth that a kernel of many programs reaches."""
    cache_speedup: float
    """Bandwidth of the L2 cache relative to memory."""
    sector_share: float
    """Cost of an unused sector, relative to a used one."""
    written_share: float
    """The same for a sector that a store writes partially."""
    line_cycles: float
    """Cycles of an SM for each line of the cache that a warp asks for, in whole or in part (measurement ``line_cycles``)."""
    near_share: float
    """Fraction of bytes read by the previous program on the same SM that are still in L1."""
    crowded: float
    """Fraction of the memory bandwidth lost by each doubling of the bytes in flight."""
    crowd_share: float
    """Fraction of the L2 cache: bytes in flight that cost nothing."""
    run_share: float
    """Cost of bytes in short runs relative to those in long ones."""
    kept_share: float
    """Fraction of the L2 cache: rows in flight that are all still cached when they are read again."""
    lost_share: float
    """Fraction of the L2 cache: further rows until none is cached."""
    first_share: float
    """Fraction of bytes with eviction policy "first" that memory serves in addition."""
    last_share: float
    """Fraction of bytes with eviction policy "last" that memory does not serve."""
    first_others: float
    """Fraction of bytes in sectors for other programs that memory serves again with eviction policy "first"."""
    others_share: float
    """The same where the cache has no room for the sectors in flight."""
    shifted_share: float
    """Fraction of the bytes of shifted tiles that are still in L1."""
    simple_ops: float
    """Instructions of one elementwise operation of 32 lanes."""
    special_ops: float
    """Instructions of a transcendental function."""
    special_issue: float
    """The same for the scheduler, which is free for others while the function unit works."""
    walked_ops: float
    """Operations of a chunked row beyond those of a whole row, relative to those: some repeat in each pass."""
    walked_special: float
    """The same for transcendental functions; a sum rescaled to a running maximum needs two where a whole row needs one.
    """
    access_ops: float
    """Instructions of one load or store, with its address and mask."""
    line_atomic_us: float
    """A warp's atomics to one line of the cache, which serves them one after the other."""
    lane_atomic_us: float
    """The same for each scattered element."""
    program_ops: float
    """Instructions of a warp at its start and end."""
    dependency: float
    """Cycles from one instruction of a warp to the next, relative to cycles per instruction of the scheduler."""
    step_ops: float
    """Instructions of an operation on a tile, in addition to those for each element."""
    step_waits: float
    """Instructions that a warp could issue while it waits for the result of one."""
    program_us: float
    """Between two programs on one SM."""
    warp_us: float
    """The same, for each warp of a program."""
    start_us: float
    """A program's first and last instructions."""
    wait_us: float
    """A load from memory outside of loops, which overlaps with other programs."""
    stored_wait: float
    """A load in a loop that stores, relative to that."""
    looped_wait: float
    """The same in other loops, of which ptxas keeps several in flight."""
    boxed_wait: float
    """The same for a load through a descriptor, for which all warps wait."""
    fenced_wait: float
    """The same in a loop in which warps wait for each other."""
    byte_us: float
    """A byte of one warp's load: a warp has few of them in flight."""
    fill_us: float
    """The first loads of a loop that prefetches."""
    pipelined_us: float
    """A prefetched load, over the steps between it and its use."""
    port_share: float
    """Time of a prefetched byte, relative to 64 of them in a cycle of an SM."""
    exchange_us: float
    """A reduction across warps."""
    barrier_us: float
    shuffle_us: float
    store_us: float
    descriptor_us: float
    """Creating a tensor descriptor in a program."""
    repeated: float
    """Fraction of a program's startup cost that its next tile pays again."""
    turned_us: float
    """A byte of a matmul result that goes to another warp, as an operand of the next dot."""
    hidden: float
    """Fraction of a program's fixed cost that is hidden where its loops are flattened with the tile loop."""
    matrix: float
    """Time of the asynchronous matrix unit relative to its data sheet."""
    synchronous: float
    """The same for the synchronous unit of a GPU that has both."""
    converted: float
    """The same for 4-byte operands that are not K-major."""
    product_us: float
    """Between two dots of one program."""
    operand_share: float
    """Time of operands from shared memory, at 128 bytes a cycle."""
    spill_free: float
    """Registers over the limit that ptxas saves, relative to the limit."""
    spill_cost: float
    """Accesses of a spilled register in each iteration."""
    abandoned: float
    """Accesses of all registers where ptxas spills everything, relative to those of a spilled one."""
    shuttled: float
    """Accesses of each elementwise operation there."""
    accumulator_spill: float
    """Fraction of an accumulator beyond the registers that is stored and loaded for each dot."""
    spill_us: float
    """A spilled byte of one program on its SM."""
    spill_misses: float
    """Fraction of those that reaches memory once they exceed the cache."""
    tail: float
    """Fraction of the idle SMs of a last round that others cannot use."""
    skew: float
    """Excess of the loops of a persistent program with consecutive tiles over the mean, where loops are uneven."""
    drain: float
    """Fraction of a round lost where the first programs begin and the last ones end together."""
    sharp: float
    """Exponent of the norm that joins units that work in parallel."""
    lone: float
    """The same where an SM has one program at a time."""
    joined: float
    """Increase of it for each further program."""
    chained: float
    """Exponent that joins this with the time of one program."""
    together: float
    """Exponent that joins the parts of a program in the iterations of a loop."""
    staged: float
    """Exponent that joins these with the prefetched loads of the loop."""
    uneven: float
    """Fraction of the work by which the SMs with the most programs exceed the mean that others cannot hide."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted:
    """Parameters of kernels with matmuls (``products``) and without (``others``), and the device they were
    measured on.

    ``errors`` has the error of predicted times (``Predicted.error``) by the unit that a launch waits for most; "" is
    any other unit. They are fitted to the samples of all GPUs.
    """

    device: str
    date: str
    versions: str
    errors: Mapping[str, float]
    products: Parameters
    others: Parameters

    def error_of(self, units: Sequence[tuple[str, float]]) -> float:
        """Return the error of a predicted time, from the microseconds of each unit."""
        return self.errors.get(limiting(units), self.errors[""])


def limiting(units: Sequence[tuple[str, float]]) -> str:
    """Return the unit that a launch waits for most; "" without any."""
    return max(units, key=lambda pair: pair[1], default=("", 0.0))[0]


@functools.cache
def fitted() -> Fitted:
    """Return the parameters that come with the package."""
    return read(FITTED.read_text())


def read(text: str) -> Fitted:
    """Return the parameters in ``text``; raise ``TypeError`` where one is missing or unknown."""
    data = json.loads(text)
    products, others = Parameters(**data.pop("products")), Parameters(**data.pop("others"))
    return Fitted(**data, products=products, others=others)


def write(found: Fitted) -> str:
    """Return the text that ``read`` parses, with four digits of each number."""
    data = dataclasses.asdict(found)
    for name in ("errors", "products", "others"):
        data[name] = {key: float(f"{value:.4g}") for key, value in data[name].items()}
    return json.dumps(data, indent=2) + "\n"
