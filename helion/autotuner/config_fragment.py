"""Fragments (value sets of config fields), under the module's name in the public API."""

from ..fields import BooleanFragment as BooleanFragment
from ..fields import EnumFragment as EnumFragment
from ..fields import IntegerFragment as IntegerFragment
from ..fields import ListOf as ListOf
from ..fields import PermutationFragment as PermutationFragment
from ..fields import PowerOfTwoFragment as PowerOfTwoFragment
