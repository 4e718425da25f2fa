"""The loaded configs of a kernel for one specialization."""

from __future__ import annotations

import functools
import pathlib
import sys
import time
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ... import exc
from ..._support import files as _files
from ..._support import logs as _logging
from ..._support.lazy import lazy
from ..._support.locks import new_lock
from ..._support.nested import tensors_in
from ...config import Config
from ..generated import codecache
from .failures import Reporting
from .specialized import Specialized

if TYPE_CHECKING:
    from ...backends.assembly import Code
    from ...backends.execution import Resources
    from . import repro, respecialize
    from .binary_check import Verdict
else:
    respecialize = lazy("helion.runtime.specialization.respecialize")
    repro = lazy("helion.runtime.specialization.repro")

_LOG = _logging.logger(__name__)
ConfigLike = Config | Mapping[str, Any] | None


class Compiled:
    """The functions that run each config; each config is compiled once. ``rebind`` runs a call with other arguments."""

    def __init__(self, specialized: Specialized, rebind: respecialize.Rebind) -> None:
        self.specialized = specialized
        self.lock = new_lock()
        self._rebind = rebind
        self._functions: dict[Config, Callable[..., Any]] = {}
        #: The config that runs if none was requested, once its binary was checked.
        self.verdict: Verdict | None = None
        #: Seconds of the first compilation of a config here; few if its binary was on disk.
        self.compile_seconds: dict[Config, float] = {}
        self._unprinted: set[Config] = set()

    def full(self, config: ConfigLike) -> Config:
        """Return a full config: this one, else the only one given to the decorator, or the default."""
        of = self.specialized
        if config is None and len(of.kernel.configs) == 1:
            config = of.kernel.configs[0]
        return of.default_config if config is None else of.analysis.full_config(config)

    def loaded(self, config: Config) -> Callable[..., Any] | None:
        """Return the function of a full config, if it was loaded before."""
        return self._functions.get(config)

    def with_specialized(self, specialized: Specialized) -> Compiled:
        """Return the configs of the same kernel and arguments for another backend."""
        return Compiled(specialized, self._rebind)

    def forget(self) -> None:
        """Drop all loaded functions, because another backend is used."""
        with self.lock:
            self._functions.clear()
            self.compile_seconds.clear()
            self.verdict = None

    def function(self, config: Config, allow_print: bool = True) -> Callable[..., Any]:
        """Return the host function for a full config."""
        found = self._functions.get(config)
        if found is None:
            with self.lock:
                found = self._functions.get(config) or self._load(config)
                self._functions[config] = found
        if allow_print and config in self._unprinted:
            self._unprinted.discard(config)
            of = self.specialized
            print(f"# Output code written to: {of.path(config)}\n{of.analysis.code(config).text}", file=sys.stderr)
        return found

    def for_any_alignment(self, config: Config, allow_print: bool = True) -> Callable[..., Any]:
        """Return the function of a full config, or one in front of it where it takes only tensors that begin at multiples
        of 16 bytes: the config runs with other keys for other tensors."""
        of = self.specialized
        function = self.function(config, allow_print)
        keys = of.executor.without_alignment(of.analysis.code(config).needs_alignment)
        if keys is None:
            return function
        anywhere = of.analysis.space.normalize({**config, **keys})

        @functools.wraps(function)
        def run(*args: Any, **keywords: Any) -> Any:
            given = tensors_in((*args, *keywords.values()), closures=True)
            aligned = all(tensor.data_ptr() % 16 == 0 for tensor in given)
            return (function if aligned else self.function(anywhere))(*args, **keywords)

        return run

    def _load(self, config: Config) -> Callable[..., Any]:
        of = self.specialized
        start = time.perf_counter()
        try:
            code = of.analysis.code(config)
        except exc.BaseError:
            repro.show_once(of, config, of.sample())
            raise
        of.warn(code.warnings)
        kept = None if of.kept is None or code is not of.kept.code else of.kept.module
        given = None if kept is None else of.executor.globals_of(kept, code.text)
        module = codecache.load(code.text, of.kernel.name, of.executor.prepare, kept, given)
        elapsed = 1e3 * (time.perf_counter() - start)
        _LOG.info("compiled %s in %.1f ms: %s: %r", of.kernel.name, elapsed, module.__file__, config)
        if of.settings.print_output_code:
            self._unprinted.add(config)
        loaded = getattr(module, of.kernel.name)
        # copied: the module's own function keeps the launcher it was written with
        function = types.FunctionType(
            loaded.__code__, loaded.__globals__, loaded.__name__, of.kernel.fn.__defaults__, loaded.__closure__
        )
        launcher = of.executor.launcher(loaded.__kwdefaults__["_launcher"], of.target)
        function.__kwdefaults__ = {**loaded.__kwdefaults__, "_launcher": Reporting(launcher, of, config)}
        if "_otherwise" in function.__kwdefaults__:
            function.__kwdefaults__["_otherwise"] = respecialize.UnexpectedTensors(
                of, config, vars(module), self._rebind
            )
        return function

    def launched(self, config: Config) -> bool:
        """Return whether a full config has launched something."""
        function = self._functions.get(config)
        keywords = getattr(function, "__kwdefaults__", None) or {}
        return "_launcher" in keywords and keywords["_launcher"].launched

    def expect_launch(self, config: Config) -> None:
        """Begin what the first launch of a full config needs besides its binary, which is compiled next."""
        of = self.specialized
        names = self.function(config, allow_print=False).__globals__
        of.executor.expect_launch(names, of.analysis.code(config).plan, of.target)

    def resources(self, config: Config, *, count_opcodes: bool = True, seconds: float | None = None) -> Resources:
        """Return the resources of a full config on its target; see ``Toolchain.resources``."""
        of = self.specialized
        module = self.function(config, allow_print=False)
        plan = of.analysis.code(config).plan
        toolchain = of.analysis.backend.toolchain
        toolchain.prepare(of.target)
        began = time.perf_counter()
        found = toolchain.resources(module.__globals__, plan, of.target, count_opcodes=count_opcodes, seconds=seconds)
        self.compile_seconds.setdefault(config, time.perf_counter() - began)
        return found

    def assembled(self, config: Config) -> Mapping[str, Code]:
        """Return the assembled code of a full config on its target; see ``Toolchain.code``."""
        of = self.specialized
        module = self.function(config, allow_print=False)
        toolchain = of.analysis.backend.toolchain
        toolchain.prepare(of.target)
        return toolchain.code(module.__globals__, of.analysis.code(config).plan, of.target)

    def export(self, config: Config, path: pathlib.Path) -> pathlib.Path:
        """Write the kernel of a full config as a shared object."""
        of = self.specialized
        module = self.function(config, allow_print=False)
        content = of.analysis.backend.toolchain.shared_object(module.__globals__, of.analysis.code(config).plan)
        _files.write_whole(path, content)
        return path


__all__ = ["Compiled", "ConfigLike"]
