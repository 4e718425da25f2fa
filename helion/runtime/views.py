"""Views of a bound kernel: generated code, plans, resources of binaries, and explanations."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import exc
from .._support.lazy import lazy
from .._support.records import dataclass
from .._support.tracebacks import short_errors
from ..config import Config
from .generated import codecache
from .specialization.compiled import Compiled, ConfigLike
from .variants.variant import Variant

if TYPE_CHECKING:
    from .._compiler.host import program as host_program
    from ..backends.execution import Resources
    from .explanation import explain
    from .specialization import repro
else:
    host_program = lazy("helion._compiler.host.program")
    explain = lazy("helion.runtime.explanation.explain")
    repro = lazy("helion.runtime.specialization.repro")


@dataclass(frozen=True)
class OutputCodeOptions:
    """Options of the text that ``BoundKernel.to_code`` writes.

    Args:
        allow_helion_deps: False generates a module that does not import helion.
        jax_fn: a JAX function instead of a torch one; no backend has them, and True is refused.
    """

    allow_helion_deps: bool
    jax_fn: bool

    def __init__(self, allow_helion_deps: bool = True, jax_fn: bool = False) -> None:
        self.__dict__.update(allow_helion_deps=allow_helion_deps, jax_fn=jax_fn)


class Views:
    """The views of a variant. ``config`` is a ``helion.Config`` or a dict in each of them.

    None is the config in use, else the one that would run.
    """

    variant: Variant

    @short_errors
    def to_code(
        self,
        config: ConfigLike = None,
        *,
        options: OutputCodeOptions | None = None,
        emit_repro_caller: bool = False,
        output_origin_lines: bool | None = None,
    ) -> str:
        """Return the generated module for a config as text.

        Args:
            config: a ``helion.Config`` or a dict; None is the config in use, else the one that would run.
            options: ``OutputCodeOptions(allow_helion_deps=False)`` for a module that does not import helion.
            emit_repro_caller: append ``call()``, which runs the kernel on random arguments of the shapes it is bound
                to. Running the module as a script calls it.
            output_origin_lines: name the user's lines in comments; None leaves it to the setting.

        Raises:
            exc.InvalidConfig: the config is not legal for the kernel.
        """
        taken = self.variant.for_config(config, printed=True)
        return self._text(*taken, options, emit_repro_caller, output_origin_lines)

    @short_errors
    def to_triton_code(
        self,
        config: ConfigLike = None,
        *,
        options: OutputCodeOptions | None = None,
        emit_repro_caller: bool = False,
        output_origin_lines: bool | None = None,
    ) -> str:
        """Return the text of ``to_code`` for the Triton backend.

        If another backend is in use, None means Triton's default config. If Triton is not among the candidate backends,
        the text is that of the backend in use.
        """
        found = self.variant.for_backend("triton", config)
        return self._text(*found, options, emit_repro_caller, output_origin_lines)

    @short_errors
    def to_cute_code(
        self,
        config: ConfigLike = None,
        *,
        options: OutputCodeOptions | None = None,
        emit_repro_caller: bool = False,
        output_origin_lines: bool | None = None,
    ) -> str:
        """Return the text of ``to_code`` for the cute backend. If another backend is in use, None means cute's default.

        Raises:
            exc.InvalidAPIUsage: the cute backend refuses the kernel, or is not a candidate.
        """
        compiled, full = self.variant.for_backend("cute", config)
        backend = compiled.specialized.analysis.backend.name
        if backend != "cute":
            raise exc.InvalidAPIUsage(
                f"Kernel {self.variant.kernel.name!r} has the backend {backend!r}; call to_code()."
            )
        return self._text(compiled, full, options, emit_repro_caller, output_origin_lines)

    def _text(
        self,
        compiled: Compiled,
        config: Config,
        options: OutputCodeOptions | None,
        emit_repro_caller: bool,
        origin_lines: bool | None,
    ) -> str:
        of = compiled.specialized
        if options is not None and not isinstance(options, OutputCodeOptions):
            raise TypeError(f"options= takes a helion.OutputCodeOptions, got {options!r}")
        if options is not None and options.jax_fn:
            raise exc.InvalidAPIUsage(
                f"The backend {of.analysis.backend.name!r} makes no JAX functions; leave out jax_fn."
            )
        form = host_program.Form(
            alone=options is not None and not options.allow_helion_deps,
            source=repro.source_of(self.variant.kernel) if emit_repro_caller else None,
        )
        text = of.analysis.text(config, origin_lines, form)
        return repro.with_caller(text, of) if emit_repro_caller else text

    def plan(self, config: ConfigLike = None) -> Any:
        """Return the plan of a config, as the backend's planner makes it: data that prints as text.

        The cute backend's plan has roles, pipelines, stages, shared and tensor memory.

        Raises:
            exc.InvalidConfig: the config is not legal for the kernel.
        """
        compiled, full = self.variant.for_config(config)
        return compiled.specialized.analysis.plan(full)

    def export_shared_object(self, path: str | pathlib.Path, config: ConfigLike = None) -> pathlib.Path:
        """Write the kernel of a config as a shared object that runs where neither its compiler nor helion is installed.

        Its functions take C types and return CUDA's status, 0 for success. ``int32_t helion_load(int32_t device)`` is
        called once per device. ``int32_t helion_clusters(void)`` returns how many clusters are resident at once.
        ``int32_t helion_launch(void *tensor, ..., int32_t clusters, void *stream)`` takes the tensors that
        ``plan(config).tensors`` names, in its order. They must have exactly the bound shapes and strides and begin at
        multiples of 16 bytes. If ``int64_t helion_workspace(void)`` is not 0, the last tensor is that many bytes of
        device memory, zero before the first launch. Launches that may overlap need one each. The process needs CUDA's
        runtime library.

        Args:
            path: the file to write.
            config: as for ``to_code``.

        Returns:
            The path.

        Raises:
            exc.InvalidAPIUsage: the backend has no such form.
        """
        compiled, full = self.variant.for_config(config)
        return compiled.export(full, pathlib.Path(path))

    @short_errors
    def compile_config(self, config: ConfigLike = None, *, allow_print: bool = True) -> Callable[..., Any]:
        """Generate, load and return the function for a config: it takes the arguments of a call.

        It raises ``exc.BoundToOtherArguments`` for others than those that the code was generated for. As in a call, tensors
        that do not begin at multiples of 16 bytes run a config with ``tensor_descriptor`` by pointers.

        Args:
            config: as for ``to_code``.
            allow_print: print the code where ``print_output_code`` is set.

        Raises:
            exc.InvalidConfig: the config is not legal for the kernel.
        """
        compiled, full = self.variant.for_config(config)
        return self.variant.checked(compiled, full, allow_print=allow_print)

    def get_cached_path(self, config: ConfigLike = None) -> str:
        """Return the path of the file that holds the generated module of a config."""
        compiled, full = self.variant.for_config(config)
        return compiled.specialized.path(full)

    def backend_cache_key(self, config: ConfigLike = None) -> str:
        """Return the key of a config's generated module in the cache: equal for equal text, in every process."""
        return codecache.key(self.to_code(config))

    def short_config(self, config: ConfigLike = None) -> Config:
        """Return a config without the keys at their defaults, except tile sizes, warps and stages."""
        compiled, full = self.variant.for_config(config)
        return compiled.specialized.short_config(full)

    def format_kernel_decorator(self, config: ConfigLike = None, settings: Any = None) -> str:
        """Return the decorator line that fixes a config, without the keys at their defaults."""
        compiled, full = self.variant.for_config(config)
        return compiled.specialized.decorator(full, settings)

    @short_errors
    def resources(self, config: ConfigLike = None) -> Resources:
        """Compile a config for ``target`` with its real assembler, and read its resources from the binary.

        No GPU is needed. A config over a limit does not raise: see ``fits``.

        Args:
            config: as for ``to_code``.

        Returns:
            Registers per thread, spilled bytes per thread, bytes of shared memory and the limit, threads of a program.

        Raises:
            exc.InvalidConfig: the config is not legal for the kernel.
        """
        compiled, full = self.variant.for_config(config)
        return compiled.resources(full)

    @short_errors
    def explain(self, format: str = "text") -> str:
        """Explain the kernel: its kind, its limiting resource, its seeds with reasons, and why other rules declined.

        Predicted and measured resources are shown together.

        Args:
            format: ``"text"``; ``"facts"``, which has every record of the analysis; ``"json"``, all of both;
                ``"html"``, a self-contained page; or ``"assembly"``, counts of the default config's assembled code. The
                page has the device IR, a picture of each access, the roofline, and the kernel next to the generated
                code. Assembled code is compiled for ``target``, one of NVIDIA's GPUs; no GPU is needed.

        Returns:
            The text.

        Raises:
            exc.InvalidAPIUsage: another format, or assembled code of another vendor's GPU.
        """
        return explain.explain(self.variant.compiled, format)


__all__ = ["OutputCodeOptions", "Views"]
