"""Functions that the text of a row kernel calls: accesses of granules, conversions, barriers and messages.

They are plain Python that the DSL runs while it traces the kernel. Inline PTX of several instructions reads all of its
inputs before it writes an output, because a register may hold both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PTX = """
def ptx(code, outs, ins):
    return cute.arch.inline_ptx(code, write_only_types=list(outs) or None, read_only_args=list(ins) or None)
"""
_FLAG = """
def flag(condition):
    return cutlass.select_(condition, Int32(1), Int32(0))
"""
_LOAD_SHARED = """
def load_shared(address, offset, size):
    count = min(size, 16) // 4
    names = ", ".join(f"{{$w{i}}}" for i in range(count))
    place = names if count == 1 else f"{{ {names} }}"
    kind = {1: "b32", 2: "v2.b32", 4: "v4.b32"}[count]
    found = []
    for at in range(offset, offset + size, 16):
        got = ptx(f"ld.shared.{kind} {place}, [{{$r0}}+{at}];", [Int32] * count, [address])
        found += [got] if count == 1 else list(got)
    return found
"""
_LOAD_PLANE = """
def load_plane(address, offset, size):
    kind = {1: "u8", 2: "u16", 4: "u32"}[size]
    return ptx(f"ld.shared.{kind} {{$w0}}, [{{$r0}}+{offset}];", [Int32], [address])
"""
_LOAD_GLOBAL = """
def load_global(address, size, inside):
    kind, wide = {1: ("s8", 32), 2: ("u16", 32), 4: ("b32", 32), 8: ("b64", 64)}[size]
    code = f"setp.ne.b32 p, {{$r1}}, 0; mov.b{wide} t, 0; @p ld.global.{kind} t, [{{$r0}}]; mov.b{wide} {{$w0}}, t;"
    whole = f"{{ .reg .pred p; .reg .b{wide} t; {code} }}"
    return ptx(whole, [Int64 if size == 8 else Int32], [address, flag(inside)])
"""
_STORE_SHARED = """
def store_shared(address, word, size):
    kind = {1: "u8", 2: "u16", 4: "u32"}[size]
    ptx(f"st.shared.{kind} [{{$r0}}], {{$r1}};", (), [address, word])
"""
_STORE_WORDS = """
def store_words(address, offset, words, inside):
    for at in range(0, len(words), 4):
        part = words[at : at + 4]
        names = ", ".join(f"{{$r{1 + i}}}" for i in range(len(part)))
        place = names if len(part) == 1 else f"{{ {names} }}"
        kind = {1: "b32", 2: "v2.b32", 4: "v4.b32"}[len(part)]
        store = f"st.global.{kind} [{{$r0}}+{offset + 4 * at}], {place};"
        if inside is None:
            ptx(store, (), [address, *part])
        else:
            condition = f"setp.ne.b32 p, {{$r{1 + len(part)}}}, 0;"
            ptx(f"{{ .reg .pred p; {condition} @p {store} }}", (), [address, *part, flag(inside)])
"""
_STORE_ELEMENT = """
def store_element(address, offset, word, shift, size, inside):
    if size == 8:
        body = f"setp.ne.b32 p, {{$r2}}, 0; @p st.global.b64 [{{$r0}}+{offset}], {{$r1}};"
        ptx(f"{{ .reg .pred p; {body} }}", (), [address, word, flag(inside)])
        return
    kind = {1: "u8", 2: "u16", 4: "u32"}[size]
    body = f"setp.ne.b32 p, {{$r2}}, 0; shr.u32 w, {{$r1}}, {shift}; @p st.global.{kind} [{{$r0}}+{offset}], w;"
    ptx(f"{{ .reg .pred p; .reg .b32 w; {body} }}", (), [address, word, flag(inside)])
"""
_PERMUTED = """
def permuted(low, high, selector):
    return ptx("prmt.b32 {$w0}, {$r0}, {$r1}, {$r2};", [Int32], [low, high, selector])
"""
_BULK_LOAD = """
def bulk_load(destination, source, size, barrier):
    code = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{$r0}], [{$r1}], {$r2}, [{$r3}];"
    ptx(code, (), [destination, source, size, barrier])
"""
_BULK_LOAD_WHERE = """
def bulk_load_where(destination, source, size, barrier, inside):
    copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{$r0}], [{$r1}], {$r2}, [{$r3}];"
    code = f"{{ .reg .pred p; setp.ne.b32 p, {{$r4}}, 0; @p {copy} }}"
    ptx(code, (), [destination, source, size, barrier, flag(inside)])
"""
_SEND = """
def send(place, words, barrier, peer, inside):
    mapped = "mapa.shared::cluster.u32 a, {$r0}, {$r2}; mapa.shared::cluster.u32 b, {$r1}, {$r2};"
    for at in range(0, len(words), 4):
        part = words[at : at + 4]
        names = ", ".join(f"{{$r{4 + i}}}" for i in range(len(part)))
        given = names if len(part) == 1 else f"{{ {names} }}"
        kind = {1: "b32", 2: "v2.b32", 4: "v4.b32"}[len(part)]
        store = f"@p st.async.shared::cluster.mbarrier::complete_tx::bytes.{kind} [a+{4 * at}], {given}, [b];"
        code = f"{{ .reg .pred p; .reg .b32 a, b; setp.ne.b32 p, {{$r3}}, 0; {mapped} {store} }}"
        ptx(code, (), [place, barrier, peer, flag(inside), *part])
"""
_PUT = """
def put(place, words, inside):
    for at in range(0, len(words), 4):
        part = words[at : at + 4]
        names = ", ".join(f"{{$r{2 + i}}}" for i in range(len(part)))
        given = names if len(part) == 1 else f"{{ {names} }}"
        kind = {1: "b32", 2: "v2.b32", 4: "v4.b32"}[len(part)]
        store = f"@p st.shared.{kind} [{{$r0}}+{4 * at}], {given};"
        ptx(f"{{ .reg .pred p; setp.ne.b32 p, {{$r1}}, 0; {store} }}", (), [place, flag(inside), *part])
"""
_EXPECT = """
def expect(barrier, size, inside):
    body = "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [{$r0}], {$r2};"
    ptx(f"{{ .reg .pred p; setp.ne.b32 p, {{$r1}}, 0; {body} }}", (), [barrier, flag(inside), Int32(size)])
"""
_ARRIVE = """
def arrive(barrier, inside):
    # Bulk copies write the stage through another proxy. The fence completes the warp's reads before that.
    cute.arch.fence_view_async_shared()
    cute.arch.sync_warp()
    body = "@p mbarrier.arrive.shared::cta.b64 _, [{$r0}];"
    ptx(f"{{ .reg .pred p; setp.ne.b32 p, {{$r1}}, 0; {body} }}", (), [barrier, flag(inside)])
"""
_COUNT_IN = """
def count_in(barrier, inside):
    body = "@p mbarrier.arrive.shared::cta.b64 _, [{$r0}];"
    ptx(f"{{ .reg .pred p; setp.ne.b32 p, {{$r1}}, 0; {body} }}", (), [barrier, flag(inside)])
"""
_AWAIT_CLUSTER = """
def await_cluster(barrier, phase):
    attempt = "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [{$r0}], {$r1};"
    ptx(f"{{ .reg .pred p; again: {attempt} @!p bra again; }}", (), [barrier, phase])
"""
_UNPACK_BFLOAT16 = """
def unpack_bfloat16(words):
    found = []
    for word in words:
        found += [(word << 16).bitcast(Float32), (word & Int32(-65536)).bitcast(Float32)]
    return found
"""
_UNPACK_FLOAT16 = """
def unpack_float16(words):
    code = "{ .reg .b16 a, b; mov.b32 { a, b }, {$r0}; cvt.f32.f16 {$w0}, a; cvt.f32.f16 {$w1}, b; }"
    found = []
    for word in words:
        found += list(ptx(code, [Float32, Float32], [word]))
    return found
"""
_UNPACK_FLOAT32 = """
def unpack_float32(words):
    return [word.bitcast(Float32) for word in words]
"""
_UNPACK_INT8 = """
def unpack_int8(words):
    return [((word << (24 - 8 * i)) >> 24).to(Float32) for word in words for i in range(4)]
"""
_UNPACK_UINT8 = """
def unpack_uint8(words):
    return [((word >> (8 * i)) & 255).to(Float32) for word in words for i in range(4)]
"""
_UNPACK_FLOAT8 = """
def unpack_float8_e4m3fn(words):
    halves = "mov.b32 { a, b }, {$r0}; cvt.rn.f16x2.e4m3x2 {$w0}, a; cvt.rn.f16x2.e4m3x2 {$w1}, b;"
    code = f"{{ .reg .b16 a, b; {halves} }}"
    found = []
    for word in words:
        found += unpack_float16(list(ptx(code, [Int32, Int32], [word])))
    return found
"""
_PACK_BFLOAT16 = """
def pack_bfloat16(values):
    code = "cvt.rn.bf16x2.f32 {$w0}, {$r0}, {$r1};"
    return [ptx(code, [Int32], [values[i + 1], values[i]]) for i in range(0, len(values), 2)]
"""
_PACK_FLOAT16 = """
def pack_float16(values):
    code = "cvt.rn.f16x2.f32 {$w0}, {$r0}, {$r1};"
    return [ptx(code, [Int32], [values[i + 1], values[i]]) for i in range(0, len(values), 2)]
"""
_PACK_FLOAT32 = """
def pack_float32(values):
    return [value.bitcast(Int32) for value in values]
"""
_PACK_FLOAT8 = """
def pack_float8_e4m3fn(values):
    pairs = "cvt.rn.satfinite.e4m3x2.f32 a, {$r1}, {$r0}; cvt.rn.satfinite.e4m3x2.f32 b, {$r3}, {$r2};"
    code = f"{{ .reg .b16 a, b; {pairs} mov.b32 {{$w0}}, {{ a, b }}; }}"
    return [ptx(code, [Int32], values[i : i + 4]) for i in range(0, len(values), 4)]
"""
_ROUNDED_FLOAT8 = """
def rounded_float8(value):
    return unpack_float8_e4m3fn(pack_float8_e4m3fn([value] * 4))[0]
"""
_PACK_INT8 = """
def pack_int8(values):
    whole = [value.to(Int32) & 255 for value in values]
    parts = range(0, len(values), 4)
    return [whole[i] | (whole[i + 1] << 8) | (whole[i + 2] << 16) | (whole[i + 3] << 24) for i in parts]
"""
_PACK_UINT8 = """
def pack_uint8(values):
    return pack_int8(values)
"""
_JOINED = """
def joined(values, join):
    while len(values) > 1:
        values = [join(*values[i : i + 2]) if i + 1 < len(values) else values[i] for i in range(0, len(values), 2)]
    return values[0]
"""
_BUTTERFLY = """
def butterfly(value, width, join):
    offset = 1
    while offset < width:
        value = join(value, cute.arch.shuffle_sync_bfly(value, offset=offset))
        offset *= 2
    return value
"""
_BUTTERFLIES = """
def butterflies(values, width, lane):
    # While there are several sums, each half of the lanes goes on with half of them.
    values, homes, offset = list(values), [[(i, 0)] for i in range(len(values))], 1
    count = len(values)
    while offset < width:
        upper, made, places = (lane & offset) != 0, [], []
        for at in range(0, len(values), 2):
            given, home = values[at], homes[at]
            if at + 1 < len(values):
                given = Float32(cutlass.select_(upper, values[at], values[at + 1]))
                kept = Float32(cutlass.select_(upper, values[at + 1], values[at]))
                home = home + [(i, source + offset) for i, source in homes[at + 1]]
            else:
                kept = given
            made.append(kept + cute.arch.shuffle_sync_bfly(given, offset=offset))
            places.append(home)
        values, homes, offset = made, places, offset * 2
    found = [None] * count
    for value, home in zip(values, homes):
        for i, source in home:
            found[i] = cute.arch.shuffle_sync(value, source) if count > 1 else value
    return found
"""
_RENEWED = """
def renewed(value, lane):
    # The same value, which no compiler knows: it does not keep what an earlier pass has computed from it.
    return cute.arch.shuffle_sync(value, lane)
"""
_MASKED = """
def masked(value, inside, i, identity):
    if inside is None:
        return value
    return Float32(cutlass.select_(inside[i], value, Float32(identity)))
"""
_CENTRE = """
def centre(candidates, inside, first):
    # An element of the row in this thread, else one in the first lane of its warp that has some, else 0.
    found = candidates[0]
    if inside is not None:
        last = cutlass.select_(inside[-1], candidates[-1], Float32(0.0))
        found = Float32(cutlass.select_(inside[0], found, last))
        there = cute.arch.shuffle_sync(found, first)
        found = Float32(cutlass.select_(inside[0] | inside[-1], found, there))
    return Float32(cutlass.select_(cute.math.abs(found) < float("inf"), found, Float32(0.0)))
"""
_CENTRE_OF_FEW = """
def centre_of_few(candidates, inside, first):
    # A row of so few elements may have neither end of a granule.
    found, there = Float32(0.0), cutlass.Boolean(False)
    for value, each in zip(candidates, inside):
        found = Float32(cutlass.select_(each, value, found))
        there = there | each
    return centre([found], [there], first)
"""
_MOVED = """
def moved(address, granule, step):
    if isinstance(granule, int):
        return address, granule * step
    return address + Int64(granule) * step, 0
"""
_SHIFTED = """
def shifted(address, granule, step):
    if isinstance(granule, int):
        return address, granule * step
    return address + granule * step, 0
"""
_RECIPROCAL = """
def reciprocal(divisor):
    size = cute.math.abs(divisor)
    small = cutlass.select_(size < 5.421010862427522e-20, Float32(18446744073709551616.0), Float32(1.0))
    scale = Float32(cutlass.select_(size > 18446744073709551616.0, Float32(5.421010862427522e-20), small))
    product = divisor * scale
    infinity = Float32(float("inf"))
    scaled = Float32(cutlass.select_(cute.math.abs(product) < infinity, product, Float32(0.0)))
    return scale, scaled, 1.0 / product
"""
_DIVIDED = """
def divided(value, known):
    scale, scaled, inverse = known
    value = value * scale
    found = value * inverse
    nearer = cute.math.fma(cute.math.fma(-found, scaled, value), inverse, found)
    return Float32(cutlass.select_(cute.math.abs(found) < Float32(float("inf")), nearer, found))
"""
_ROUNDED_DIFFERENCE = """
def rounded_difference(x, y):
    return ptx("sub.rn.f32 {$w0}, {$r0}, {$r1};", [Float32], [x, y])
"""
_DIVIDED_SHORT = """
def divided_short(value, known):
    scale, _, inverse = known
    return value * scale * inverse
"""
_OVER = """
def over(value, divisor):
    inverse, divisor = Float32(1.0 / divisor), Float32(divisor)
    found = value * inverse
    nearer = cute.math.fma(cute.math.fma(-found, divisor, value), inverse, found)
    return Float32(cutlass.select_(cute.math.abs(found) < Float32(float("inf")), nearer, found))
"""
_FIRST_MATCH = """
def first_match(values, extreme, inside):
    # The extreme is NaN where any value is, so that a value that is NaN matches.
    found = Float32(float("inf"))
    for i in reversed(range(len(values))):
        matches = (values[i] == extreme) | (values[i] != values[i])
        matches = matches if inside is None else matches & inside[i]
        found = Float32(cutlass.select_(matches, Float32(float(i)), found))
    return found
"""
_ROW_MAXIMUM_BFLOAT16 = """
def row_maximum_bfloat16(x, y):
    return ptx("max.NaN.bf16x2 {$w0}, {$r0}, {$r1};", [Int32], [x, y])
"""
_ROW_MINIMUM_BFLOAT16 = """
def row_minimum_bfloat16(x, y):
    return ptx("min.NaN.bf16x2 {$w0}, {$r0}, {$r1};", [Int32], [x, y])
"""
_ROW_MAXIMUM_FLOAT16 = """
def row_maximum_float16(x, y):
    return ptx("max.NaN.f16x2 {$w0}, {$r0}, {$r1};", [Int32], [x, y])
"""
_ROW_MINIMUM_FLOAT16 = """
def row_minimum_float16(x, y):
    return ptx("min.NaN.f16x2 {$w0}, {$r0}, {$r1};", [Int32], [x, y])
"""
_POWER_BASE = """
def power_base(top):
    slope = Float32(cutlass.select_(cute.math.abs(top) < Float32(65536.0), Float32(1.4426950408889634), Float32(1.0)))
    base = top * slope
    rest = cute.math.fma(top, slope, -base)
    return slope, -base, cute.math.exp2(-rest, fastmath=True)
"""
_SCALED_POWER_BASE = """
def scaled_power_base(top, factor, element):
    # The product of the element with the factor is the maximum. That with a power of two is exact.
    infinity = Float32(float("inf"))
    element = Float32(cutlass.select_(cute.math.abs(element) < infinity, element, Float32(0.0)))
    power = (factor.bitcast(Int32) & Int32(-8388608)).bitcast(Float32)
    small = cute.math.abs(top) < Float32(16777216.0)
    slope = Float32(cutlass.select_(small, factor * Float32(1.4426950408889634), power))
    base = element * slope
    base = Float32(cutlass.select_(cute.math.abs(base) < infinity, base, Float32(0.0)))
    rest = cute.math.fma(element, slope, -base)
    rest = Float32(cutlass.select_(cute.math.abs(rest) < infinity, rest, Float32(0.0)))
    return slope, -base, cute.math.exp2(-rest, fastmath=True)
"""
_LOG2_APPROXIMATE = """
def log2_approximate(x):
    return ptx("lg2.approx.f32 {$w0}, {$r0};", [Float32], [x])
"""
_SUMMED_LOG = """
def summed_log(x):
    return log2_approximate(x) * 0.6931471805599453
"""
_SHORT_LOG = """
def short_log(x):
    return log_near_one(x, x - 1.0)
"""
_SHORT_LOG1P = """
def short_log1p(t):
    return log_near_one(t + 1.0, t)
"""
_LOG_NEAR_ONE = """
def log_near_one(x, t):
    series = Float32(0.2)
    for coefficient in (-0.25, 1 / 3, -0.5, 1.0):
        series = cute.math.fma(series, t, Float32(coefficient))
    far = log2_approximate(x) * 0.6931471805599453
    return Float32(cutlass.select_(cute.math.abs(t) < 0.0625, t * series, far))
"""

#: The functions by name.
FUNCTIONS: Mapping[str, str] = {
    re.search(r"def (\w+)", text)[1]: text  # type: ignore[index]
    for text in (
        *(
            _PTX,
            _FLAG,
            _LOAD_SHARED,
            _LOAD_PLANE,
            _LOAD_GLOBAL,
            _STORE_SHARED,
            _STORE_WORDS,
            _STORE_ELEMENT,
            _PERMUTED,
        ),
        *(
            _BULK_LOAD,
            _BULK_LOAD_WHERE,
            _SEND,
            _PUT,
            _EXPECT,
            _ARRIVE,
            _COUNT_IN,
            _AWAIT_CLUSTER,
            _UNPACK_BFLOAT16,
            _UNPACK_FLOAT16,
        ),
        *(_UNPACK_FLOAT32, _UNPACK_INT8, _UNPACK_UINT8, _UNPACK_FLOAT8),
        *(_PACK_BFLOAT16, _PACK_FLOAT16, _PACK_FLOAT32, _PACK_FLOAT8, _ROUNDED_FLOAT8, _PACK_INT8, _PACK_UINT8),
        *(
            _JOINED,
            _BUTTERFLY,
            _BUTTERFLIES,
            _RENEWED,
            _MASKED,
            _CENTRE,
            _CENTRE_OF_FEW,
            _MOVED,
            _SHIFTED,
            _RECIPROCAL,
            _DIVIDED,
            _DIVIDED_SHORT,
            _ROUNDED_DIFFERENCE,
            _OVER,
        ),
        _FIRST_MATCH,
        *(_ROW_MAXIMUM_BFLOAT16, _ROW_MINIMUM_BFLOAT16, _ROW_MAXIMUM_FLOAT16, _ROW_MINIMUM_FLOAT16),
        *(_POWER_BASE, _SCALED_POWER_BASE, _LOG2_APPROXIMATE, _LOG_NEAR_ONE, _SUMMED_LOG, _SHORT_LOG, _SHORT_LOG1P),
    )
}


def needed_by(text: str) -> list[str]:
    """Return the lines of the functions that `text` calls, and those that they call, in the order of the table."""
    wanted: set[str] = set()
    left = [text]
    while left:
        called = {name for name in re.findall(r"\b(\w+)\b", left.pop()) if name in FUNCTIONS} - wanted
        wanted |= called
        left += [FUNCTIONS[name] for name in called]
    return [line for name in FUNCTIONS if name in wanted for line in ("", *FUNCTIONS[name].rstrip("\n").split("\n"))]
