"""A kernel for one specialization: its analysis, its compiled configs, and the config that runs."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from ... import exc
from ..._exact import are_same
from ..._support import collecting
from ..._support import logs as _logging
from ..._support.lazy import lazy
from ..._support.nested import tensors_in
from ...backends import stub
from ...config import Config
from ...hardware import Target
from ..call.definition import Definition
from ..call.signature import Key, any_device, class_of, has_small_sizes, pick, target_of
from ..call.size_buckets import Bucket
from ..specialization.choice import Choice, ConfigLike
from ..specialization.compiled import Compiled
from ..specialization.specialized import Specialized

if TYPE_CHECKING:
    from ... import pipeline
    from .. import ref_mode
    from ..specialization import repro
    from . import policies
else:
    policies = lazy("helion.runtime.variants.policies")
    ref_mode = lazy("helion.runtime.ref_mode")
    repro = lazy("helion.runtime.specialization.repro")

_LOG = _logging.logger(__name__)


class CallKey(NamedTuple):
    """The part of a variant's key that a call's arguments give without an analysis.

    ``strides`` are dtypes, sizes and strides, by number or class. ``rest`` has the result of the user's ``key``, the
    target's token, whether memory accesses are checked, and the assumed number of ranks.
    """

    strides: Key
    rest: tuple[Hashable, ...]

    @property
    def family(self) -> tuple[Hashable, ...]:
        """The key of all variants of its class, for any sizes and strides."""
        return (class_of(self.strides), *self.rest)


class VariantKey(NamedTuple):
    """The key of a variant: its class, its strides, its bucket of sizes with the numbers compiled in, its backend."""

    family: tuple[Hashable, ...]
    strides: Key
    bucket: tuple[Hashable, ...]
    backend: str


class Siblings(Protocol):
    """The table of a kernel's variants, as one of them sees it."""

    def exact(self, values: tuple[Any, ...], target: Target) -> Variant:
        """Return the variant for arguments."""
        ...

    def changed(self, variant: Variant) -> None:
        """Forget the written functions of calls that a variant serves."""
        ...


class Family:
    """The variants of one class, and the config that was set for all of them.

    One variant leads each bucket of sizes. The others of the bucket have its config, where they take it, and other
    strides or equal sizes.
    """

    def __init__(self) -> None:
        self.members: weakref.WeakSet[Variant] = weakref.WeakSet()
        self.config: Config | None = None


class Variant:
    """A kernel for one specialization and one target.

    ``compiled`` has the analysis and the loaded configs of the backend in use, ``backends`` those of others that
    accept the kernel.
    """

    def __init__(
        self, kernel: Definition, values: tuple[Any, ...], call: CallKey, target: Target, siblings: Siblings
    ) -> None:
        self.kernel = kernel
        self.target = target
        self.call_key = call
        self.siblings = siblings
        self.family = Family()
        self.leader: Variant | None = None
        self.backends: dict[str, Compiled] = {}
        #: The public object for it.
        self.face: Any = None
        #: Its backward kernels, with the same lifetime.
        self.differentiation: Any = None
        of = Specialized(kernel, values, call.strides, target)
        self.compiled = Compiled(of, self._run_others)
        self.choice = Choice(self.compiled, self._forget_calls)
        self._is_set = False
        self._checked: dict[tuple[Compiled, Config], Callable[..., Any]] = {}
        #: True if other processes may run the code of the config in use, which they would choose as well.
        self.keeps = False
        if of.is_eager:  # an eager kernel need not compile
            return
        start = time.perf_counter()
        try:
            of.analyse()
        except exc.BaseError:
            repro.show_once(of, None, of.sample())
            raise
        if _LOG.isEnabledFor(logging.INFO):
            elapsed = 1e3 * (time.perf_counter() - start)
            _LOG.info("bound %s for %s in %.1f ms, key %s", kernel.name, target.name, elapsed, call.strides)

    # --- identity ---------------------------------------------------------------------------------------------------------

    @property
    def specialized(self) -> Specialized:
        return self.compiled.specialized

    @property
    def analysis(self) -> pipeline.Analysis:
        return self.specialized.analysis

    @property
    def bucket(self) -> tuple[Bucket, ...]:
        """The size hints that select its config."""
        return self.specialized.bucket

    @property
    def key(self) -> VariantKey:
        bucket = (*self.specialized.bucket, *((name, value) for name, _, value in self.specialized.numbers))
        return VariantKey(self.call_key.family, self.call_key.strides, bucket, self.analysis.backend.name)

    @property
    def has_small_sizes(self) -> bool:
        """True if a dynamic size that it was bound for is 0 or 1."""
        return has_small_sizes(self.call_key.strides)

    def has_numbers_of(self, values: tuple[Any, ...]) -> bool:
        """Return whether arguments have the numbers that the compiled code depends on, and sizes of the same bucket."""
        of = self.compiled.specialized
        return of.has_numbers_of(values) and of.is_of_bucket(values)

    def serves(self, values: tuple[Any, ...]) -> bool:
        """Return whether the compiled code is right for the sizes and strides of arguments of its class."""
        return self.specialized.is_eager or self.specialized.serves(values)

    def is_current(self) -> bool:
        """Return whether the globals that were compiled in are unchanged."""
        return self.compiled.specialized.is_current()

    def numbers_in(self, values: tuple[Any, ...]) -> tuple[tuple[str, Any], ...]:
        """Return the values in these arguments of the numbers that the compiled code depends on, by host expression."""
        return tuple((name, pick(values, at)) for name, at, _ in self.specialized.numbers)

    # --- siblings ---------------------------------------------------------------------------------------------------------

    @property
    def followers(self) -> list[Variant]:
        """The variants of its class and bucket that it leads."""
        return [member for member in self.family.members if member.leader is self]

    def lead(self, others: Sequence[Variant]) -> None:
        """Register as the leader of a bucket of sizes of a class, whose other buckets ``others`` lead."""
        self.family = others[0].family if others else self.family
        self.family.members.add(self)

    def follow(self, leader: Variant) -> None:
        """Run the config that the user sets on ``leader``, which has the same class and bucket."""
        self.leader, self.family = leader, leader.family
        self.family.members.add(self)

    def _run_others(self, args: tuple[Any, ...], config: Config) -> Any:
        """Run a config on arguments of its class whose sizes and strides need other code."""
        other = self.siblings.exact(args, self.target)
        if other is self:
            raise exc.InternalError(step="launch", reason="arguments of the key it was bound for are of another class")
        if config == self.choice.config and self.choice.requested is None:
            return other.run(*args)
        try:
            compiled, full = other.for_config(config)
        except exc.InvalidConfig:  # where sizes are not equal, the lists of a config may be longer
            return other.run(*args)
        return compiled.for_any_alignment(full)(*args)

    def _forget_calls(self) -> None:
        self.siblings.changed(self)

    # --- the config in use ------------------------------------------------------------------------------------------------

    @property
    def config(self) -> Config | None:
        """The config in use; None before the first call."""
        if self.choice.config is not None:
            return self.choice.config
        return next((other.config for other in self.followers if other.config is not None), None)

    @property
    def requested(self) -> Config | None:
        """The config that was set for it together with others of its class."""
        return self.family.config if self.leader is None else self.leader.choice.requested

    def full(self, config: ConfigLike) -> Config:
        """Return a full config: the given one, else the one in use, the decorator's only one, or the default."""
        return self.choice.full(config)

    def for_config(self, config: ConfigLike, *, printed: bool = False) -> tuple[Compiled, Config]:
        """Return the compiler of a config, and its full form.

        It is the backend in use, or another that accepts the config if the choice was left open.
        """
        if config is None:
            return self.compiled, self.full(None)
        analysis, full = self.analysis.for_config(config, printed=printed)
        return self._compiled_by(analysis), full

    def checked(self, compiled: Compiled, config: Config, *, allow_print: bool = True) -> Callable[..., Any]:
        """Return the function of a full config that refuses other arguments than those the code was generated for.

        It is the same function for each call with the config.
        """
        run = compiled.for_any_alignment(config, allow_print)
        found = self._checked.get((compiled, config))
        if found is None:

            @functools.wraps(run)
            def checked(*args: Any, _launcher: Callable[..., Any] | None = None, **keywords: Any) -> Any:
                self.check_arguments(self.kernel.normalize_args(*args, **keywords))
                return run(*args, **keywords) if _launcher is None else run(*args, _launcher=_launcher, **keywords)

            found = self._checked.setdefault((compiled, config), checked)
        return found

    def for_backend(self, name: str, config: ConfigLike) -> tuple[Compiled, Config]:
        """Return the result of ``for_config`` for the text of a backend by name, with its default for None.

        The backend in use serves if the named one refuses the kernel.
        """
        analysis = self.analysis.prefer_backend(name)
        compiled = self._compiled_by(analysis)
        if config is not None:
            return compiled, analysis.full_config(config, printed=True)
        return compiled, self.full(None) if analysis is self.analysis else compiled.full(None)

    def _compiled_by(self, analysis: pipeline.Analysis) -> Compiled:
        if analysis is self.analysis:
            return self.compiled
        with self.compiled.lock:
            name = analysis.backend.name
            if name not in self.backends:
                self.backends[name] = self.compiled.with_specialized(self.specialized.with_analysis(analysis))
            return self.backends[name]

    def set_config(self, config: ConfigLike) -> None:
        """Use a config for all later calls of its class, except where one was tuned or set for other sizes."""
        compiled, full = self.for_config(config)
        self._use(compiled, full)
        self._is_set = True
        if self.leader is None:
            self.family.config = full
            for other in tuple(self.family.members):
                leader = other.leader or other
                if other is not self and (leader is self or not leader._is_set):
                    other.adopt(full)

    def use(self, config: Config) -> None:
        """Use a full config for all later calls with such sizes."""
        self._use(self.compiled, config)
        self._is_set = True
        for other in self.followers:
            other.adopt(config)

    def adopt(self, config: Config) -> bool:
        """Use a config that was set for others of its class, if it is legal here."""
        if self.analysis.call_facts.is_empty:  # it launches nothing
            return False
        try:
            self._use(*self.for_config(config))
        except exc.InvalidConfig:
            return False
        return True

    def _use(self, compiled: Compiled, config: Config) -> None:
        """Use a full config with its compiled configs; this may switch the backend."""
        if compiled is self.compiled:
            self.choice.use(config)
            return
        choice = Choice(compiled, self._forget_calls)
        choice.use(config)
        self.compiled, self.choice = compiled, choice
        self.backends.clear()
        self._forget_calls()  # calls that were kept meanwhile run the former

    # --- calls ------------------------------------------------------------------------------------------------------------

    def run(self, *args: Any) -> Any:
        """Run on all arguments in order, which must have the key of this variant."""
        run = self.choice.run
        if run is None:
            if self.specialized.is_eager:
                return ref_mode.call_eagerly(self.kernel, args)
            on_gpu = any(map(stub.on_gpu, args))  # the launch compiles, or loads a binary and imports what launches it
            with collecting.paused() if on_gpu else contextlib.nullcontext():
                result = self._ran(self._first_run(args), args)
                if self.keeps:
                    policies.keep(self)
                return result
        return self._ran(run, args)

    def _ran(self, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Return what a call gives; another config runs it if this one fails to launch."""
        try:
            return run(*args)
        except self.specialized.executor.error as error:
            self.choice.replace_failed(run, error)
        return self.run(*args)

    def _first_run(self, args: tuple[Any, ...]) -> Callable[..., Any]:
        self._check_device(args)
        self.ensure_config_exists(args)
        assert self.choice.run is not None
        return self.choice.run

    def ensure_config_exists(self, args: Sequence[Any]) -> None:
        """Choose and compile the config that a call with these arguments runs, unless one is in use.

        Raises:
            exc.NoFeasibleConfig: no config is given, and none can fit the GPU.
        """
        if self.choice.run is not None or self.specialized.is_eager:
            return
        if self.analysis.call_facts.is_empty:  # host loops over nothing: nothing to compile, and nothing is launched
            self.choice.run = self.run_reference
            return
        policies.choose(self, args)

    def run_reference(self, *args: Any) -> Any:
        """Run the Python function itself, eagerly."""
        return ref_mode.run_reference(self.kernel, self.kernel.normalize_args(*args))

    def check_arguments(self, values: tuple[Any, ...]) -> None:
        """Raise ``exc.BoundToOtherArguments`` for arguments of another class, or with other numbers compiled in."""
        strides = self.call_key.strides
        key = strides if self.specialized.is_eager else self.kernel.arguments_key(values)
        if key == strides and not self.specialized.numbers:
            return
        ours, theirs = any_device(class_of(strides)), any_device(class_of(key))
        names = (*self.kernel.signature.parameters, "memory shared")
        wrong = [each for each in zip(names, ours, theirs, strict=True) if each[1] != each[2]]
        numbers = ((name, number, pick(values, at)) for name, at, number in self.specialized.numbers if not wrong)
        wrong += [each for each in numbers if not are_same(each[1], each[2])]
        for name, expected, actual in wrong[:1]:
            raise exc.BoundToOtherArguments(
                kernel=self.kernel.name, what=name, expected=repr(expected), actual=repr(actual)
            )

    def _check_device(self, args: tuple[Any, ...]) -> None:
        """Refuse CUDA tensors of another device than the target. CPU tensors are interpreted for any target."""
        device = next((a.device for a in args if isinstance(a, torch.Tensor)), None)
        misplaced = self.analysis.traced.misplaced
        if misplaced is not None and all(tensor.device.type == "cpu" for tensor in tensors_in(args)):
            raise misplaced
        if device is None or device.type == "cpu":
            return
        if device.type == "meta":
            nothing = "meta tensors, which have no data; pass tensors that have, or look at the kernel with bind"
            raise exc.WrongTarget(kernel=self.kernel.name, bound=self.target.name, device=nothing, remedy="")
        actual = target_of(self.kernel.name, args)
        if actual.name != self.target.name:
            raise exc.WrongTarget(
                kernel=self.kernel.name,
                bound=self.target.name,
                device=f"{device} ({actual.name})",
                remedy="; bind it without target=, or with the target of that device",
            )


__all__ = ["CallKey", "Family", "Siblings", "Variant", "VariantKey"]
