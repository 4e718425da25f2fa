"""The printed tiles and blocks of attention and of its gradients, as Python executes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from helion.backends.cute.codegen.attention import bounds
from helion.backends.cute.plan.attention.records import ScorePlan


def function(lines: list[str], name: str) -> Callable[..., Any]:
    """Return a printed function of integers, with the DSL's names as Python's."""
    names: dict[str, Any] = {
        "cutlass": SimpleNamespace(Int32=int, min=min, max=max, select_=lambda c, x, y: x if c else y),
        "cute": SimpleNamespace(arch=SimpleNamespace(make_warp_uniform=int)),
    }
    exec("\n".join(lines), names)
    return names[name]


def visited(made: ScorePlan, tile_m: int, loaded: Sequence[int] = ()) -> list[tuple[int, bool]]:
    """Return the blocks of a tile as the printed code visits them, and whether each is masked; ``loaded`` are the numbers that
    these depend on."""
    begin, end, whole, edge = function(bounds.bounds_function(made), "blocks_of")(tile_m, *loaded)
    names: dict[str, Any] = {
        "cutlass": SimpleNamespace(min=min, max=max),
        "begin": begin,
        "end": end,
        "whole": whole,
        "edge": edge,
    }
    exec("\n".join(bounds.part_lengths(made)), names)
    found = [(end - 1, True)]
    for part in made.parts:
        assert names[f"{part}_blocks"] >= 0
        for at in range(names[f"{part}_blocks"]):
            found.append((eval(bounds.block_index(made, part), {**names, "at": at}), part != "free"))
    assert [block for block, _ in found] == [*reversed(range(begin, end))], "the loading warp visits these"
    assert not {"diagonal", "edge"} <= {*made.parts} or found == [found[0], *_by_side(names)]
    some = bounds.bounded(made) or "False"
    of_one_loop = [eval(bounds.block_index(made, "any"), {**names, "at": at}) for at in range(end - 1 - begin)]
    assert found[1:] == [(block, bool(eval(some, {**names, "block": block}))) for block in of_one_loop]
    return found


def _by_side(names: dict[str, Any]) -> Iterator[tuple[int, bool]]:
    """Yield the same of loops over the sides of a tile."""
    names["cutlass"].Int32, names["cutlass"].select_ = int, lambda c, x, y: x if c else y
    for side in range(2):
        exec("\n".join(bounds.side_lengths()), names := {**names, "side": side})
        for part in ("side", "middle"):
            for at in range(names[f"{part}_blocks"]):
                yield eval(bounds.block_index(None, part), {**names, "at": at}), part == "side"
