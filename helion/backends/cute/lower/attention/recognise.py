"""``attention_of``: turn a program with an online softmax between two matmuls into an ``AttentionProblem``.

The loop carries the row maximum m, the row sum l and the accumulator of p @ v. For scores x computed from q @ k.T it has
to compute, up to the order of operands and the base of the exponential::

    m' = max(m, rowmax(x));  p = exp(unit * (x - m'));  c = exp(unit * (m - m'))
    l' = l * c + rowsum(p);  acc' = acc * c + p @ v
"""

from __future__ import annotations

from dataclasses import dataclass

from ....._compiler.ir.grammar import Program
from ....._shapes import Expr
from ...plan.attention.build import check_problem
from ...plan.attention.records import AttentionProblem
from .band import covered_keys, every_query_sees
from .loops import Loops, loops_of
from .operands import Queries, operands_of, stored_keys
from .outputs import Finish
from .packing import with_packed_heads
from .places import check_storage, check_strides
from .scores import Scores, may_be_infinite
from .softmax import softmax_of, start_of


@dataclass(frozen=True, kw_only=True)
class Attention:
    """An attention of a program; ``sources`` are ids of tensors or host expressions of the launch's other inputs."""

    problem: AttentionProblem
    loops: Loops
    tensors: tuple[int, ...]
    """Ids of q, k, v and the outputs."""
    sources: tuple[int | Expr, ...]

    @property
    def arguments(self) -> tuple[int | Expr, ...]:
        """Arguments of a launch, in order."""
        return (*self.tensors, *self.sources)


def attention_of(program: Program) -> Attention:
    """Return the attention that ``program`` computes. Raises ``Refusal``."""
    loops = loops_of(program)
    softmax = softmax_of(loops)
    queries = Queries(loops)
    q, k, v = operands_of(loops, queries)
    scores = Scores(loops, softmax.scores)
    keys = covered_keys(loops, scores.band, stored_keys(loops))
    start = start_of(loops, softmax, every_query_sees(loops, scores.band, keys))
    finish = Finish(loops, softmax)
    outputs = finish.outputs()
    problem = AttentionProblem(
        heads=tuple(loops.extent(block) for block in loops.heads) or (1,),
        queries=loops.extent(loops.queries),
        keys=keys,
        q=q[0],
        k=k[0],
        v=v[0],
        scale=scores.scale * queries.factor(scores.formula),
        unit=softmax.unit,
        query=queries.formula,
        score=scores.formula,
        guarded=may_be_infinite(scores.formula),
        start=start,
        band=scores.band,
        finish=finish.formula,
        outputs=outputs,
        units=tuple(loops.numbers.units),
        names=tuple(name for _, _, name in (q, k, v)),  # type: ignore[arg-type]
    )
    problem = with_packed_heads(problem)
    check_problem(problem)
    check_strides(loops, problem)
    check_storage(loops)
    return Attention(
        problem=problem,
        loops=loops,
        tensors=(q[1], k[1], v[1], *finish.tensors),
        sources=(
            *queries.reader.arguments(queries.formula),
            *scores.reader.arguments(scores.formula),
            *finish.reader.arguments(finish.formula),
        ),
    )
