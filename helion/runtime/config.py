"""``Config``, under the module's name in the public API."""

from ..config import Config as Config
