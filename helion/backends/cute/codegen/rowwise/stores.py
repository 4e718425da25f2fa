"""The stores of a granule of each output: whole, or the elements of its row."""

from __future__ import annotations

from ...plan.dtypes import itemsize
from ...plan.epilogue import EpilogueOutput
from ...plan.rowwise.records import RowPlan
from ..writer import Writer
from .elements import storage


def print_stores(out: Writer, plan: RowPlan) -> None:
    """Print a function for each matrix and sum that stores a granule: whole, or the elements of its row."""
    layout = plan.layout
    for output in plan.problem.pairs:
        _print_pairs(out, plan, output)
    for output in (*plan.problem.matrices, *plan.problem.sums):
        size = itemsize(output.dtype)
        step = layout.threads * layout.granule_bytes(size)
        out.lines(("", ""))
        with out.block(f"def store_{output.label}(cta, row, granule, kind, inside, values):"):
            out.line(f"words = pack_{storage(output.dtype)}(values)")
            out.line(f"address, offset = moved(row.{output.label}_address, granule, {step})")
            out.line('if kind != "edge":')
            out.line("    store_words(address, offset, words, None if inside is None else inside[0])")
            out.line("    return")
            out.line(f"whole = inside[0] & inside[{layout.lanes - 1}]")
            out.line("store_words(address, offset, words, whole)")
            with out.block(f"for i in range({layout.lanes}):"):
                per_word = 4 // size
                shift = f"{8 * size} * (i % {per_word})" if per_word > 1 else "0"
                word = f"words[i // {per_word}]" if per_word > 1 else "words[i]"
                apart = "inside[i] & (whole == cutlass.Boolean(False))"
                out.line(f"store_element(address, offset + i * {size}, {word}, {shift}, {size}, {apart})")


def _print_pairs(out: Writer, plan: RowPlan, output: EpilogueOutput) -> None:
    """Print the function that stores the elements of the pairs of a granule."""
    layout, size = plan.layout, itemsize(output.dtype)
    width, per_word = layout.granule_bytes(size) // 2, 4 // size
    out.lines(("", ""))
    with out.block(f"def store_{output.label}(cta, row, granule, kind, inside, values):"):
        out.line(f"words = pack_{storage(output.dtype)}({'values[::2]' if width >= 4 else 'values[::2] * 2'})")
        out.line(f"address, offset = moved(row.{output.label}_address, granule, {layout.threads * width})")
        whole = "store_words(address, offset, words, {})"
        if width < 4:
            whole = f"store_element(address, offset, words[0], 0, {width}, {{}})"
        with out.block('if kind != "edge":'):
            out.line(whole.format(f"{'True' if width < 4 else 'None'} if inside is None else inside[0]"))
            out.line("return")
        out.line(f"whole = inside[0] & inside[{layout.lanes - 1}]")
        out.line(whole.format("whole"))
        with out.block(f"for i in range({layout.lanes // 2}):"):
            shift = f"{8 * size} * (i % {per_word})" if per_word > 1 else "0"
            word = f"words[i // {per_word}]" if per_word > 1 else "words[i]"
            apart = "inside[2 * i] & (whole == cutlass.Boolean(False))"
            out.line(f"store_element(address, offset + i * {size}, {word}, {shift}, {size}, {apart})")
