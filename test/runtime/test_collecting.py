"""The pause of garbage collection while kernels are compiled."""

from __future__ import annotations

import gc
import os
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion._support import collecting
from helion.runtime import kernel as kernels
from helion.runtime.dispatch import Calls
from helion.runtime.variants import policies
from helion.runtime.variants.table import Variants
from helion.runtime.variants.variant import Variant


@pytest.fixture(autouse=True)
def collects() -> Iterator[None]:
    assert gc.isenabled()
    yield
    assert gc.isenabled()


@pytest.fixture
def pausing_thread() -> Iterator[Callable[[], None]]:
    """A thread that pauses the collection until the fixture is called."""
    begun, end = threading.Event(), threading.Event()

    def pause() -> None:
        with collecting.paused():
            begun.set()
            end.wait(600)

    def leave() -> None:
        end.set()
        thread.join()

    thread = threading.Thread(target=pause)
    thread.start()
    assert begun.wait(600)
    yield leave
    leave()


def test_bodies_nest() -> None:
    with collecting.paused():
        with collecting.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(KeyError), collecting.paused():
        raise KeyError
    assert gc.isenabled()


def test_bodies_of_threads_overlap(pausing_thread: Callable[[], None]) -> None:
    with collecting.paused():
        pass
    assert not gc.isenabled()  # the other body has not ended
    child = os.fork()
    if not child:
        os._exit(int(not gc.isenabled()))  # there is no other thread
    assert os.waitpid(child, 0)[1] == 0
    pausing_thread()


def test_a_program_without_collection_keeps_none() -> None:
    gc.disable()
    try:
        with collecting.paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_objects_of_a_body_are_collected_alone() -> None:
    """A collection is due after a body that made many objects; it leaves older ones out."""
    seen: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        seen.append(info["generation"])

    gc.callbacks.append(note)
    try:
        with collecting.paused():
            made = [[] for _ in range(2 * gc.get_threshold()[0])]
        assert made and set(seen) == {0}
        seen.clear()
        with collecting.paused():
            pass
        assert seen == []
    finally:
        gc.callbacks.remove(note)


def test_a_body_resumes_the_collection_of_those_around_it() -> None:
    with collecting.paused(), collecting.paused():
        with collecting.resumed():
            assert gc.isenabled()
            with collecting.paused():
                assert not gc.isenabled()
        assert not gc.isenabled()
    with collecting.resumed():
        assert gc.isenabled()


def test_a_thread_resumes_no_collection_that_another_one_pauses(pausing_thread: Callable[[], None]) -> None:
    with collecting.paused(), collecting.resumed():
        assert not gc.isenabled()
    pausing_thread()


@helion.kernel
def twice(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t] = x[t] * 2
    return out


def test_a_bound_kernel_was_made_in_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, made, chosen = [], Variants._made, policies._used

    def recorded(*given: Any) -> Variant:
        seen.append(gc.isenabled())
        return made(*given)

    def used(*given: Any) -> bool:
        seen.append(gc.isenabled())
        return chosen(*given)

    monkeypatch.setattr(Variants, "_made", recorded)
    monkeypatch.setattr(policies, "_used", used)
    twice.reset()
    assert torch.equal(twice(torch.ones(3)), torch.full((3,), 2.0))
    assert seen[0] is False and seen[-1] is False  # bound, then chosen by default


def test_a_first_call_on_a_gpu_is_one_pause_but_for_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the analysis until the call is learned, only policies that search for minutes collect garbage."""
    events: list[str] = []

    def noted(name: str, function: Any) -> Any:
        def note(*given: Any) -> Any:
            events.append(name)
            return function(*given)

        return note

    monkeypatch.setattr(kernels, "stub", types.SimpleNamespace(on_gpu=lambda value: True))
    monkeypatch.setattr(kernels, "dispatchable", lambda values: True)
    monkeypatch.setattr(Variants, "_made", noted("made", Variants._made))
    monkeypatch.setattr(Calls, "learn", noted("learned", lambda *given: None))
    monkeypatch.setattr(gc, "enable", noted("enabled", gc.enable))
    twice.reset()
    assert torch.equal(twice(torch.ones(3)), torch.full((3,), 2.0))
    assert events == ["made", "learned", "enabled"]
    events.clear()

    def search(variant: Any, args: Any, **options: Any) -> None:
        events.append("search")
        variant.choice.use(variant.full(variant.kernel.configs[1]))

    monkeypatch.setattr(policies, "requests", types.SimpleNamespace(autotune=search))
    several = helion.kernel(twice.fn, configs=[helion.Config(block_sizes=[size]) for size in (1, 2)])
    assert torch.equal(several(torch.ones(3)), torch.full((3,), 2.0))
    assert events == ["made", "enabled", "search", "learned", "enabled"]
