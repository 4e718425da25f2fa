"""Chains of elementwise operations over one to three dimensions: broadcasts, conditions, casts, layouts."""

from __future__ import annotations

from ..cases import Case, Draft, Draw, Family, case_of, precision_of
from ..chains import ELEMENTWISE, chain
from ..inputs import Input

_MASKS = ("none", "none", "index", "bool", "value")


def _draw(draw: Draw) -> Draft:
    rank = draw.rng.choice((1, 2, 2, 3))
    sizes = {
        f"d{axis}": draw.size() if axis == rank - 1 or rank < 3 else draw.rng.choice((1, 2, 5, 16))
        for axis in range(rank)
    }
    options = {
        "compute": draw.one("float32", "native"),
        "out": draw.float(),
        "mask": draw.one(*_MASKS),
        "outputs": draw.one("1", "1", "2"),
        "order": draw.one("forward", "forward", "swapped"),
    }
    for number in range(draw.rng.randint(1, 3)):
        options[f"dtype{number}"] = draw.one(
            "float32", "float16", "bfloat16", "int32", "int64", "bool", "float8_e4m3fn"
        )
        options[f"layout{number}"] = draw.layout()
        options[f"over{number}"] = "all" if number == 0 else draw.one("all", "all", "last", "first")
    return draw.draft(sizes, options, draw.steps(ELEMENTWISE, 1, 7))


def _load(name: str, over: str, rank: int) -> tuple[str, str]:
    """Return the text that reads an input, in the kernel and in the reference."""
    tiles = [f"t{axis}" for axis in range(rank)]
    if rank == 1 or over == "all":
        return f"{name}[{', '.join(tiles)}]", name
    if over == "last":
        return f"{name}[{tiles[-1]}]", name
    after = ", ".join([":", *["None"] * (rank - 1)])
    return f"{name}[{tiles[0]}][{after}]", f"{name}[{after}]"


def _condition(mask: str, rank: int, first: Input) -> tuple[str, str]:
    """Return a condition on exact values as text, for the kernel and for the reference."""
    last = f"t{rank - 1}.index % 3 != 1"
    if mask == "index":
        return f"({last})", "torch.arange(x0.shape[-1]) % 3 != 1"
    if mask == "bool":
        return f"chosen[t{rank - 1}]", "chosen"
    loaded, plain = _load(first.name, "all", rank)
    return (
        f"({loaded}.to(torch.float32) > 0.5)" if first.dtype != "bool" else loaded,
        f"({plain} > 0.5)" if first.dtype != "bool" else plain,
    )


def _render(draft: Draft) -> Case:
    shape, o = tuple(draft.sizes.values()), draft.options
    rank = len(shape)
    inputs, kernel, reference, dtypes = [], [], [], []
    for number in range(sum(key.startswith("dtype") for key in o)):
        dtype, over = o[f"dtype{number}"], o[f"over{number}"]
        of = shape if over == "all" or rank == 1 else shape[-1:] if over == "last" else shape[:1]
        data = {"int32": "ints", "int64": "ints", "bool": "mask"}.get(dtype, "normal")
        inputs.append(Input(name=f"x{number}", shape=of, dtype=dtype, layout=o[f"layout{number}"], data=data))
        loaded, plain = _load(f"x{number}", over, rank)
        native = o["compute"] == "native" and dtype in ("float32", "float16", "bfloat16")
        scale = " * 0.0625" if data == "ints" else ""
        kernel.append(f"a{number} = {loaded if native else f'{loaded}.to(torch.float32)'}{scale}")
        reference.append(f"a{number} = {plain}.to(torch.float64){scale}")
        dtypes.append(dtype if native else "float32")
    lines, last = chain(draft.steps, [f"a{number}" for number in range(len(inputs))])
    condition = _condition(o["mask"], rank, inputs[0])
    if o["mask"] == "bool":
        inputs.append(Input(name="chosen", shape=shape[-1:], dtype="bool", data="mask"))
    if o["mask"] != "none":
        lines = [*lines, "w = torch.where(CONDITION, LAST, a0 * 0.25)".replace("LAST", last)]
        last = "w"
    tiles = [f"t{axis}" for axis in range(rank)]
    loop = tiles if o["order"] == "forward" else tiles[::-1]
    extents = ", ".join(f"x0.size({tile[1:]})" for tile in loop)
    extents = f"[{extents}]" if rank > 1 else extents
    outs = [f"out{n}" for n in range(int(o["outputs"]))]
    makes = [
        f"{out} = torch.empty(x0.shape, dtype=torch.{dtype}, device=x0.device)"
        for out, dtype in zip(outs, (o["out"], "float32"), strict=False)
    ]
    stores = [
        f"{out}[{', '.join(tiles)}] = ({last}{' * 0.5' if out == 'out1' else ''}).to({out}.dtype)" for out in outs
    ]
    body = [*kernel, *(line.replace("CONDITION", condition[0]) for line in lines), *stores]
    gives = ", ".join([last, f"{last} * 0.5"][: len(outs)])
    return case_of(
        draft,
        inputs,
        [
            *makes,
            f"for {', '.join(loop)} in hl.tile({extents}):",
            *(f"    {line}" for line in body),
            f"return {', '.join(outs)}",
        ],
        [
            *reference,
            "full = torch.zeros(x0.shape, dtype=torch.float64)",
            *(line.replace("CONDITION", condition[1]) for line in lines),
            f"return {', '.join(f'({each}) + full' for each in gives.split(', '))}",
        ],
        precision_of(*dtypes),
    )


FAMILY = Family(
    name="elements",
    draw=_draw,
    render=_render,
    simplest={"compute": "float32", "out": "float32", "mask": "none", "outputs": "1", "order": "forward", "layout": "contiguous", "dtype": "float32", "over": "all", "shapes": "static"},
    weight=2,
)  # fmt: skip
