"""The space of configs, seeds and search. Value sets of config fields are exported for ``hl.register_tunable``."""

from ..fields import BooleanFragment as BooleanFragment
from ..fields import EnumFragment as EnumFragment
from ..fields import IntegerFragment as IntegerFragment
from ..fields import ListOf as ListOf
from ..fields import PermutationFragment as PermutationFragment
from ..fields import PowerOfTwoFragment as PowerOfTwoFragment
