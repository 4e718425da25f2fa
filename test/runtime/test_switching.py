"""The turns of Python's threads while kernels compile."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from helion._support import switching


@pytest.fixture(autouse=True)
def interval() -> Iterator[float]:
    before = sys.getswitchinterval()
    yield before
    sys.setswitchinterval(before)


def test_threads_switch_often_in_the_body(interval: float) -> None:
    with switching.often():
        assert sys.getswitchinterval() < interval
    assert sys.getswitchinterval() == interval


def test_an_interval_that_is_set_meanwhile_or_is_shorter_stays() -> None:
    with switching.often():
        sys.setswitchinterval(0.25)
    assert sys.getswitchinterval() == pytest.approx(0.25)
    sys.setswitchinterval(1e-5)
    with switching.often():
        assert sys.getswitchinterval() == pytest.approx(1e-5)
    assert sys.getswitchinterval() == pytest.approx(1e-5)
