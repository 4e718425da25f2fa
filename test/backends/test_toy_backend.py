"""A backend that is one file and one line of the registry does all that users ask of kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from backends.toy import Toy

import helion
import helion.language as hl
from helion import exc
from helion.backends import BACKENDS


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    BACKENDS["toy"] = Toy()
    yield
    del BACKENDS["toy"]


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + y[tile]
    return out


def exponential(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = torch.exp(x[tile])
    return out


ARGUMENTS = (torch.randn(50, 33), torch.randn(50, 33))


@pytest.mark.parametrize("config", [None, helion.Config(block_sizes=[8, 32])], ids=["default", "given"])
def test_it_runs(config: helion.Config | None) -> None:
    kernel = helion.kernel(add, backend="toy", config=config)
    for _ in range(2):
        torch.testing.assert_close(kernel(*ARGUMENTS), sum(ARGUMENTS))


def test_it_has_a_seed_that_is_the_default() -> None:
    bound = helion.kernel(add, backend="toy").bind(ARGUMENTS)
    (seed,) = bound.seeds
    assert seed.heuristic == "squares" and seed.config["block_sizes"] == [16, 16]
    assert bound.default_config() == seed.config
    assert "num_warps" not in seed.config
    with pytest.raises(exc.InvalidConfig, match="num_warps"):
        bound.compile_config({"num_warps": 4})


def test_it_explains_itself() -> None:
    text = helion.kernel(add, backend="toy").bind(ARGUMENTS).explain()
    assert "squares: every tile is a square" in text and "a toy takes nothing of a GPU" in text


def test_its_code_is_its_own() -> None:
    text = helion.kernel(add, backend="toy").bind(ARGUMENTS).to_code()
    assert "torch.add(value_" in text and "triton" not in text


def test_checked_calls_and_repro_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = helion.kernel(add, backend="toy", print_repro=True)
    torch.testing.assert_close(kernel(*ARGUMENTS), sum(ARGUMENTS))
    assert "backend='toy'" in capsys.readouterr().err
    with pytest.raises(exc.BackendUnsupported, match="'exp'.*toy"):
        helion.kernel(exponential, backend="toy")(ARGUMENTS[0])


def test_what_it_cannot_do_is_refused_by_name() -> None:
    with pytest.raises(exc.BackendUnsupported, match="'exp'.*toy"):
        helion.kernel(exponential, backend="toy").bind(ARGUMENTS[:1])


@pytest.fixture
def toy_comes_first(registered: None) -> Iterator[None]:
    others = {name: BACKENDS.pop(name) for name in list(BACKENDS) if name != "toy"}
    BACKENDS.update(others)
    yield
    toy = BACKENDS.pop("toy")
    BACKENDS["toy"] = toy


def test_auto_takes_another_backend_for_what_one_refuses(toy_comes_first: None) -> None:
    x, y = ARGUMENTS
    ours, theirs = helion.kernel(add, backend="auto"), helion.kernel(exponential, backend="auto")
    assert "torch.add(value_" in ours.bind((x, y)).to_code()
    assert "@triton.jit" in theirs.bind((x,)).to_code()
    torch.testing.assert_close(ours(x, y), x + y)
    torch.testing.assert_close(theirs(x), torch.exp(x))


def test_auto_takes_what_is_predicted_to_be_fastest_wherever_it_stands() -> None:
    """A toy says that everything takes a microsecond."""
    assert "torch.add(value_" in helion.kernel(add, backend="auto").bind(ARGUMENTS).to_code()


def test_auto_takes_nothing_without_a_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    predict = Toy.predict
    monkeypatch.setattr(Toy, "predict", lambda *given: dataclasses.replace(predict(*given), time_us=0))
    assert "@triton.jit" in helion.kernel(add, backend="auto").bind(ARGUMENTS).to_code()


def test_where_all_refuse_the_last_says_why(toy_comes_first: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: object, program: object, target: object) -> exc.Base:
        return exc.BackendUnsupported(what="everything", backend="Triton", remedy="")

    monkeypatch.setattr(type(BACKENDS["triton"]), "refusal", refused)
    with pytest.raises(exc.BackendUnsupported, match="everything.*Triton"):
        helion.kernel(exponential, backend="auto").bind(ARGUMENTS[:1])


def test_auto_passes_over_what_is_not_installed(toy_comes_first: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "toy", Toy(is_installed=False))
    assert "@triton.jit" in helion.kernel(add, backend="auto").bind(ARGUMENTS).to_code()
    assert "torch.add(value_" in helion.kernel(add, backend="toy").bind(ARGUMENTS).to_code()


def test_auto_leaves_given_configs_to_the_backend_that_has_their_keys(toy_comes_first: None) -> None:
    config = helion.Config(block_sizes=[16, 16], num_warps=4)
    kernel = helion.kernel(add, backend="auto", config=config)
    assert "@triton.jit" in kernel.bind(ARGUMENTS).to_code()
    torch.testing.assert_close(kernel(*ARGUMENTS), sum(ARGUMENTS))


def test_an_unknown_backend_is_named_with_those_there_are() -> None:
    with pytest.raises(exc.BackendUnsupported, match="nobody backend; there is 'cute', 'triton', 'toy', 'auto'"):
        helion.kernel(add, backend="nobody").bind(ARGUMENTS)
