"""The printed text of attention's gradients on tcgen05, executed on the CPU: a name stands for the 128 threads of a group at
once. MMAs are matmuls in fp32 around it.

Waiting, fences and partitions are left out; left operands are added to sums in the order of the program.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from backends.cute.edited_roles import edited
from backends.cute.lockstep import Lanes
from backends.cute.umma_lanes import Row, Vector, objects, sources_of, uniform_lanes

from helion.backends.cute.codegen.attention.umma.backward_kernel import umma_backward_kernel
from helion.backends.cute.codegen.attention.umma.finish import chunk_of
from helion.backends.cute.codegen.attention.umma.steps import print_steps
from helion.backends.cute.codegen.writer import Writer
from helion.backends.cute.execute.attention import _matrix
from helion.backends.cute.execute.problems import launched, split
from helion.backends.cute.plan.attention.backward import BackwardChoice
from helion.backends.cute.plan.attention.gradients import STREAMED, BackwardProblem
from helion.backends.cute.plan.attention.operands import Source
from helion.backends.cute.plan.attention.umma import UMMA_ROWS
from helion.backends.cute.plan.attention.umma_backward import UmmaBackwardPlan, plan_umma_backward
from helion.backends.cute.roles import grammar as g
from helion.backends.cute.roles.attention import grammar as a
from helion.backends.cute.roles.attention import umma as u
from helion.backends.cute.roles.attention.umma_backward import umma_backward_program
from helion.backends.cute.toolchain.kernel import GemmKernel
from helion.hardware import target

LEFT_OUT = (
    *(g.SetUp, g.Cursor, g.Wait, g.Commit, g.Advance, g.AllocateSums, g.FindSums, g.FreeSums, g.BarrierSync),
    *(g.FenceShared, u.TensorFence, a.GroupSync, a.FirstWarp),
)
"""Steps that have no part in what is computed."""


class Execution:
    """A plan, and the tensors of its launch by their labels."""

    def __init__(self, plan: UmmaBackwardPlan, tensors: Mapping[str, torch.Tensor]) -> None:
        self.plan, self.tensors, self.program = plan, tensors, umma_backward_program(plan)
        self.names: dict[str, Any] = {}
        self.sums: dict[tuple[int, int, int], torch.Tensor] = {}
        """By work item, group and gradient."""
        self.multiplied: set[tuple[Any, ...]] = set()

    def run(self) -> None:
        """Execute all tiles; the outputs are in their tensors then."""
        for group in range(self.plan.groups):
            self._compute(group)

    def _compute(self, group: int) -> None:
        plan, problem = self.plan, self.plan.problem
        kept = edited(self.program, "compute", lambda step: () if isinstance(step, LEFT_OUT) else (step,))
        out = Writer()
        print_steps(out, self.program, kept.role("compute").program)
        threads, chunk = Lanes(torch.arange(UMMA_ROWS)), chunk_of(plan.keys)
        self.names = {
            **self._objects(),
            **{f"product_{at}": Row(chunk) for at in range(2)},
            **{f"product_parts_{at}": _Parts("product", at) for at in range(2)},
            **{f"{name}_read": types.SimpleNamespace(index=0) for name in STREAMED},
            **dict.fromkeys(("product_reads", "left_writes")),
            "group_thread": threads,
            "group": group,
            "lane": Lanes(threads.held % 32),
        }
        for at, gradient in enumerate(problem.gradients):
            columns = gradient.output.matrix.columns
            self.names |= {
                f"packed_{at}": {},
                f"left_{at}": ("left", at),
                f"left_parts_{at}": _Parts("left", at),
                f"sum_reads_{at}": None,
                f"sum_parts_{at}": _Parts("sum", at),
                f"values_{at}": Row(chunk_of(columns)),
                f"shared_own_{at}": _Parts("own", at),
                f"shared_own_{problem.output_memory(at)}": _Parts("own", problem.output_memory(at)),
            }
        source = umma_backward_kernel("kernel", self.program).source
        exec(source[source.index("def ") : source.index("@cute.kernel")].replace("@cute.jit", ""), self.names)
        self.names["uniform"] = uniform_lanes
        exec(out.text(), self.names)

    def _objects(self) -> dict[str, Any]:
        """Return what the text takes from the DSL, and the tensors."""
        named, problem = objects(), self.plan.problem
        named["cute"].copy, named["cute"].autovec_copy = self._copy, self._store
        staged = (source for sources in self.plan.staged.values() for source in sources)
        return {
            **named,
            **sources_of(self, problem),
            **{f"staged_{source.label}": _Staged(self, source) for source in staged},
        }

    def head(self) -> tuple[int, ...]:
        """Return the coordinates of the head, the repetition included."""
        return tuple(int(self.names.get(f"head_{at}", 0)) for at in range(len(self.plan.problem.coordinates)))

    def _first_row(self) -> int:
        return int(self.names["tile_m"]) * self.plan.rows + int(self.names["group"]) * UMMA_ROWS

    def _block(self, number: int) -> torch.Tensor:
        """Return the current block of a streamed matrix, zeros past the last row."""
        problem, names = self.plan.problem, self.names
        rows = _matrix(problem.streamed[number], self.tensors[STREAMED[number]], self.head(), problem.keys)
        if self.plan.is_limited:
            rows = rows[: int(names.get("origin", 0)) + int(names["limit"])]
        return _padded(rows, int(self.names["block_key"]), self.plan.keys)

    def _copy(self, kind: Any, source: Any, to: Any) -> None:
        problem, part = self.plan.problem, self.names["part"]
        if isinstance(to, tuple):  # left operands
            self._add(to[1], part)
        elif source[0] == "product":
            at, chunk = source[1], len(to.values)
            owned = _matrix(problem.owned[at], self.tensors[f"own_{at}"], self.head(), problem.queries)
            product = (
                _padded(owned, self._first_row(), UMMA_ROWS) @ self._block(at)[chunk * part : chunk * (part + 1)].T
            )
            to.values = [Lanes(each) for each in product.unbind(1)]
        else:
            at, chunk = source[1], len(to.values)
            held = self.sums[self.names["work"], self.names["group"], at][:, chunk * part : chunk * (part + 1)]
            to.values = [Lanes(each) for each in held.unbind(1)]

    def _add(self, at: int, part: int) -> None:
        """Add the product of a chunk of left operands to the sum of a gradient."""
        names, gradient = self.names, self.plan.problem.gradients[at]
        chunk = chunk_of(self.plan.keys)
        visit = names["work"], names["group"], self.head(), int(names["block_key"]), part, at
        assert visit not in self.multiplied, "a block is visited twice"
        self.multiplied.add(visit)
        pairs = [names[f"packed_{at}"].pop(pair) for pair in range(chunk // 2)]
        left = torch.stack([each.expand(UMMA_ROWS) for pair in pairs for each in pair], 1).float()
        product = left @ self._block(gradient.right)[chunk * part : chunk * (part + 1)]
        key = names["work"], names["group"], at
        self.sums[key] = self.sums[key] + product if key in self.sums else product

    def _store(self, rounded: Row, to: Any) -> None:
        (_, memory, _), (_, width), (thread, vector) = to
        problem, first = self.plan.problem, self._first_row()
        at = next(each for each in range(len(problem.gradients)) if problem.output_memory(each) == memory)
        output = problem.gradients[at].output
        held = _matrix(output.matrix, self.tensors[output.label], self.head(), problem.queries)
        count = max(0, min(UMMA_ROWS, problem.queries - first))
        assert torch.equal(thread.held, torch.arange(UMMA_ROWS))
        columns = slice(width * vector, width * (vector + 1))
        held[first : first + count, columns] = rounded.matrix[:count].to(held.dtype)


def _padded(rows: torch.Tensor, first: int, count: int) -> torch.Tensor:
    found = torch.zeros(count, rows.size(1))
    kept = rows[first : first + count].float()
    found[: len(kept)] = kept
    return found


class _Parts:
    """A view whose last index is a part, or a group."""

    def __init__(self, name: str, at: int) -> None:
        self.name, self.at = name, at

    def __getitem__(self, at: tuple[Any, ...]) -> tuple[str, int, int]:
        assert at[:2] == (None, None)
        return self.name, self.at, at[2]


class _Staged:
    """Numbers per streamed row in shared memory, as TMA loads them: 0 past the last one."""

    def __init__(self, execution: Execution, source: Source) -> None:
        self.execution, self.vector = execution, Vector(execution, source)

    def __getitem__(self, at: tuple[int, int]) -> Lanes:
        key = int(self.execution.names["block_key"]) + at[0]
        if key >= self.execution.plan.problem.keys:
            return Lanes(torch.zeros(UMMA_ROWS))
        return self.vector[0, key]


def evaluate_as(
    choice: BackwardChoice, found: list[UmmaBackwardPlan] | None = None
) -> Callable[[GemmKernel, Sequence[Any]], None]:
    """Return the evaluation of a launch by the printed text of a choice's plan; plans are appended to ``found``."""

    def evaluate(kernel: GemmKernel, given: Sequence[Any]) -> None:
        given, integers = split(kernel, given)
        problem = launched(kernel, integers)
        assert isinstance(problem, BackwardProblem)
        plan = plan_umma_backward(problem, choice, target("sm_100"))
        outputs = (each.output.label for each in problem.gradients)
        labels = ["own_0", "own_1", *STREAMED, *outputs, *(each.passed.label for each in problem.sources)]
        tensors = (each if isinstance(each, torch.Tensor) else torch.tensor(each) for each in given)
        Execution(plan, dict(zip(labels, tensors, strict=True))).run()
        if found is not None:
            found.append(plan)

    return evaluate
