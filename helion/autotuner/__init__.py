"""The config space, seeds and search.

Fragments of config fields are exported for ``hl.register_tunable``, searches for ``autotuner_fn``.
"""

from ..fields import BooleanFragment as BooleanFragment
from ..fields import EnumFragment as EnumFragment
from ..fields import IntegerFragment as IntegerFragment
from ..fields import ListOf as ListOf
from ..fields import PermutationFragment as PermutationFragment
from ..fields import PowerOfTwoFragment as PowerOfTwoFragment
from .searches import BaseSearch as BaseSearch
from .searches import DESurrogateHybrid as DESurrogateHybrid
from .searches import DifferentialEvolutionSearch as DifferentialEvolutionSearch
from .searches import FiniteSearch as FiniteSearch
from .searches import LFBOPatternSearch as LFBOPatternSearch
from .searches import LFBOTreeSearch as LFBOTreeSearch
from .searches import LocalAutotuneCache as LocalAutotuneCache
from .searches import PatternSearch as PatternSearch
from .searches import RandomSearch as RandomSearch
from .searches import StrictLocalAutotuneCache as StrictLocalAutotuneCache
