"""Spellings of configs: what a user may write, and that all of it means the same to a kernel."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import helion
import helion.language as hl
from helion import exc


@helion.kernel
def scale(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for a, b in hl.tile([x.size(0), x.size(1)]):
        first = x[a, b, 0]
        for c in hl.tile(x.size(2)):
            out[a, b, c] = x[a, b, c] * first[:, :, None]
    return out


@helion.kernel
def center(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size(0)):
        out[t, :] = x[t, :] - x[t, :].sum(-1, keepdim=True) + y[t, :].amax(-1, keepdim=True)
    return out


@helion.kernel
def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for t in hl.tile(x.size()):
        out[t] = x[t] * 2
    return out


SPELLINGS = (
    {"block_sizes": [4, 16, 16]},
    {"block_sizes": [[4, 16], 16]},
    {"block_sizes": (4, [16, (16,)])},
    {"block_size": [4, 16, 16]},
    {"block_size": [[4], [[16]], 16]},
)
ORDERS = ({"loop_orders": [[1, 0]]}, {"loop_order": [1, 0]}, {"loop_order": (1, 0)})
GROUPS = ({}, {"l2_groupings": 2}, {"l2_grouping": 2}, {"l2_grouping": [2]}, {"l2_groupings": [[2]]})


def test_a_notebook_shows_a_table() -> None:
    shown = helion.Config(block_sizes=[16], pid_type="flat")._repr_html_()
    assert "<tr><th>block_sizes</th><td><code>[16]</code></td></tr>" in shown
    assert "<th>pid_type</th><td><code>&#x27;flat&#x27;</code></td>" in shown


def test_spellings_of_lists() -> None:
    x = torch.randn(5, 20, 33)
    bound = scale.bind((x,))
    normal = {bound.config_spec.normalize(config) for config in SPELLINGS}
    assert len(normal) == 1
    assert len({bound.config_spec.normalize({**SPELLINGS[0], **order}) for order in ORDERS} | normal) == 2
    grouped = {bound.config_spec.normalize({**SPELLINGS[0], **group}) for group in GROUPS}
    assert len(grouped) == 2
    for config, group in itertools.zip_longest(SPELLINGS, GROUPS, fillvalue={}):
        torch.testing.assert_close(
            bound.compile_config({**config, **group})(x) if config else x * x[:, :, :1], x * x[:, :, :1]
        )


@pytest.mark.parametrize(
    "way",
    [
        lambda config: helion.Config(**config),
        lambda config: helion.Config.from_dict(config),
        lambda config: helion.Config.from_json(helion.Config(**config).to_json()),
        lambda config: helion.kernel(scale.fn, config=config).configs[0],
        lambda config: helion.kernel(scale.fn, configs=[config]).configs[0],
    ],
)
def test_lists_are_flat_wherever_a_config_is_taken(way: Callable[[dict[str, Any]], helion.Config]) -> None:
    for config in SPELLINGS:
        assert way(config).block_sizes == [4, 16, 16]
    assert way({"static_ranges": [None, [True]]}).static_ranges == [None, True]
    assert way({"range_unroll_factor": 3}).range_unroll_factors == [3]
    assert way({"loop_order": [2, 0, 1]}).loop_orders == [[2, 0, 1]]
    assert "flatten_loops" not in way({"flatten_loops": None})


def test_one_chunk_for_every_reduction() -> None:
    x, y = torch.randn(5, 63) + 1, torch.randn(5, 33)
    spec = center.bind((x, y)).config_spec
    assert spec.normalize({"reduction_loop": 16})["reduction_loops"] == [16, 16]
    assert spec.normalize({"reduction_loops": 16})["reduction_loops"] == [16, None]
    assert spec.normalize({"reduction_loop": [None, 16]})["reduction_loops"] == [None, 16]
    assert double.bind((x,)).config_spec.normalize({"reduction_loop": 16})["reduction_loops"] == []


def test_errors_count_the_flat_entries() -> None:
    spec = scale.bind((torch.randn(5, 20, 33),)).config_spec
    with pytest.raises(exc.InvalidConfig, match="block_sizes has 4 entries, expected 3"):
        spec.normalize({"block_sizes": [[4, 16], [16, 16]]})
    with pytest.raises(exc.InvalidConfig, match="Both 'block_size' and 'block_sizes'"):
        spec.normalize({"block_sizes": [4, 16, 16], "block_size": 4})
    with pytest.raises(exc.InvalidConfig, match=r"reduction_loops has 1 entry, expected 0"):
        spec.normalize({"reduction_loops": [16]})


def test_attributes_that_are_left_out() -> None:
    config = helion.Config(num_warps=8, factor=3)
    assert (config.num_warps, config.num_stages, config.pid_type, config.num_sm_multiplier) == (8, 1, "flat", 1)
    assert (config.block_sizes, config.indexing, config.load_eviction_policies, config.factor) == ([], [], [], 3)
    assert config.maxnreg is None and dict(config) == {"num_warps": 8, "factor": 3}
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        config.other  # noqa: B018


def test_subtiles_and_flattened_loops_exclude_each_other() -> None:
    x = torch.randn(20, 33)
    bound = double.bind((x,))
    torch.testing.assert_close(bound.compile_config({"block_sizes": [4, 8], "epilogue_subtile": 2})(x), x * 2)
    with pytest.raises(exc.InvalidConfig, match=r"epilogue_subtile=2 splits tiles .* flatten_loops=\[True\]"):
        bound.config_spec.normalize({"epilogue_subtile": True, "flatten_loops": [True]})


def test_keys_are_properties_of_the_class() -> None:
    for key in helion.config.KEYS:
        assert isinstance(getattr(helion.Config, key), property) and getattr(helion.Config, key).__doc__
    config = helion.Config(block_sizes=[8], num_warps=2, mine=3)
    assert (config.block_sizes, config.num_warps, config.num_stages, config.indexing, config.mine) == ([8], 2, 1, [], 3)
    with pytest.raises(AttributeError, match="no attribute 'num_warp'"):
        config.num_warp  # noqa: B018


def test_what_a_kernel_was_bound_for() -> None:
    bound = helion.kernel(double.fn, config={"block_sizes": [8]}).bind((torch.zeros(8),))
    assert bound.env.settings is bound.settings is bound.kernel.settings
    assert bound.env.device.type == "cpu" and bound.env.index_dtype is torch.int32
    assert bound.env.target is bound.target and bound.configs == [helion.Config(block_sizes=[8])]


def test_a_config_of_a_full_dict_equals_one_of_its_keys() -> None:
    config = helion.Config(block_sizes=[1, 2], loop_orders=[[1, 0]], num_warps=4)
    full = helion.Config.of_full({key: config[key] for key in reversed(list(config))})
    assert full == config and hash(full) == hash(config) and list(full) == ["num_warps", "loop_orders", "block_sizes"]
