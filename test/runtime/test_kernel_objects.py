"""Kernels as objects: copies, pickles, processes, reentrance, tables with a bound, and the source they come from."""

from __future__ import annotations

import copy
import importlib.util
import io
import multiprocessing
import pickle
import string
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from graph_kernels import add_scaled, rms_norm  # a process that is spawned finds this module

import helion
import helion.language as hl
from helion import exc
from helion._compiler import source
from helion._support.syntax import parse
from helion.hardware import UnknownTargetName


@helion.kernel(config=helion.Config(block_sizes=[8]))
def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * 2
    return out


@helion.kernel(config=helion.Config(block_sizes=[8]))
def apply(x: torch.Tensor, function: Callable[..., Any]) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = function(x[tile])
    return out


class Doubling(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = double
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x)


def test_a_function_that_was_given_another_name() -> None:
    function = types.FunctionType(double.fn.__code__, double.fn.__globals__)
    function.__name__ = function.__qualname__ = "double[8]"
    renamed = helion.kernel(function)
    assert renamed.name == "double" and renamed(torch.ones(3)).tolist() == [2.0] * 3


# --- copies and pickles ------------------------------------------------------------------------------------------------


def test_a_kernel_is_copied_and_pickled_by_reference() -> None:
    assert copy.copy(double) is double and copy.deepcopy([double])[0] is double
    assert pickle.loads(pickle.dumps(double)) is double
    bound = double.bind((torch.ones(3),))
    assert copy.copy(bound) is bound and copy.deepcopy(bound) is bound
    with pytest.raises(pickle.PicklingError, match="bound kernel .'double'. cannot be pickled; pickle the kernel"):
        pickle.dumps(bound)


def test_a_module_that_holds_a_kernel_is_copied_and_saved() -> None:
    module = Doubling()
    copied = copy.deepcopy(module)
    assert copied.kernel is double and copied.weight is not module.weight
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    assert torch.load(file, weights_only=False)(torch.ones(3)).tolist() == [2.0] * 3


def test_a_kernel_that_cannot_be_found_is_not_pickled() -> None:
    other = helion.kernel(double.fn)
    with pytest.raises(pickle.PicklingError, match="test_kernel_objects.double is not this kernel"):
        pickle.dumps(other)

    @helion.kernel
    def local(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile]
        return out

    with pytest.raises(pickle.PicklingError, match="at the top level of a module"):
        pickle.dumps(local)


def _classes(root: type[exc.Base]) -> list[type[exc.Base]]:
    return [root, *(each for child in root.__subclasses__() for each in _classes(child))]


@pytest.mark.parametrize("kind", sorted(set(_classes(exc.Base)), key=str))
def test_every_error_crosses_to_another_process(kind: type[exc.Base]) -> None:
    names = {name for _, name, _, _ in string.Formatter().parse(kind.template) if name and not name.isdigit()}
    error = kind("text", **dict.fromkeys(names, "field"))
    error.add_note("a note") if sys.version_info >= (3, 11) else None
    for made in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(made) is kind and str(made) == str(error) and made.args == error.args
        assert made.fields == error.fields and made.__dict__ == error.__dict__


def test_an_error_with_a_location_and_an_odd_field() -> None:
    with pytest.raises(exc.BaseError) as caught:
        double(torch.tensor(1.0))
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and "out[tile]" in str(again) + double.kernel_source()
    odd = exc.ShapeMismatch(lhs=threading.Lock(), rhs=2, detail="")
    assert str(pickle.loads(pickle.dumps(odd))) == str(odd)
    with pytest.raises(UnknownTargetName):
        raise pickle.loads(pickle.dumps(UnknownTargetName("no such GPU")))


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.prove)])
def test_kernels_and_errors_cross_processes(method: str) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
        assert pool.submit(add_scaled, torch.ones(3), torch.ones(3)).result(300).tolist() == [2.0] * 3
        with pytest.raises(exc.BaseError, match="out of range"):
            pool.submit(rms_norm, torch.ones(()), torch.ones(3)).result(300)


# --- reentrance --------------------------------------------------------------------------------------------------------


def _calls_second(n: int) -> int:
    return int(second(torch.ones(n)).sum())


def _calls_first(n: int) -> int:
    return int(first(torch.ones(n)).sum())


def _calls_itself(n: int) -> int:
    return int(itself(torch.ones(4), n).sum()) if n else 1


@helion.kernel
def first(x: torch.Tensor) -> torch.Tensor:
    n = _calls_second(4)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + n
    return out


@helion.kernel
def second(x: torch.Tensor) -> torch.Tensor:
    n = _calls_first(4)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + n
    return out


@helion.kernel
def itself(x: torch.Tensor, depth: hl.constexpr) -> torch.Tensor:
    n = _calls_itself(depth - 1)
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + n
    return out


def test_kernels_that_call_each_other_while_they_are_compiled_are_refused() -> None:
    for kernel, arguments, name in ((first, (), "second"), (second, (), "first"), (itself, (2,), "itself")):
        with pytest.raises(exc.NestedKernelCallsNotSupported, match=f"Kernel '{name}' is called from inside another"):
            kernel(torch.ones(4), *arguments)
    assert double(torch.ones(2)).tolist() == [2.0, 2.0]  # the thread is as it was


def test_threads_with_kernels_that_call_each_other_do_not_wait_for_each_other() -> None:
    def run(kernel: helion.Kernel) -> None:
        for _ in range(10):
            with pytest.raises(exc.NestedKernelCallsNotSupported):
                kernel(torch.ones(4))

    threads = [threading.Thread(target=run, args=(k,), daemon=True) for k in (first, second, first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert not any(thread.is_alive() for thread in threads)


# --- tables ------------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_MAX_SPECIALIZATIONS", "3")
    kernel = helion.kernel(double.fn, config=helion.Config(block_sizes=[8]))
    tensors = {n: torch.ones(n) for n in range(2, 8)}
    bound = {n: kernel.bind((tensors[n],)) for n in (2, 3, 4)}
    assert kernel.bind((tensors[2],)) is bound[2]
    kernel.bind((tensors[5],))
    assert len(kernel.variants) == 3
    assert kernel.bind((tensors[2],)) is bound[2] and kernel.bind((tensors[4],)) is bound[4]
    assert kernel.bind((tensors[3],)) is not bound[3]
    monkeypatch.setenv("HELION_MAX_SPECIALIZATIONS", "0")
    with pytest.raises(ValueError, match="HELION_MAX_SPECIALIZATIONS='0': expected a number above 0"):
        kernel.bind((tensors[7],))


def test_many_shapes_keep_to_the_bound_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_MAX_SPECIALIZATIONS", "8")
    kernel = helion.kernel(double.fn, config=helion.Config(block_sizes=[8]))

    def run(begin: int) -> None:
        for n in range(begin, begin + 40):
            kernel.bind((torch.empty(n, device="meta"),))

    threads = [threading.Thread(target=run, args=(20 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kernel.variants) == sum(map(len, kernel.variants._exact._entries.values())) == 8


def test_a_bound_kernel_says_what_it_is_bound_to() -> None:
    x = torch.ones(4, 3)
    assert repr(double.bind((x[:, 0],), target="sm_90")) == ("<helion.BoundKernel double(x=float32[4]@(3,)) for sm_90>")


# --- source ------------------------------------------------------------------------------------------------------------

HELPER = "def act(v):\n    return v * {}\n\n\nplus = lambda v: v + {}\n"


def _module(path: Path, text: str) -> types.ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


def test_a_helper_that_was_edited_after_its_import_is_refused(tmp_path: Path) -> None:
    module = _module(tmp_path / "edited_helper.py", HELPER.format(3, 4))
    (tmp_path / "edited_helper.py").write_text(HELPER.format(5, 6))
    for function in (module.act, module.plus):
        with pytest.raises(exc.SourceChanged, match="edited_helper.py was changed after it was imported"):
            apply(torch.ones(5), function)
    (tmp_path / "edited_helper.py").write_text("def act(:\n")
    with pytest.raises(exc.SourceChanged):
        apply(torch.ones(5), module.act)


def test_a_helper_that_moved_in_its_file_is_found(tmp_path: Path) -> None:
    module = _module(tmp_path / "moved_helper.py", HELPER.format(7, 8))
    (tmp_path / "moved_helper.py").write_text("# a line\nimport math\n\n" + HELPER.format(7, 8))
    assert apply(torch.ones(5), module.act).tolist() == [7.0] * 5
    assert apply(torch.ones(5), module.plus).tolist() == [9.0] * 5


def test_a_kernel_keeps_the_source_it_was_decorated_with(tmp_path: Path) -> None:
    text = (
        "import torch, helion, helion.language as hl\n\n\n@helion.kernel(config=helion.Config(block_sizes=[8]))\n"
        "def kept(x):\n    out = torch.empty_like(x)\n    for tile in hl.tile(x.size(0)):\n"
        "        out[tile] = x[tile] + {}\n    return out\n"
    )
    module = _module(tmp_path / "kept_kernel.py", text.format(1))
    (tmp_path / "kept_kernel.py").write_text(text.format(2))
    assert module.kept(torch.ones(5)).tolist() == [2.0] * 5


MANY = """
import torch, helion, helion.language as hl
from collections.abc import Callable

class Holder:
    @helion.kernel(
        config=helion.Config(block_sizes=[8]),
    )
    def inner(x: torch.Tensor, f: Callable) -> torch.Tensor:
        '''Text of
several lines, which are not indented.'''
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = f(x[tile])
        return out

one, other = lambda v: v + 1, lambda w: w - 1
two = lambda v: v * 3
def same(v): return v - 3
if True:
    def same(v):
        return v * 7
"""


def test_a_file_is_parsed_once_for_all_of_its_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(source, "parse", lambda text: [parsed.append(text), parse(text)][1])
    module = _module(tmp_path / "many_functions.py", MANY)
    values = (module.one, 2.0), (module.two, 3.0), (module.other, 0.0), (module.same, 7.0)
    for function, expected in values:
        assert module.Holder.inner(torch.ones(5), function).tolist() == [expected] * 5
    assert len(parsed) == 1


def test_a_source_that_was_not_found_is_looked_for_again(tmp_path: Path) -> None:
    text = "@helion.kernel\ndef late(x):\n    out = torch.empty_like(x)\n    for t in hl.tile(x.size(0)):\n        out[t] = x[t] + 1\n    return out\n"
    names = {"helion": helion, "torch": torch, "hl": hl, "__name__": "late_module"}
    file = tmp_path / "late_module.py"
    with pytest.raises(exc.InvalidAPIUsage, match="cannot be found"):
        exec(compile(text, str(file), "exec"), names)
    file.write_text(text)
    exec(compile(text, str(file), "exec"), names)
    assert names["late"](torch.ones(3)).tolist() == [2.0] * 3  # type: ignore[operator]
