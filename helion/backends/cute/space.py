"""The config keys of a matrix product: clusters, stages of its rings, columns of its sub-tiles, by matrix unit."""

from __future__ import annotations

from collections.abc import Iterator

from ..._compiler.ir.grammar import Program
from ..._shapes import next_power_of_2
from ...autotuner.space.fields import Field, Scalar
from ...autotuner.space.own import OwnKeys
from ...autotuner.space.survey import Survey
from ...fields import BooleanFragment, EnumFragment
from ...hardware import Target
from ...settings import Settings
from .bounds import column_step, held_by_cluster, least_rows, lies_in_memory, row_clusters, tile_bounds
from .limits import COLUMN_STEP, LEAST_COLUMNS
from .lower.kernel import known_product
from .plan.build import MAX_CLUSTER, MAX_RESIDUAL_STAGES, MAX_SPLITS, MAX_STAGES, unit_of
from .plan.records import WGMMA_ROWS, GemmProblem, Unit
from .settle import TILE_COLUMNS, Asked, Settling, key
from .subtiles import ODD_STORE_STAGES, STORE_STAGES

#: Options under any name that begins so; there are none.
VERBATIM_PREFIX = "_cute_config_"

_ROLES = "the roles of a product's kernel have the warps they need"
_RINGS = "the stages of its rings are {unit}_ab_stages, {unit}_c_stages and the like"
_COPY_ENGINE = "the copy engine moves all tiles"
#: Keys that exist elsewhere, and why they are refused here.
_ELSEWHERE = {
    "num_warps": _ROLES,
    "maxnreg": _ROLES,
    "occupancy": _ROLES,
    "num_stages": _RINGS,
    "range_num_stages": _RINGS,
    "pid_type": "its programs are persistent clusters",
    "num_sm_multiplier": "its programs are persistent clusters",
    "num_ctas": "clusters are {unit}_cluster_m and {unit}_cluster_n",
    "indexing": _COPY_ENGINE,
    "atomic_indexing": _COPY_ENGINE,
    "load_eviction_policies": _COPY_ENGINE,
    "load_cache_modifiers": _COPY_ENGINE,
    "store_cache_modifiers": _COPY_ENGINE,
    "range_unroll_factors": "its loops are written out by role",
    "range_warp_specializes": "its warps are specialized whatever the config says",
    "range_multi_buffers": _RINGS,
    "range_flattens": "its loops are written out by role",
    "static_ranges": "its loops are written out by role",
    "waves_per_eu": "it is an option of AMD GPUs",
    "matrix_instr_nonkdim": "it is an option of AMD GPUs",
    "xcd_remap": "it is an option of AMD GPUs",
    "advanced_controls_file": "the DSL has no such option",
}


#: Config keys of a product without the unit's name in front, and their meaning.
DOCS: dict[str, str] = {
    "cluster_m": "CTAs of a cluster along M: they load each tile of B once for all.",
    "cluster_n": "CTAs of a cluster along N: they load each tile of A once for all.",
    "ab_stages": "Tiles of A and B in shared memory at once; None is as many as fit.",
    "c_stages": "Sub-tiles of the result in shared memory at once, on their way to memory.",
    "epilogue_columns": "Columns of a sub-tile of the result.",
    "acc_stages": "Tiles of sums in tensor memory at once, so that one is stored while the next is computed; None is as many as fit.",
    "pingpong": "Whether two groups of warps take turns: one multiplies while the other stores.",
    "k_splits": "Parts of K, each of which a CTA of a cluster sums up.",
    "grid_splits": "Clusters that each sum up a part of the K of the same tiles; the last one adds their sums, in the order of K.",
    "ctas_per_sm": "CTAs that share an SM where whole rows are reduced: one stores while the other multiplies.",
    "rows_in": "Where rows lie that are reduced: `cluster`, the registers of CTAs that exchange what they find, or `memory`, from which a second kernel finishes them.",
    "tile_columns": "Columns of a tile where rows lie in memory.",
    "residual_stages": "Sub-tiles of tensors of the result's shape, which the epilogue reads, that are loaded ahead.",
}  # fmt: skip
#: Clusters that share tiles.
GRID_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
#: Parts of K, with those between powers of two that fill a GPU better.
SPLITS = (1, 2, 3, 4, 6, 8, 12, MAX_SPLITS)


def own_keys(seen: Survey, program: Program, target: Target, settings: Settings) -> OwnKeys:
    """The keys of a product, the bounds of its tiles, and the rules that settle what goes together."""
    product, unit = known_product(program), unit_of(target)
    settling = Settling(program.host.name, product, target)
    sizes = dict(zip(product.blocks, tile_bounds(product.problem, target), strict=True))
    step, initial = column_step(product.problem), dict[int, int]()
    if product.batch_block is not None:
        sizes[product.batch_block] = (1, 1)
    if product.whole_rows:
        del sizes[product.blocks[1]]
        sizes |= dict.fromkeys(product.undecided, (LEAST_COLUMNS, LEAST_COLUMNS))
        sizes |= dict.fromkeys(product.one_tile, (next_power_of_2(product.problem.n),) * 2)
        rows = product.blocks[0]
        held = held_by_cluster(product.problem, target)
        first = least_rows(product.problem, row_clusters(product.problem, target)[0]) if held else WGMMA_ROWS
        fewest = WGMMA_ROWS if lies_in_memory(product.problem) else first
        sizes[rows], initial[rows] = (fewest, max(first, sizes[rows][1])), first
    return OwnKeys(
        fields=tuple(_fields(product, unit, target)),
        absent={**_absent(product.problem, unit), **{name: why.format(unit=unit) for name, why in _ELSEWHERE.items()}},
        verbatim=VERBATIM_PREFIX,
        rules=settling.rules(),
        sizes=sizes,
        initial=initial,
        multiples={} if step is None or product.whole_rows else {product.blocks[1]: step},
        holds_values=False,
        planned=True,
    )


def _fields(product: Asked, unit: Unit, target: Target) -> list[Field]:
    problem = product.problem
    stages = EnumFragment((None, *range(2, MAX_STAGES + 1)))
    fields: list[Field] = [
        _clusters_field("cluster_m", target),
        _columns_field(product, target) if product.whole_rows else _clusters_field("cluster_n", target),
        Scalar(key=key("ab_stages", target), fragment=stages, initial=None),
        _stores_field(product, target),
        Scalar(key=key("epilogue_columns", target), fragment=EnumFragment((8, 16, 32, 64)), initial=32),
    ]
    if problem.epilogue.reduces_rows:
        fields += _memory_fields(product, target)
    fields.append(Scalar(key=key("grid_splits", target), fragment=EnumFragment(GRID_SPLITS), initial=1))
    if unit == "tcgen05":
        sums = EnumFragment((None, 1, 2, 4))
        fields.append(Scalar(key=key("acc_stages", target), fragment=sums, initial=None))
    else:
        if problem.epilogue.reduces_rows:
            fields.append(Scalar(key=key("ctas_per_sm", target), fragment=EnumFragment((1, 2)), initial=1))
        fields.append(Scalar(key=key("pingpong", target), fragment=BooleanFragment(), initial=False))
        fields.append(Scalar(key=key("k_splits", target), fragment=EnumFragment(SPLITS), initial=1))
    if problem.epilogue.of_kind("exact"):
        ahead = EnumFragment(tuple(range(2, MAX_RESIDUAL_STAGES + 1)))
        fields.append(Scalar(key=key("residual_stages", target), fragment=ahead, initial=2))
    return fields


def _stores_field(product: Asked, target: Target) -> Field:
    """Odd numbers of buffers are for odd numbers of sub-tiles, which tiles have that are a multiple of 16 columns only."""
    odd = ODD_STORE_STAGES if not product.whole_rows and column_step(product.problem) == COLUMN_STEP else ()
    fragment = EnumFragment((*STORE_STAGES, *odd))
    return Scalar(key=key("c_stages", target), fragment=fragment, initial=STORE_STAGES[0])


def _clusters_field(name: str, target: Target) -> Field:
    clusters = EnumFragment(tuple(1 << bit for bit in range(MAX_CLUSTER.bit_length())))
    return Scalar(key=key(name, target), fragment=clusters, initial=1, searched=EnumFragment((1, 2, 4)))


def _columns_field(product: Asked, target: Target) -> Field:
    """CTAs that share the columns of whole rows: as many as there have to be, and more; 1 where rows lie in memory."""
    problem = product.problem
    known = row_clusters(problem, target) if held_by_cluster(problem, target) else (1,)
    legal = {1, *known} if problem.epilogue.reduces_rows else known
    return Scalar(key=key("cluster_n", target), fragment=EnumFragment(tuple(sorted(legal))), initial=known[0])


def _memory_fields(product: Asked, target: Target) -> Iterator[Field]:
    """Where rows lie, and the tiles of those in memory."""
    held, stored = held_by_cluster(product.problem, target), lies_in_memory(product.problem)
    places = (*(["cluster"] if held or not stored else []), *(["memory"] if stored else []))
    yield Scalar(key=key("rows_in", target), fragment=EnumFragment(places), initial=places[0])
    most = tile_bounds(product.problem, target)[1][1]
    columns = tuple(each for each in TILE_COLUMNS if each <= most)
    yield Scalar(key=key("tile_columns", target), fragment=EnumFragment(columns), initial=columns[-1])


def _absent(problem: GemmProblem, unit: Unit) -> dict[str, str]:
    """The keys of the other matrix unit, and what only some products have."""
    other = "wgmma" if unit == "tcgen05" else "tcgen05"
    names = ["cluster_m", "cluster_n", "ab_stages", "c_stages", "epilogue_columns", "grid_splits", "residual_stages"]
    names += ["rows_in", "tile_columns"]
    absent = {f"{other}_{name}": f"the matrix unit is {unit}, and the key {unit}_{name}" for name in names}
    if not problem.epilogue.of_kind("exact"):
        absent[f"{unit}_residual_stages"] = "the epilogue reads no tensor of the output's shape"
    if not problem.epilogue.reduces_rows:
        absent |= {f"{unit}_{name}": "rows are reduced by nothing" for name in ("rows_in", "tile_columns")}
        absent["wgmma_ctas_per_sm"] = "two CTAs share an SM where whole rows are reduced"
    if unit == "wgmma":
        return {**absent, "tcgen05_acc_stages": "sums of wgmma stay in registers"}
    why = "is for wgmma, whose sums are in registers"
    others = {"pingpong": "ping-pong", "k_splits": "splitting K", "ctas_per_sm": "sharing an SM"}
    return {**absent, **{f"wgmma_{name}": f"{what} {why}" for name, what in others.items()}}
