"""Searches as objects, for ``autotuner_fn`` and for programs that tune a bound kernel by themselves.

The classes have the names of the public API. Each selects one of the searches of ``autotune(search=...)``. Those
without a counterpart in this project select the one with a model of the times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from ..config import Config


class Searchable(Protocol):
    """A bound kernel, as far as searches need one."""

    def search(
        self,
        args: Sequence[Any],
        candidates: Sequence[Config | Mapping[str, Any]] = (),
        /,
        *,
        force: bool,
        **options: Any,
    ) -> Config: ...


class BaseSearch:
    """A search for the fastest config of a bound kernel.

    Args:
        bound_kernel: the result of ``kernel.bind(args)``.
        args: the arguments of a call.
        options: as for ``BoundKernel.autotune``.
    """

    #: Name for ``autotune(search=...)``.
    search: ClassVar[str] = "surrogate"

    def __init__(self, bound_kernel: Searchable, args: Sequence[Any], **options: Any) -> None:
        self.bound_kernel = bound_kernel
        self.args = args
        self.options = {"search": self.search, **options}
        self.configs: Sequence[Config | Mapping[str, Any]] = ()

    def autotune(self, *, skip_cache: bool = False) -> Config:
        """Search, and use the result from then on.

        Args:
            skip_cache: accepted as in the public API: a search always runs.

        Returns:
            The config. On CPU tensors nothing is searched: the first config that was given, or the default.

        Raises:
            exc.NoConfigFound: none of the given configs is legal, or none that was tried works.
            exc.InvalidAPIUsage: there is no such option.
        """
        return self.bound_kernel.search(self.args, self.configs, force=True, **self.options)


class FiniteSearch(BaseSearch):
    """The fastest of a list of configs.

    Args:
        bound_kernel: the result of ``kernel.bind(args)``.
        args: the arguments of a call.
        configs: the list; None means the configs of the decorator.
        options: as for ``BoundKernel.autotune``.
    """

    search = "finite"

    def __init__(
        self,
        bound_kernel: Searchable,
        args: Sequence[Any],
        configs: Sequence[Config | Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(bound_kernel, args, **options)
        self.configs = list(configs or ())


class RandomSearch(BaseSearch):
    """Search over configs drawn at random.

    Args:
        bound_kernel: the result of ``kernel.bind(args)``.
        args: the arguments of a call.
        count: number of configs; None means that of the effort.
        options: as for ``BoundKernel.autotune``.
    """

    search = "random"

    def __init__(self, bound_kernel: Searchable, args: Sequence[Any], count: int | None = None, **options: Any) -> None:
        super().__init__(bound_kernel, args, **({} if count is None else {"configs": count}), **options)


class PatternSearch(BaseSearch):
    """Search that moves to neighbors of the fastest configs so far."""

    search = "pattern"


class DifferentialEvolutionSearch(BaseSearch):
    """Search that mixes configs; one that is faster than its parent replaces it."""

    search = "evolution"


class LFBOPatternSearch(BaseSearch):
    """Search for the configs with the largest expected improvement by a model of the times."""


class LFBOTreeSearch(BaseSearch):
    """Search for the configs with the largest expected improvement by a model of the times."""


class DESurrogateHybrid(BaseSearch):
    """Search for the configs with the largest expected improvement by a model of the times."""


class LocalAutotuneCache:
    """Search that runs only if no cached config exists; configs are cached in ``HELION_CACHE_DIR``.

    Args:
        search: one of the searches above.
    """

    def __init__(self, search: BaseSearch) -> None:
        self.search = search

    def autotune(self, *, skip_cache: bool = False) -> Config:
        """Return the cached config of the kernel for such arguments, or search for one.

        Args:
            skip_cache: always search.

        Raises:
            exc.NoConfigFound: nothing that was tried works.
        """
        search = self.search
        return search.bound_kernel.search(search.args, search.configs, force=skip_cache, **search.options)


class StrictLocalAutotuneCache(LocalAutotuneCache):
    """The same: cached configs always depend on the versions."""


def from_cache(
    *, max_configs: int | None = None, configs: Sequence[Config | Mapping[str, Any]] = ()
) -> Callable[..., BaseSearch]:
    """Make an ``autotuner_fn`` that tries known configs only: the default, seeds, and cached ones.

    Args:
        max_configs: how many are tried at most; None means 20.
        configs: more of them, tried first.

    Returns:
        A function for the setting ``autotuner_fn``.
    """

    def search(bound_kernel: Searchable, args: Sequence[Any], **options: Any) -> BaseSearch:
        known = {"seed_configs": list(configs), "configs": 20 if max_configs is None else max_configs}
        return BaseSearch(bound_kernel, args, **{**known, **options, "search": "finite"})

    return search
