"""Names for unittest suites over kernels: skips by device and mode, and base classes. ``helion._testing`` has them too.

Every skip takes the reason and is a decorator of test methods and classes; it is decided when the test is defined.
"""

from __future__ import annotations

import unittest
from collections.abc import Callable
from typing import Any

import torch

from ._compat import supports_tensor_descriptor
from .settings import RefMode, Settings

Skip = Callable[[Any], Any]


def _is_eager() -> bool:
    """Return whether kernels run eagerly by default (``HELION_INTERPRET=1``)."""
    return Settings().ref_mode is RefMode.EAGER


def skipIfRefEager(reason: str) -> Skip:
    """Skip when kernels run eagerly: there is no generated code then."""
    return unittest.skipIf(_is_eager(), reason)


def skipIfCpu(reason: str) -> Skip:
    """Skip when tests run without a GPU, in the interpreter."""
    return unittest.skipIf(not torch.cuda.is_available(), reason)


def skipIfRocm(reason: str) -> Skip:
    """Skip on AMD GPUs."""
    return unittest.skipIf(torch.version.hip is not None, reason)


def skipIfXPU(reason: str) -> Skip:
    """Skip on Intel GPUs."""
    return unittest.skipIf(hasattr(torch, "xpu") and torch.xpu.is_available(), reason)


def skipUnlessTensorDescriptor(reason: str) -> Skip:
    """Skip on GPUs without tensor descriptors."""
    return unittest.skipUnless(supports_tensor_descriptor(), reason)


class TestCase(unittest.TestCase):
    """A test case that shows whole differences."""

    __test__ = False
    maxDiff = None

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        cls.__test__ = True


class RefEagerTestBase:
    """Mixin for a test case whose tests are meaningful when kernels run eagerly, too."""


class RefEagerTestDisabled:
    """Mixin for a test case whose tests are skipped when kernels run eagerly."""

    def setUp(self) -> None:
        if _is_eager():
            raise unittest.SkipTest("kernels run eagerly, and this test is about compiled ones")
        super().setUp()  # type: ignore[misc]
