"""What a kernel registers for its config, and the calls that do so."""

from __future__ import annotations

from ....fields import Fragment
from ..journal import Part


class Registered(Part):
    """Calls are known by the line and column they stand at: the generated host code has constants in their place."""

    def __init__(self) -> None:
        self.tunables: dict[str, Fragment] = {}
        self.tunable_calls: dict[tuple[int, int], str] = {}
        #: Blocks that ``hl.register_block_size`` made.
        self.block_sizes: dict[tuple[int, int], int] = {}
        self.specialized_calls: set[tuple[int, int]] = set()
        #: Calls of factories in host code that get the kernel's device, by line and column.
        self.placed_calls: set[tuple[int, int]] = set()
        #: The host expression of an argument whose device that is, before the user's code runs.
        self.placed_by = ""
