"""Fuzzing of derived gradients: those of drawn kernels against torch's of their references in fp64.

    python -m fuzz.gradients --out FILE [--device cpu] [--seconds N] [--workers N] [--first SEED] [--families A,B]

Each kernel runs as ``differentiable()`` does by itself, and its backward kernels under random configs. A worker is a
process. One that dies is replaced, and its seed is reported. FILE has a line of JSON for each run, with the kinds of
``runner.Outcome``. Only kernels that compute in fp32 are judged: other values are so far from those in fp64 that they are
on the other side of kinks.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import helion
from helion.autotuner.measure.guarded import Guards, Inputs, poisoned
from helion.runtime.torch_interop import gradients

from . import configs, families, inputs, judge
from .cases import Case, Draft
from .families import FAMILIES
from .runner import FAILURES, Outcome, attempt, load

#: Random configs of the backward kernels of a case.
CONFIGS = 3
#: Seconds after which a worker without a new line is ended.
SLOW = 60.0

#: Functions whose derivative jumps.
KINKS = re.compile(r"abs|relu|clamp|maximum|minimum|amax|amin")

#: Products in references, whose operands are rounded: a result near a kink may be on its other side then.
PRODUCTS = re.compile(r"matmul|bmm| @ ")


def floats(tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Return the tensors that have gradients."""
    return [each for each in tensors if each.is_floating_point()]


def upstream(shapes: list[torch.Size], seed: int) -> list[torch.Tensor]:
    """Return gradients of results, in fp64: numbers that all types have, whose mean is not zero."""
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(shape, generator=generator) * 0.7 + 0.5).bfloat16().double() for shape in shapes]


def reference(case: Case, function: Callable[..., Any], grads: list[torch.Tensor]) -> Callable[..., Any]:
    """Return a function of exact arguments that gives torch's gradients."""

    def differentiated(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = [each.requires_grad_() if each.is_floating_point() else each for each in args]
        results = floats(tuple(judge.leaves(function(*given))))
        leaves = floats(tuple(given))
        pairs = [(each, grad) for each, grad in zip(results, grads, strict=True) if each.requires_grad]
        if not pairs or not leaves:
            raise ValueError("no result depends on a float")
        outputs, incoming = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, leaves, incoming, allow_unused=True)
        return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True))

    return differentiated


class Differentiated:
    """A drawn kernel with its arguments, the gradients of its results, and the expected gradients."""

    def __init__(self, draft: Draft, device: str, work: Path) -> None:
        self.case, self.device, self.seed = families.render(draft), device, draft.seed
        module = load(self.case.source, work, f"{self.case.name}_gradients")
        self.kernel = helion.kernel(backend="auto", **self.case.settings)(getattr(module, self.case.name).fn)
        self.args = inputs.make(self.case.inputs, draft.seed, device)
        exact = inputs.exact(self.args)
        results = floats(tuple(judge.leaves(module.reference(*(each.clone() for each in exact)))))
        self.grads = upstream([each.shape for each in results], draft.seed)
        differentiated = reference(self.case, module.reference, self.grads)
        found = judge.expect(differentiated, exact, _precision(self.case), 1)
        self.expected = tuple(map(_added, found, floats(self.args)))

    def judged(self, run: Callable[..., Any]) -> Outcome:
        """Run on copies of the arguments with guards around all memory, and judge the gradients."""
        copied, guards = Inputs.copied(self.args), Guards()
        with poisoned(guards):
            found = run(*copied.args)
        if self.device != "cpu":
            torch.cuda.synchronize()
        wrong = judge.verdict(found, self.expected)
        if guards.broken() or copied.guards.broken():
            return Outcome(kind="outside", detail=f"memory outside of tensors was written; {wrong}")
        return Outcome(kind="wrong", detail=wrong) if wrong else Outcome(kind="right")

    def default(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the gradients that a call of the differentiable kernel has."""
        given = [each.detach().requires_grad_(each.is_floating_point()) for each in args]
        results = floats(tuple(judge.leaves(self.kernel.differentiable()(*given))))
        wanted = [g.to(each) for g, each in zip(self.grads, results, strict=True)]
        leaves = floats(tuple(given))
        found = torch.autograd.grad(results, leaves, wanted, allow_unused=True)
        return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True))

    def configured(self, rng: random.Random, used: list[Any]) -> Callable[..., Any]:
        """Return the same computation with random configs, which are added to ``used``."""

        def run(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
            values = self.kernel.normalize_args(*args)
            of = gradients.differentiation(self.kernel, values)
            given, made = gradients.leaves(values, [each.is_floating_point() for each in args])
            recording = of.recorder(given)
            results = tuple(judge.leaves(recording.result))
            rest = iter(self.grads)
            wanted = [next(rest).to(each) if each.is_floating_point() else None for each in results]
            leaves = floats(tuple(made))
            found = gradients.pulled_back(of, recording, results, wanted, leaves, choose)
            return tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves, strict=True))

        def choose(backward: gradients.BackwardKernel, step: Any, incoming: Any) -> None:
            bound: Any = backward.kernel.bind(backward.arguments(step, incoming))
            config = rng.choice(configs.choose(bound, rng, CONFIGS, self.device == "cpu"))
            used.append(config.to_dict())
            bound.set_config(config)

        return run


def _precision(case: Case) -> judge.Precision:
    """Return the precision of gradients: those of products are products of derivatives that are rounded as operands are."""
    dtypes = {case.precision.operands, *(each.dtype for each in case.inputs if each.dtype in judge.ROUNDOFF)}
    return judge.Precision(values=case.precision.values, operands=max(dtypes, key=judge.ROUNDOFF.__getitem__))


def _added(expected: judge.Expected, argument: torch.Tensor) -> judge.Expected:
    """Return the expected gradient of an argument, whose parts by several loops are rounded before they are added."""
    rounded = judge.ROUNDOFF[str(argument.dtype).removeprefix("torch.")] * expected.value.abs().amax()
    return judge.Expected(expected.value, torch.maximum(expected.spread, rounded / judge.SAFETY))


def _skipped(draft: Draft) -> str:
    """Return why the gradients of a kernel are not judged, or ""."""
    case = families.render(draft)
    if case.precision.values != "float32":
        return "its values are rounded"
    rounded = PRODUCTS.search(case.reference) and judge.ROUNDOFF[_precision(case).operands] > judge.ROUNDOFF["float32"]
    return "kinks after rounded operands" if rounded and KINKS.search(case.reference) else ""


def work_on(device: str, first: int, stride: int, only: tuple[str, ...]) -> None:
    """Write a line for each run of the seeds ``first``, ``first + stride``, ..."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        seed = first
        while True:
            draft = families.draw(seed, device == "cpu", only)
            for line in runs(draft, device, Path(folder)):
                print(json.dumps({"seed": seed, "family": draft.family, **line}), file=replies)
            seed += stride


def runs(draft: Draft, device: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the outcomes of the runs of a draft, as lines of the journal."""
    skipped = _skipped(draft)
    if skipped:
        yield {"kind": "skipped", "detail": skipped}
        return
    try:
        made = Differentiated(draft, device, folder)
    except (ValueError, RuntimeError) as error:
        yield {"kind": "unjudged", "detail": f"{type(error).__name__}: {error}"[:300]}
        return
    except helion.exc.Base as error:
        yield {"kind": "refused", "detail": f"{type(error).__name__}: {error}"[:300]}
        return
    yield {"kind": "begun"}
    outcome = attempt(lambda: made.judged(made.default))
    yield {"run": "default", "kind": outcome.kind, "detail": outcome.detail[:1500]}
    rng = random.Random(f"{draft.name} gradients")
    for _ in range(CONFIGS if outcome.kind == "right" else 0):
        used: list[Any] = []
        run = made.configured(rng, used)
        outcome = attempt(functools.partial(made.judged, run))
        detail = {} if outcome.kind == "right" else {"detail": outcome.detail[:1500], "configs": used}
        yield {"run": "config", "kind": outcome.kind, **detail}


def main() -> int:
    """Run workers for the given time, and return 1 if a run failed."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.gradients", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="seed of the first kernel")
    parser.add_argument("--families", default="", help=f"comma separated, of {', '.join(x.name for x in FAMILIES)}")
    parser.add_argument("--child", type=int, nargs=2, metavar=("FIRST", "STRIDE"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    only = tuple(filter(None, given.families.split(",")))
    if given.child:
        work_on(given.device, given.child[0], given.child[1], only)
    counts = _watch(given, time.monotonic() + given.seconds)
    print(dict(sorted(counts.items())), flush=True)
    return int(any(counts[kind] for kind in FAILURES))


def _watch(given: argparse.Namespace, end: float) -> Counter[str]:
    """Keep workers at their seeds until the end, and return how many runs had each kind."""
    counts: Counter[str] = Counter()
    options = ["--out", str(given.out), "--device", given.device, "--families", given.families]
    running = [_Worker(given.first + at, given.workers, options) for at in range(given.workers)]
    with given.out.open("a", buffering=1) as log:
        while time.monotonic() < end:
            for found in itertools.chain.from_iterable(each.lines() for each in running):
                counts[found["kind"]] += 1
                log.write(json.dumps(found) + "\n")
            time.sleep(0.1)
    for each in running:
        each.end()
    return counts


class _Worker:
    """A process that runs every ``stride``-th seed from ``first`` on, and is started again after a failure."""

    def __init__(self, first: int, stride: int, options: list[str]) -> None:
        self.seed, self.stride, self.options = first, stride, options
        self._start()

    def _start(self) -> None:
        child = ["--child", str(self.seed), str(self.stride)]
        command = [sys.executable, "-m", "fuzz.gradients", *self.options, *child]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.since, self.rest = time.monotonic() + SLOW, b""

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield what the process has written, and the outcome of one that has failed, which is started again."""
        assert self.process.stdout is not None
        failed = "died" if self.process.poll() is not None else "hung" if time.monotonic() > self.since + SLOW else ""
        *lines, self.rest = (self.rest + (self.process.stdout.read() or b"")).split(b"\n")
        for line in lines:
            found = json.loads(line)
            self.seed, self.since = found["seed"], time.monotonic()
            yield found
        if failed == "died" or (failed and not lines):
            self.end()
            yield {"seed": self.seed, "kind": failed}
            self.seed += self.stride
            self._start()

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()


if __name__ == "__main__":
    sys.exit(main())
