"""Kernels of users that no rule was fitted to: written from the guide alone, then timed as found."""

from __future__ import annotations

from . import (
    attention,
    axes,
    cameras,
    contractions,
    convolutions,
    convolved,
    decoding,
    encodings,
    fields,
    filters,
    generation,
    geometry,
    gradients,
    graphics,
    graphs,
    images,
    layouts,
    mixers,
    mixtures,
    objectives,
    physics,
    pictures,
    pipelines,
    product_sums,
    products,
    quantized,
    ragged,
    records,
    rows,
    scans,
    scores,
    segments,
    sequences,
    series,
    serving,
    signals,
    simulations,
    solvers,
    sparse,
    statistics,
    structured,
    sums,
    synthesis,
    training,
    transforms,
    vision,
    windows,
)  # fmt: skip
from .cell import UserKernel

MODULES = (
    rows, statistics, sums, layouts, encodings, ragged, sparse, scans, series, images, windows, filters, geometry,
    physics, training, products, contractions, structured, product_sums, convolutions, mixtures, quantized, attention,
    scores, decoding, graphics, axes, pipelines, vision, graphs, signals, solvers, gradients, serving, generation,
    cameras, simulations, records, mixers, transforms, objectives, synthesis, pictures,
    convolved, segments, sequences, fields,
)  # fmt: skip
CELLS: dict[str, UserKernel] = {name: cell for module in MODULES for name, cell in module.CELLS.items()}
assert len(CELLS) == sum(len(module.CELLS) for module in MODULES), "two kernels have one name"
