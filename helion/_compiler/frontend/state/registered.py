"""Block sizes and tunables that a kernel registers for its config, and the calls that do so."""

from __future__ import annotations

from ....fields import Fragment
from ..journal import Part


class Registered(Part):
    """Registrations of a kernel. Calls are identified by line and column; the generated host code replaces them by
    constants.
    """

    def __init__(self) -> None:
        self.tunables: dict[str, Fragment] = {}
        self.tunable_calls: dict[tuple[int, int], str] = {}
        #: Blocks that ``hl.register_block_size`` made.
        self.block_sizes: dict[tuple[int, int], int] = {}
        self.specialized_calls: set[tuple[int, int]] = set()
        #: Calls of factories in host code that get the kernel's device, by line and column.
        self.placed_calls: set[tuple[int, int]] = set()
        #: The host expression of an argument on that device, before the user's code runs.
        self.placed_by = ""
