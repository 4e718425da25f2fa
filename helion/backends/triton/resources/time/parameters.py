"""What the predicted time takes from measurements, as data."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

#: Written by ``python benchmarks/time_model.py --fit`` from benchmarks/results/nvidia-h200-sweeps.tsv.
FITTED = Path(__file__).with_name("fitted.json")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameters:
    """One number each for what no data sheet says. Times in microseconds; shares are of the target's own number."""

    launch_us: float
    """From one launch to the next, without any work."""
    memory_share: float
    """Of the memory's bandwidth that a kernel of many programs reaches."""
    cache_speedup: float
    """Bandwidth of the L2 cache over that of memory."""
    sector_share: float
    """Of a sector that nobody uses, what it costs."""
    written_share: float
    """The same of a sector that a store writes a part of."""
    near_share: float
    """Of bytes that the last program on the same SM has read, those that are still near it."""
    crowded: float
    """Of the memory's bandwidth, what each doubling of the bytes that programs wait for at once costs."""
    crowd_share: float
    """Of the L2 cache: bytes in flight that cost nothing yet."""
    run_share: float
    """What bytes in short runs cost beside those in long ones."""
    kept_share: float
    """Of the L2 cache: rows in flight of which all are still there when they are read again."""
    lost_share: float
    """Of the L2 cache: how many more until none is."""
    first_share: float
    """Of bytes that the L2 cache is asked to drop first, those that memory is asked for in addition."""
    last_share: float
    """Of bytes that it is asked to keep longest, those that it is not asked for."""
    simple_ops: float
    """Instructions of one elementwise operation of 32 lanes."""
    special_ops: float
    """Those of a transcendental function."""
    special_issue: float
    """The same of the scheduler, which others may use while that works."""
    walked_ops: float
    """Operations of a row in chunks, beyond those of a whole row, over those: some are done again in each pass."""
    walked_special: float
    """The same for transcendental functions; a running sum about a running maximum needs two where a row needs one."""
    access_ops: float
    """Those of one load or store, with its address and mask."""
    program_ops: float
    """Those of a warp that begins and ends."""
    dependency: float
    """Cycles from one instruction of a warp to the next, over cycles per instruction of the scheduler."""
    program_us: float
    """Between two programs on one SM."""
    warp_us: float
    """The same, for each warp of a program."""
    start_us: float
    """A program's first and last instructions."""
    wait_us: float
    """A load from memory."""
    looped_wait: float
    """Of that, a load in a loop, of which the assembler has several under way."""
    byte_us: float
    """A byte of one warp's load: a warp has few of them in flight."""
    pipelined_wait: float
    """Of a wait, what one iteration costs with one stage more than needed."""
    exchange_us: float
    """A reduction across warps."""
    barrier_us: float
    shuffle_us: float
    store_us: float
    descriptor_us: float
    """A tensor descriptor that a program makes."""
    repeated: float
    """Of what a program costs to begin, what its next tile costs again."""
    turned_us: float
    """A byte of a product that goes to another warp, as an operand of the next one."""
    hidden: float
    """Of what a program does once, what is hidden where its loops are one with the loop over tiles."""
    matrix: float
    """Time of the asynchronous matrix unit over that by its data sheet."""
    synchronous: float
    """The same for the unit without asynchronous instructions, beside the other one."""
    converted: float
    """The same for 4-byte operands that are not contiguous along K."""
    product_us: float
    """Between two products of one program."""
    operand_share: float
    """Time of operands from shared memory, at 128 bytes a cycle."""
    spill_free: float
    """Registers over the limit that the assembler saves, over the limit."""
    spill_cost: float
    """Accesses of a register that is spilled, in each iteration."""
    abandoned: float
    """Accesses of all registers where the assembler gives up, over those of one that is spilled."""
    shuttled: float
    """Accesses of each elementwise operation there."""
    accumulator_spill: float
    """Of an accumulator that does not fit in registers, what is stored and loaded for each product."""
    spill_us: float
    """A spilled byte of one program on its SM."""
    spill_misses: float
    """Of those, what reaches memory once they are more than the cache holds."""
    tail: float
    """Of the idle SMs of a last round, what others cannot use."""
    skew: float
    """Where loops are uneven, how much longer than the mean those are of a program that goes on to tiles next to each other."""
    drain: float
    """Of a round, what is lost where the first programs begin and the last ones end together."""
    sharp: float
    """Exponent of the norm that joins what units do at the same time."""
    lone: float
    """The same where an SM has one program at a time."""
    joined: float
    """What each further one adds to it."""
    chained: float
    """Exponent that joins this with the time of one program."""
    together: float
    """Exponent that joins what a program does in the iterations of a loop."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fitted:
    """Parameters with what they were measured on: of kernels with matrix ``products``, and of ``others``."""

    device: str
    date: str
    versions: str
    products: Parameters
    others: Parameters


@functools.cache
def fitted() -> Fitted:
    """Those that come with the product."""
    return read(FITTED.read_text())


def read(text: str) -> Fitted:
    """Raises TypeError where a parameter is missing or unknown."""
    data = json.loads(text)
    products, others = Parameters(**data.pop("products")), Parameters(**data.pop("others"))
    return Fitted(**data, products=products, others=others)


def write(found: Fitted) -> str:
    """The inverse of ``read``, with four digits of each number."""
    data = dataclasses.asdict(found)
    for name in ("products", "others"):
        data[name] = {key: float(f"{value:.4g}") for key, value in data[name].items()}
    return json.dumps(data, indent=2) + "\n"
