"""The passes over a row: over each chunk as it arrives, and over the row that is held."""

from __future__ import annotations

from collections.abc import Iterator

from ...plan.rowwise.loops import UNROLLED_CHUNKS, in_loops, walks_in_loops
from ...plan.rowwise.passes import RowPass, Schedule, schedule_of
from ...plan.rowwise.records import RowLayout, RowPlan
from ...roles.rowwise import program as r
from ..writer import Writer
from .elements import divisors_again, numbers_columns


def print_take(out: Writer, plan: RowPlan, each: RowPass) -> None:
    """Print the first pass over a chunk of the ring."""
    layout, problem, schedule = plan.layout, plan.problem, schedule_of(plan.problem)
    loops = in_loops(plan)
    size, count = layout.chunk_granules, layout.thread_granules
    out.lines(("", ""))
    with out.block(f"def take_chunk(cta, row, stage, chunk{', kind' if loops else ''}):"):
        out.lines(["row.stages.append(stage)"] if layout.held_stages and not loops else [])
        out.line(f"first = chunk * {size}")
        with out.block(f"for at in range({size}):" if loops else f"for at in range(min({size}, {count} - first)):"):
            out.line("granule = first + at")
            out.lines([] if loops else ["kind = KINDS[granule]"])
            words = {}
            for operand in problem.inputs:
                words[problem.value_of(operand)] = f"{operand.label}_words"
                given = "cta, row, stage, at"
                out.line(f"{operand.label}_words = load_{operand.label}({given})")
            passed = "".join(f", {words[value]}" for value in each.reads if value in words)
            call = f"pass_0(cta, row, granule, kind{passed})"
            out.line(f"kept_words = {call}" if schedule.kept else call)
            if layout.choice.keep == "registers" and layout.demand.held_bytes:
                held = ["kept_words"] if schedule.kept else [words[value] for value in schedule.held]
                out.line(f"row.held.append(({', '.join(held)},))")


def print_walk(out: Writer, plan: RowPlan, each: RowPass) -> None:
    """Print a pass over all granules of a thread; ``done`` is called after the last granule of each chunk."""
    layout, problem, schedule = plan.layout, plan.problem, schedule_of(plan.problem)
    size = layout.chunk_granules
    inputs = {problem.value_of(operand): operand for operand in problem.inputs}
    if walks_in_loops(plan):
        _print_part(out, plan, each)
        return
    out.lines(("", ""))
    with out.block(f"def walk_{each.number}(cta, row, done=None):"):
        out.line(f"granules = {layout.thread_granules}")
        if numbers_columns(problem, each) or _reads_again(layout, schedule, each):
            out.line("row.thread = renewed(row.thread, cta.lane)")
        out.lines(divisors_again(problem, schedule, each) if layout.choice.keep == "registers" else [])
        with out.block("for granule in range(granules):"):
            passed = []
            for value in each.reads:
                if value not in inputs:
                    continue
                label = inputs[value].label
                if layout.held_stages:
                    at = f"row.stages[granule // {size}], granule % {size}"
                    passed.append(f"load_{label}(cta, row, {at})")
                else:
                    passed.append(f"row.held[granule][{schedule.held.index(value)}]")
            passed += ["row.held[granule][0]"] if each.kept else []
            given = "".join(f", {words}" for words in passed)
            out.line(f"pass_{each.number}(cta, row, granule, KINDS[granule]{given})")
            last = f"granule % {size} == {size - 1} or granule == granules - 1"
            out.line(f"if done is not None and ({last}):")
            out.line(f"    done(row.stages[granule // {size}])")
    if layout.held_stages and each is schedule.passes[-1]:
        out.lines(("", ""))
        with out.block(f"def walk_{each.number}_and_release(cta, row):"):
            arrive = f"arrive(cta.barrier + ({layout.stages} + stage) * 8, cta.lane == 0)"
            out.line(f"walk_{each.number}(cta, row, lambda stage: {arrive})")


def _reads_again(layout: RowLayout, schedule: Schedule, each: RowPass) -> bool:
    """Return whether a pass reads shared memory again that a pass before it has read, with no exchange between.

    ptxas would keep all that was read in the registers that sums over rows need.
    """
    apart = layout.exchanges and not (schedule.joint and each.number == 1)
    again = layout.held_stages or layout.demand.vectors
    return bool(again and layout.demand.sums) and not apart


def loops_over_chunks(out: Writer, plan: RowPlan) -> Iterator[str]:
    """Print a loop over each run of chunks whose granules are of one kind, and yield the kind within it."""
    unrolled = UNROLLED_CHUNKS if walks_in_loops(plan) else 1
    for first, end, kind in plan.layout.segments:
        out.line(f"# {kind}")
        with out.block(f"for chunk in cutlass.range({first}, {end}, unroll={unrolled}):"):
            yield kind


def begin_walks(out: Writer, plan: RowPlan, step: r.ChunkLoop) -> None:
    """Print the first stage of a row that is held, where later passes are loops over its stages."""
    taken = next((each for each in step.body if isinstance(each, r.TakeChunk)), None)
    out.lines([f"first_stage = {taken.cursor}_index"] if taken is not None and walks_in_loops(plan) else [])


def print_walk_in_loops(out: Writer, plan: RowPlan, step: r.WalkRow) -> None:
    """Print a pass as loops over the chunks of the row, whose stages follow the first one in the ring."""
    stages = plan.layout.stages
    for kind in loops_over_chunks(out, plan):
        out.line("stage = first_stage + chunk")
        out.line(f"stage = cutlass.select_(stage >= {stages}, stage - {stages}, stage)")
        out.line(f'walk_{step.number}(cta, row, stage, chunk, "{kind}")')
        out.lines([f"arrive(cta.barrier + ({stages} + stage) * 8, cta.lane == 0)"] if step.releases else [])


def _print_part(out: Writer, plan: RowPlan, each: RowPass) -> None:
    """Print a pass over a thread's granules of one chunk."""
    layout, problem = plan.layout, plan.problem
    inputs = {problem.value_of(operand): operand for operand in problem.inputs}
    passed = [f", load_{inputs[value].label}(cta, row, stage, at)" for value in each.reads if value in inputs]
    out.lines(("", ""))
    head = f"def walk_{each.number}(cta, row, stage, chunk, kind):"
    with out.block(head), out.block(f"for at in range({layout.chunk_granules}):"):
        call = f"pass_{each.number}(cta, row, chunk * {layout.chunk_granules} + at, kind"
        out.line(f"{call}{''.join(passed)})")
