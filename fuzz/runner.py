"""One kernel under one config: bound, compiled, run twice in guarded memory, and judged."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import random
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import helion
from helion import exc
from helion.autotuner.measure.guarded import Guards, Inputs, poisoned
from helion.runtime.bound import BoundKernel

from . import configs, families, inputs, judge
from .cases import Case, Draft

RUNS = 2
#: Fragments of error texts that come from the device, not from the compiler.
_DEVICE = (
    "CUDA error",
    "illegal memory",
    "illegal instruction",
    "misaligned address",
    "unspecified launch failure",
    "device-side assert",
)
_RESOURCES = ("out of resource", "OutOfResources", "too many resources", "Insufficient registers")
#: Fragment of the error texts of kernels that the assembler is known to compile wrongly.
_MISCOMPILED = "computes wrong addresses"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Outcome of one pair.

    Failures are ``wrong`` (values), ``outside`` (memory that is not the kernel's), ``crashed`` (the device), ``died``
    (the process), ``hung``, ``broken`` (an error that is no refusal). Also ``uncompiled`` (Triton or the DSL refuses
    the code) and ``illegal`` (a config of the space that is refused). No failures are ``right``, ``refused``,
    ``too_large``, ``slow`` to compile and ``unjudged``. ``detail`` is a description for users.
    """

    kind: str
    detail: str = ""


#: Kinds that a person must look at.
FAILURES = ("wrong", "outside", "crashed", "died", "hung", "broken", "uncompiled", "illegal")


@dataclass(frozen=True)
class Opened:
    """A case that was loaded: its function, its arguments on the device, and bound kernels by backend."""

    case: Case
    module: types.ModuleType
    args: tuple[torch.Tensor, ...]
    bound: dict[str, BoundKernel]

    @functools.cached_property
    def expected(self) -> tuple[judge.Expected, ...]:
        """The expected results."""
        return judge.expect(self.module.reference, inputs.exact(self.args), self.case.precision, 1)

    def bind(self, backend: str) -> BoundKernel:
        """Return the kernel of a backend, bound to the arguments. Raises what binding raises."""
        if backend not in self.bound:
            written = getattr(self.module, self.case.name)
            kernel = helion.kernel(backend=backend, **self.case.settings)(written.fn)
            self.bound[backend] = kernel.bind(self.args)
        return self.bound[backend]


class Runner:
    """Runner that loads cases into ``work`` and runs them on ``device``."""

    def __init__(self, device: str, work: Path) -> None:
        self.device, self.work = device, work
        work.mkdir(parents=True, exist_ok=True)
        self._opened: dict[str, Opened] = {}

    def open(self, draft: Draft) -> Opened:
        """Return the case of a draft, loaded; the last two are kept."""
        case = families.render(draft)
        digest = hashlib.sha256(repr(case).encode()).hexdigest()[:12]
        if digest not in self._opened:
            while len(self._opened) >= 2:
                self._opened.pop(next(iter(self._opened)))
            args = inputs.make(case.inputs, draft.seed, self.device)
            self._opened[digest] = Opened(case, load(case.source, self.work, f"{case.name}_{digest}"), args, {})
        return self._opened[digest]

    def configs(self, draft: Draft, backend: str, count: int) -> list[helion.Config] | Outcome:
        """Return configs to try, or the reason why there are none."""

        def chosen() -> list[helion.Config]:
            rng = random.Random(f"{draft.name} {backend}")
            return configs.choose(self.open(draft).bind(backend), rng, count, self.device == "cpu")

        found = attempt(chosen)
        return found if isinstance(found, Outcome) else list(found)

    def run(
        self, draft: Draft, backend: str, config: Mapping[str, Any], fit: bool = False
    ) -> tuple[Outcome, dict[str, Any]]:
        """Return what comes of a config, and the full config; with ``fit`` it may be one of another kernel."""
        full: dict[str, Any] = dict(config)

        def outcome() -> Outcome:
            opened = self.open(draft)
            try:
                opened.expected  # noqa: B018 - a reference that fails is no fault of the kernel
            except (ValueError, RuntimeError) as error:
                return Outcome(kind="unjudged", detail=f"{type(error).__name__}: {error}")
            bound = opened.bind(backend)
            if fit:
                full.clear()
                full.update(configs.fitted(bound, config).to_dict())
            bound.set_config(full)
            return self.judged(opened, bound)

        found = attempt(outcome)
        assert isinstance(found, Outcome)
        return found, full

    def judged(self, opened: Opened, function: Callable[..., Any]) -> Outcome:
        """Run ``function`` on copies of the arguments with guards around all memory, and judge what it gives."""
        for _ in range(RUNS):
            copied = Inputs.copied(opened.args)
            guards = Guards()
            with poisoned(guards):
                results = function(*copied.args)
            if self.device != "cpu":
                torch.cuda.synchronize()
            wrong = judge.verdict(results, opened.expected)
            if guards.broken() or copied.guards.broken():
                return Outcome(kind="outside", detail=f"memory outside of tensors was written; {wrong}".rstrip("; "))
            if wrong:
                return Outcome(kind="wrong", detail=wrong)
            for spec, before, after in zip(opened.case.inputs, opened.args, copied.args, strict=True):
                if not torch.equal(_bytes(before), _bytes(after)):
                    return Outcome(kind="wrong", detail=f"the input {spec.name} was changed")
        return Outcome(kind="right")


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)


def attempt(action: Callable[[], Any]) -> Any:
    """Return what ``action`` gives, or the outcome that its error is."""
    try:
        return action()
    except exc.InvalidConfig as error:
        return Outcome(kind="illegal", detail=str(error))
    except exc.TritonUnrecoverableRuntimeError as error:
        return Outcome(kind="crashed", detail=str(error))
    except exc.ErrorCompilingKernel as error:
        return Outcome(kind=_kind(str(error), "uncompiled"), detail=str(error))
    except exc.InternalError as error:
        return Outcome(kind="broken", detail=str(error))
    except exc.Base as error:
        return Outcome(kind="refused", detail=f"{type(error).__name__}: {error}")
    except Exception as error:  # whatever the compiler raises is what a fuzzer looks for; the pair is reported with it
        return Outcome(
            kind=_kind(f"{type(error).__name__}: {error}", "broken"), detail=f"{type(error).__name__}: {error}"
        )


def _kind(text: str, otherwise: str) -> str:
    if any(part in text for part in _DEVICE):
        return "crashed"
    if _MISCOMPILED in text:
        return "refused"
    return "too_large" if any(part in text for part in _RESOURCES) else otherwise


def load(source: str, directory: Path, name: str) -> types.ModuleType:
    """Write ``source`` to a file of ``directory`` and import it."""
    path = directory / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(f"fuzzed_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
