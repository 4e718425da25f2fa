"""Choice of the search for an effort."""

from __future__ import annotations

from ..options import Options
from .domain import Domain
from .evolution import DifferentialEvolution
from .finite import FiniteSearch
from .pattern import PatternSearch
from .protocol import Search
from .random import RandomSearch
from .surrogate import Pruned, SurrogateSearch


def search_of(options: Options, domain: Domain, seed: int | None = None) -> Search:
    """Return a search over a domain; only the seeds with the effort ``minimal``."""
    start = options.random_seed if seed is None else seed
    if options.effort == "minimal" or options.search == "finite":
        return FiniteSearch(domain.seeds if domain.configs is None else domain.configs)
    match options.search:
        case "random":
            return RandomSearch(domain, start)
        case "pattern":
            return Pruned(PatternSearch(domain, start), domain)
        case "evolution":
            return Pruned(DifferentialEvolution(domain, start), domain)
    return SurrogateSearch(domain, start)
