"""First configs of kernels of benchmarks/workloads, one for each kind that has a rule of its own."""

from __future__ import annotations

import pytest

from benchmarks.cells import workload_cells

#: The first cell of each kernel, and its tiles on an H200.
TILES = {
    "padded_transpose": [1, 128, 128],  # a load of fewer elements than there are to store counts as well
    "causal_convolution": [1, 2048],  # a batch that programs share drags nothing along
    "depthwise_nhwc": [16, 128],  # a window once, and 384 channels in tiles that leave no lane idle
    "gathered_pages": [16],  # a run of pages is no run of memory
    "segment_softmax": [32, 32],  # loops one behind the other, of 32 edges on average
    "neighbour_sums": [128, 16],  # the edges say how long a loop is, not what they gather from
    "batch_norm_columns": [64, 256, 256],  # a sector of each row, also where the result is applied
    "smoothed_loss_and_gradient": [1, 16384, 16384],
    "few_tokens": [64, 256],  # long lines of the weights
}


@pytest.mark.parametrize("kernel", TILES)
def test_tiles(kernel: str) -> None:
    cell = next(cell for cell in workload_cells() if cell.kernel == kernel)
    bound = cell.function.bind(cell.args, target="h200")
    assert bound.default_config()["block_sizes"] == TILES[kernel]
