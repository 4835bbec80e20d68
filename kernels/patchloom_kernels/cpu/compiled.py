"""Resize, normalise and patchify of one job, compiled: the two passes, the rows, the patches.

A pixel is a 4-byte word here (red, green, blue and a byte nobody reads). The horizontal pass makes four
neighbours of a row at once: a lane is a channel of a tap, so 16 lanes are four taps, and the four sums are
transposed on the way out. The vertical pass has its lanes along the row. Weights are padded with zeros to
whole groups of four taps, columns to whole groups of four. Finished rows gather in a window, from
which the values of one channel of one patch are written row by row.

Where the compiler does not find the vector code by itself, it is told: functions under `intrinsic` are
written in LLVM's own vector types, which exist on every processor. They take raw addresses, so all memory
is allocated by the caller, who also sees to it that every read and write stays inside.

What numba needs to be told: int32 at every operation, or it widens to int64, which has half the lanes;
unsigned indices, or it tests for negative ones. All compiled code stands in this one file, because
numba's cache watches only the file of a function, not those of the functions it calls.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import extending, njit, types
from numba.core import cgutils as untyped_cgutils

from patchloom_kernels.cpu.processor import INSTRUCTION_SETS

cgutils: Any = untyped_cgutils
intrinsic: Callable[..., Any] = extending.intrinsic

WINDOW = 64
"""Most canvas rows that are held before they are cut; a higher patch is cut in several pieces."""

ROWS = 8
"""Rows that the horizontal pass makes together; their weights are read once."""

TAPS = 4
COLUMNS = 4
LOAD = 16
"""Bytes of one read of the horizontal pass: up to four more than its taps have."""

EIGHT, SIXTEEN = 8, 16

BLOCK = 64
"""Bytes that the vertical pass makes together."""

PART = 11
"""Bits of the lower part of a weight that is no int16."""

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))


COLUMNS_FIRST, ROWS_FIRST, ROWS_ONLY = range(3)


class Axis(NamedTuple):
    """The seen part of one axis of the resized picture; source indices count from the first used."""

    first: Any  # int32 [seen], of columns padded to whole groups
    end: Any  # int32 [seen]
    weights: Any  # int32 [seen, taps], in units of 2 ** -shift
    # two int16 weights in each, in one part or in an upper and a lower one of PART bits
    pairs: Any  # int32: of columns [as first, groups of TAPS, parts, 2], of rows [seen, pairs, parts, 1]
    shift: int
    copy: bool


class Source(NamedTuple):
    """The used part of a source: pixel (y, x) is at byte `start + y * pitch + x * step` of `flat`."""

    flat: Any
    start: int
    pitch: int
    step: int
    rows: int
    columns: int


class Scratch(NamedTuple):
    """What the passes hand to one another, uint8 and flat; small enough to stay in the caches."""

    ring: Any  # the last rows out of the horizontal pass, of whole groups of columns
    ring_rows: int
    tall: Any  # ROWS rows out of the vertical pass, each with `reach` bytes
    tail: Any  # the same for source rows behind which there is no room to read
    reach: int  # bytes of a row that the horizontal pass may read
    rows: Any  # int64 [2 * pairs] of the vertical pass


# What a vector of pixels needs.


def _splat(element: ir.Type, lanes: int, value: float) -> ir.Constant:
    return ir.Constant(ir.VectorType(element, lanes), [value] * lanes)


def _shuffle(builder: Any, a: Any, b: Any, places: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(places)), places))


def _at(builder: Any, address: Any, kind: ir.Type) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _constant_load(builder: Any, pointer: Any, align: int) -> Any:
    """A load from memory that nothing here writes, so that it may leave a loop."""
    loaded = builder.load(pointer, align=align)
    loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    return loaded


def _pair_sums(builder: Any, levels: Any, weights: Any) -> Any:
    """Of int16 vectors the sums of neighbouring products, int32: one instruction of x86, told by name."""
    lanes = levels.type.count // 2
    kind = ir.VectorType(_I32, lanes)
    if lanes == 16 and "+avx512bw" in INSTRUCTION_SETS:
        return _call(builder, "llvm.x86.avx512.pmaddw.d.512", kind, [levels, weights])
    if lanes == 8 and "+avx2" in INSTRUCTION_SETS:
        return _call(builder, "llvm.x86.avx2.pmadd.wd", kind, [levels, weights])
    if lanes == 16 and "+avx2" in INSTRUCTION_SETS:
        low, high = (
            _pair_sums(builder, *(_shuffle(builder, v, v, half) for v in (levels, weights)))
            for half in (list(range(16)), list(range(16, 32)))
        )
        return _shuffle(builder, low, high, list(range(16)))
    even, odd = list(range(0, 2 * lanes, 2)), list(range(1, 2 * lanes, 2))
    products = []
    for places in (even, odd):
        x, w = (builder.sext(_shuffle(builder, v, v, places), kind) for v in (levels, weights))
        products.append(builder.mul(x, w))
    return builder.add(*products)


def _call(builder: Any, name: str, result: ir.Type, arguments: list[Any]) -> Any:
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _levels_of(builder: Any, total: Any, shift: Any) -> Any:
    """Sums of products as uint8: rounded, shifted and clamped."""
    lanes = total.type.count
    shifts = _same(builder, shift, lanes)
    half = builder.shl(_splat(_I32, lanes, 1), builder.sub(shifts, _splat(_I32, lanes, 1)))
    total = builder.ashr(builder.add(total, half), shifts)
    zero, full = _splat(_I32, lanes, 0), _splat(_I32, lanes, 255)
    total = builder.select(builder.icmp_signed("<", total, zero), zero, total)
    total = builder.select(builder.icmp_signed(">", total, full), full, total)
    return builder.trunc(total, ir.VectorType(_I8, lanes))


def _same(builder: Any, value: Any, lanes: int) -> Any:
    vector = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
    vector = builder.insert_element(vector, value, _I32(0))
    return _shuffle(builder, vector, vector, [0] * lanes)


def _columns_pass(step: int, parts: int) -> Any:
    """The horizontal pass of pixels `step` bytes apart, with weights of so many int16 parts."""
    # of 16 bytes for every pixel, a lane of 16 for its first and one for its last two taps, widened
    spread = []
    for lane in range(4):
        for byte in (0, 1, 2, min(step - 1, 3)):
            first = LOAD * lane + 2 * step * (lane % 2) + byte
            spread += [first, 64, first + step, 64]
    twice = [*range(16), *range(16), *range(16, 32), *range(16, 32)]
    fourfold = [pair for pair in range(4) for _ in range(4)]

    @intrinsic
    def four(context: Any, row: Any, first: Any, pairs: Any, groups: Any, shift: Any, out: Any) -> Any:
        # addresses: a source row, int32 [4], int32 [4, groups, parts, 2], and 16 bytes for the pixels
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            row, first, pairs, groups, shift, out = arguments
            bytes16, words16 = ir.VectorType(_I8, LOAD), ir.VectorType(_I32, LOAD)
            shorts32 = ir.VectorType(_I16, 2 * LOAD)
            firsts = _constant_load(builder, _at(builder, first, ir.VectorType(_I32, COLUMNS)), 4)
            starts = []
            for column in range(COLUMNS):
                source = builder.zext(builder.extract_element(firsts, _I32(column)), _I64)
                starts.append(builder.add(row, builder.mul(source, _I64(step))))
            sums = {
                (part, two): cgutils.alloca_once(builder, words16) for part in range(parts) for two in (0, 2)
            }
            for own in sums.values():
                builder.store(_splat(_I32, LOAD, 0), own)
            with cgutils.for_range(builder, groups) as loop:
                ahead = builder.mul(loop.index, _I64(TAPS * step))
                for two in (0, 2):
                    places = [builder.add(starts[two + i], ahead) for i in (0, 1)]
                    a, b = (builder.load(_at(builder, place, bytes16), align=1) for place in places)
                    both = _shuffle(builder, a, b, twice)
                    taps = builder.bitcast(_shuffle(builder, both, _splat(_I8, 64, 0), spread), shorts32)
                    for part in range(parts):
                        weights = []
                        for column in (two, two + 1):
                            index = builder.add(builder.mul(groups, _I64(column)), loop.index)
                            offset = builder.add(builder.mul(index, _I64(8 * parts)), _I64(8 * part))
                            place = _at(builder, builder.add(pairs, offset), ir.VectorType(_I32, 2))
                            weights.append(_constant_load(builder, place, 4))
                        weight = builder.bitcast(
                            _shuffle(builder, weights[0], weights[1], fourfold), shorts32
                        )
                        own = sums[part, two]
                        builder.store(builder.add(builder.load(own), _pair_sums(builder, taps, weight)), own)
            total = _splat(_I32, LOAD, 0)
            for part in range(parts):
                left, right = (builder.load(sums[part, two]) for two in (0, 2))
                even = [8 * pixel + i for pixel in range(4) for i in range(4)]
                own = builder.add(
                    _shuffle(builder, left, right, even),
                    _shuffle(builder, left, right, [i + 4 for i in even]),
                )
                total = builder.add(builder.shl(total, _splat(_I32, LOAD, PART)), own)
            builder.store(_levels_of(builder, total, shift), _at(builder, out, bytes16), align=1)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4, types.int32, types.int64), emit

    @njit(nogil=True)
    def run(rows: Any, count: int, horizontal: Axis, to: Any) -> None:
        """From the addresses `rows` to the words at address `to`."""
        columns, groups = horizontal.pairs.shape[:2]
        first, pairs = _address(horizontal.first), _address(horizontal.pairs)
        shift = np.int32(horizontal.shift)
        for x in range(0, columns, COLUMNS):
            for row in range(count):
                at = to + 4 * (row * columns + x)
                if groups == 1:
                    four(rows[row], first + 4 * x, pairs + 8 * parts * x, 1, shift, at)
                else:
                    four(rows[row], first + 4 * x, pairs + 8 * parts * x * groups, groups, shift, at)

    return run


def _rows_pass(parts: int) -> Any:
    """The vertical pass of one row, with weights of so many int16 parts."""
    # within every 16 bytes, as x86 does it: the lower or upper eight of two rows, or of one and of zeros
    lower = [16 * lane + byte + row for lane in range(4) for byte in range(8) for row in (0, BLOCK)]
    halves = [lower, [place + 8 for place in lower]]
    together = [16 * quarter + 4 * lane + i for lane in range(4) for quarter in range(4) for i in range(4)]

    @intrinsic
    def block(context: Any, rows: Any, pairs: Any, count: Any, shift: Any, x: Any, out: Any) -> Any:
        # addresses: int64 [count, 2] of rows, int32 [count, parts], and a row to write; `x` is an offset
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows, pairs, count, shift, x, out = arguments
            bytes64, words16 = ir.VectorType(_I8, BLOCK), ir.VectorType(_I32, LOAD)
            shorts32, zeros = ir.VectorType(_I16, 2 * LOAD), _splat(_I8, BLOCK, 0)
            sums = [[cgutils.alloca_once(builder, words16) for _ in range(parts)] for _ in range(4)]
            for own in (own for quarter in sums for own in quarter):
                builder.store(_splat(_I32, LOAD, 0), own)
            with cgutils.for_range(builder, count) as loop:
                loaded = []
                for row in (0, 1):
                    index = builder.add(builder.mul(loop.index, _I64(2)), _I64(row))
                    address = builder.load(builder.gep(_at(builder, rows, _I64), [index]))
                    loaded.append(builder.load(_at(builder, builder.add(address, x), bytes64), align=1))
                weights = []
                for part in range(parts):
                    index = builder.add(builder.mul(loop.index, _I64(parts)), _I64(part))
                    pair = builder.load(builder.gep(_at(builder, pairs, _I32), [index]))
                    weights.append(builder.bitcast(_same(builder, pair, LOAD), shorts32))
                for quarter, own in enumerate(sums):
                    both = _shuffle(builder, loaded[0], loaded[1], halves[quarter // 2])
                    levels = _shuffle(builder, both, zeros, halves[quarter % 2])
                    levels = builder.bitcast(levels, shorts32)
                    for weight, total in zip(weights, own, strict=True):
                        added = builder.add(builder.load(total), _pair_sums(builder, levels, weight))
                        builder.store(added, total)
            quarters = []
            for own in sums:
                total = builder.load(own[0])
                for part in own[1:]:
                    total = builder.add(builder.shl(total, _splat(_I32, LOAD, PART)), builder.load(part))
                quarters.append(_levels_of(builder, total, shift))
            upper, under = (_shuffle(builder, quarters[i], quarters[i + 1], list(range(32))) for i in (0, 2))
            levels = _shuffle(builder, upper, under, together)
            builder.store(levels, _at(builder, builder.add(out, x), bytes64), align=1)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 3, types.int32, *[types.int64] * 2), emit

    @njit(nogil=True)
    def run(rows: Any, pairs: Any, shift: Any, size: int, out: Any) -> None:
        """`size` bytes, a whole BLOCK at least, from the addresses `rows` to address `out`."""
        count = pairs.shape[0]
        for x in range(0, size - BLOCK, BLOCK):
            block(_address(rows), _address(pairs), count, shift, x, out)
        block(_address(rows), _address(pairs), count, shift, size - BLOCK, out)

    return run


@intrinsic
def _four_words(context: Any, source: Any, out: Any) -> Any:
    """Four pixels of three bytes, of which 16 are read, become four words."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, out = arguments
        bytes16 = ir.VectorType(_I8, LOAD)
        loaded = builder.load(_at(builder, source, bytes16), align=1)
        places = [byte + 3 * pixel for pixel in range(4) for byte in (0, 1, 2, 2)]
        builder.store(_shuffle(builder, loaded, loaded, places), _at(builder, out, bytes16), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def _four_triples(context: Any, source: Any, out: Any) -> Any:
    """Four words become four pixels of three bytes."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, out = arguments
        bytes16, bytes12 = ir.VectorType(_I8, LOAD), ir.VectorType(_I8, 12)
        loaded = builder.load(_at(builder, source, bytes16), align=1)
        places = [byte + 4 * pixel for pixel in range(4) for byte in (0, 1, 2)]
        builder.store(_shuffle(builder, loaded, loaded, places), _at(builder, out, bytes12), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


@intrinsic
def _address(context: Any, array: Any) -> Any:
    """Where the elements of an array begin."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, _I64)

    return types.int64(array), emit


@intrinsic
def _word(context: Any, address: Any) -> Any:
    """The pixel at an address."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_at(builder, arguments[0], _I32), align=1)

    return types.uint32(types.int64), emit


# How levels become values: in vectors of 32-bit lanes.


def _level_lanes(builder: Any, levels: Any, constants: Any, lanes: int) -> Any:
    return levels


def _affine_lanes(builder: Any, levels: Any, constants: Any, lanes: int) -> Any:
    """x * a + b, both rounded."""
    a, b = (_spread(builder, constants, i, lanes) for i in (0, 1))
    return builder.fadd(builder.fmul(builder.sitofp(levels, a.type), a), b)


def _quotient_lanes(builder: Any, levels: Any, constants: Any, lanes: int) -> Any:
    """(x * k - a) / b, each step rounded, with k in two parts and a division of multiplications.

    The quotient's remainder, exact by a fused operation, corrects it (Markstein, IBM J. R&D 34, 1990).
    """
    k, rest, a, reciprocal, negative = (_spread(builder, constants, i, lanes) for i in range(5))
    x = builder.sitofp(levels, k.type)
    scaled = _fused(builder, x, k, builder.fmul(x, rest), lanes)
    centred = builder.fsub(scaled, a)
    about = builder.fmul(centred, reciprocal)
    remainder = _fused(builder, about, negative, centred, lanes)
    return _fused(builder, remainder, reciprocal, about, lanes)


def _spread(builder: Any, constants: Any, index: int, lanes: int) -> Any:
    pointer = builder.gep(_at(builder, constants, ir.FloatType()), [_I64(index)])
    return _same(builder, _constant_load(builder, pointer, 4), lanes)


def _fused(builder: Any, a: Any, b: Any, c: Any, lanes: int) -> Any:
    """a * b + c, rounded once."""
    kind = ir.FunctionType(a.type, [a.type] * 3)
    fma = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{lanes}f32")
    return builder.call(fma, [a, b, c])


def _as_float32(builder: Any, values: Any, lanes: int) -> Any:
    return values


def _as_bytes(builder: Any, values: Any, lanes: int) -> Any:
    return builder.trunc(values, ir.VectorType(_I8, lanes))


def _as_bfloat16(builder: Any, values: Any, lanes: int) -> Any:
    """The upper halves, rounded to nearest even."""
    bits = builder.bitcast(values, ir.VectorType(_I32, lanes))
    rounded = _rounded_off(builder, bits, 16, lanes)
    return builder.trunc(rounded, ir.VectorType(_I16, lanes))


def _as_float16(builder: Any, values: Any, lanes: int) -> Any:
    """For zero and for what is a normal float16 too: the exponent's bias is 112 less."""
    bits = builder.bitcast(values, ir.VectorType(_I32, lanes))
    size = builder.and_(bits, _splat(_I32, lanes, 0x7FFFFFFF))
    shifted = builder.sub(size, _splat(_I32, lanes, 112 << 23))
    rounded = _rounded_off(builder, shifted, 13, lanes)
    is_zero = builder.icmp_unsigned("==", size, _splat(_I32, lanes, 0))
    rounded = builder.select(is_zero, size, rounded)
    sign = builder.lshr(builder.xor(bits, size), _splat(_I32, lanes, 16))
    return builder.trunc(builder.or_(rounded, sign), ir.VectorType(_I16, lanes))


def _rounded_off(builder: Any, bits: Any, off: int, lanes: int) -> Any:
    odd = builder.and_(builder.lshr(bits, _splat(_I32, lanes, off)), _splat(_I32, lanes, 1))
    half = builder.add(odd, _splat(_I32, lanes, (1 << (off - 1)) - 1))
    return builder.lshr(builder.add(bits, half), _splat(_I32, lanes, off))


def _run_of(lanes: int, value: Callable[..., Any], narrow: Callable[..., Any]) -> Any:
    """`lanes` pixels of one channel become values."""

    @intrinsic
    def run(context: Any, pixels: Any, shift: Any, constants: Any, out: Any, at: Any) -> Any:
        # `pixels` is the address of words, `constants` of float32; `at` is a place in `out`
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pixels, shift, constants, out, at = arguments
            words = ir.VectorType(_I32, lanes)
            loaded = builder.load(_at(builder, pixels, words), align=1)
            loaded = builder.lshr(loaded, _same(builder, shift, lanes))
            levels = builder.and_(loaded, _splat(_I32, lanes, 255))
            values = narrow(builder, value(builder, levels, constants, lanes), lanes)
            data = context.make_array(signature.args[3])(context, builder, out).data
            size = context.get_abi_sizeof(data.type.pointee)
            pointer = builder.bitcast(builder.gep(data, [at]), values.type.as_pointer())
            builder.store(values, pointer, align=size)
            return context.get_dummy_value()

        arguments = (types.int64, types.uint32, types.int64, out, types.int64)
        return types.void(*arguments), emit

    return run


LOOKUP, LEVEL, AFFINE, QUOTIENT, AFFINE_HALF, QUOTIENT_HALF = range(6)
"""How a level becomes a value; all but the first only for runs of EIGHT and more. HALF is float16."""


class Values(NamedTuple):
    """What a level becomes; `kind` says how, and the table holds for all kinds."""

    kind: int
    constants: Any  # float32 [3, 5]: of AFFINE a, b, of QUOTIENT k in two parts, a, 1 / b, -b
    entries: Any  # [3, 257] of the output type


class Place(NamedTuple):
    """Where the patches of a window go in the flat output, in the order in which they stand there."""

    patches: Any  # int64 [patches, 3]: place of the first value, row and column in the window
    rows: int
    width: int
    copies: int
    strides: Any  # int64 [5] along patch, channel, copy, y and x


def _writer(value: Callable[..., Any], narrow: Callable[..., Any]) -> Any:
    """How rows of at least EIGHT pixels a patch are written; see `_lay`."""
    eight, sixteen = _run_of(EIGHT, value, narrow), _run_of(SIXTEEN, value, narrow)

    @njit(nogil=True)
    def write(values: Values, pixels: Any, pitch: Any, place: Place, out: Any) -> None:
        _, to_channel, to_copy, to_y, _ = place.strides
        width = place.width
        for patch in range(place.patches.shape[0]):
            start, top, left = place.patches[patch]
            for channel in range(3):
                shift, own = np.uint32(8 * channel), _address(values.constants) + 20 * channel
                # Copies are computed again rather than written together: memory takes two streams at
                # half the speed of one.
                for copy in range(place.copies):
                    at = start + channel * to_channel + copy * to_copy
                    row = pixels + top * pitch + 4 * left
                    for _ in range(place.rows):
                        if width < SIXTEEN:
                            last = width - EIGHT
                            eight(row, shift, own, out, at)
                            eight(row + 4 * last, shift, own, out, at + last)
                        else:
                            last = width - SIXTEEN
                            for x in range(0, last, SIXTEEN):
                                sixteen(row + 4 * x, shift, own, out, at + x)
                            sixteen(row + 4 * last, shift, own, out, at + last)
                        row += pitch
                        at += to_y

    return write


_levels = _writer(_level_lanes, _as_bytes)
_affine32 = _writer(_affine_lanes, _as_float32)
_affine16 = _writer(_affine_lanes, _as_float16)
_affine_b16 = _writer(_affine_lanes, _as_bfloat16)
_quotient32 = _writer(_quotient_lanes, _as_float32)
_quotient16 = _writer(_quotient_lanes, _as_float16)
_quotient_b16 = _writer(_quotient_lanes, _as_bfloat16)


def _lay(values: Any, pixels: Any, pitch: Any, place: Any, out: Any) -> None:
    """Write rows of pixels, at address `pixels` and every `pitch` bytes, as the values of patches."""


@extending.overload(_lay)
def _lay_for(values: Any, pixels: Any, pitch: Any, place: Any, out: Any) -> Any:
    if out.dtype == types.float32:

        def lay(values: Any, pixels: Any, pitch: Any, place: Any, out: Any) -> None:
            if values.kind == AFFINE:
                _affine32(values, pixels, pitch, place, out)
            else:
                _quotient32(values, pixels, pitch, place, out)

    elif out.dtype == types.uint16:

        def lay(values: Any, pixels: Any, pitch: Any, place: Any, out: Any) -> None:
            if values.kind == AFFINE:
                _affine_b16(values, pixels, pitch, place, out)
            elif values.kind == QUOTIENT:
                _quotient_b16(values, pixels, pitch, place, out)
            elif values.kind == AFFINE_HALF:
                _affine16(values, pixels, pitch, place, out)
            else:
                _quotient16(values, pixels, pitch, place, out)

    else:

        def lay(values: Any, pixels: Any, pitch: Any, place: Any, out: Any) -> None:
            _levels(values, pixels, pitch, place, out)

    return lay


@njit(nogil=True)
def _pack(pixels: Any, pitch: Any, place: Place, out: Any) -> None:
    """Levels as they are, red, green and blue side by side."""
    whole = place.width // COLUMNS * COLUMNS
    for patch in range(place.patches.shape[0]):
        start, top, left = place.patches[patch]
        for copy in range(place.copies):
            for y in range(place.rows):
                row = pixels + (top + y) * pitch + 4 * left
                at = start + copy * place.strides[2] + y * place.strides[3]
                for x in range(0, whole, COLUMNS):
                    _four_triples(row + 4 * x, _address(out) + (at + 3 * x) * out.itemsize)
                for x in range(whole, place.width):
                    word = _word(row + 4 * x)
                    for channel in range(3):
                        level = np.uint32(word >> np.uint32(8 * channel)) & np.uint32(255)
                        out[at + 3 * x + channel] = level


@njit(nogil=True)
def _look_up(values: Values, pixels: Any, pitch: Any, place: Place, out: Any) -> None:
    """The same by table, for any strides and widths."""
    _, to_channel, to_copy, to_y, to_x = place.strides
    for patch in range(place.patches.shape[0]):
        start, top, left = place.patches[patch]
        for channel in range(3):
            entries, shift = values.entries[channel], np.uint32(8 * channel)
            for copy in range(place.copies):
                begin = start + channel * to_channel + copy * to_copy
                for y in range(place.rows):
                    row, at = pixels + (top + y) * pitch + 4 * left, begin + y * to_y
                    for x in range(place.width):
                        level = np.uint32(_word(row + 4 * x) >> shift) & np.uint32(255)
                        out[at] = entries[level]
                        at += to_x


@njit(nogil=True)
def _pad(values: Values, pad: Any, window: int, seen: Any, place: Place, out: Any) -> None:
    """Lay padding over what the picture leaves free of the canvas; the window begins at row `window`.

    `seen` is int64 [first row, end row, first column, end column] of the picture on the canvas.
    """
    for patch in range(place.patches.shape[0]):
        start, top, left = place.patches[patch]
        right = left + place.width
        for y in range(place.rows):
            row, at = window + top + y, start + y * place.strides[3]
            outside = row < seen[0] or row >= seen[1] or seen[2] >= seen[3]
            first = right if outside else min(right, seen[2])
            last = right if outside else max(left, seen[3])
            _fill(values.entries, pad, left, first, at, place, out)
            _fill(values.entries, pad, last, right, at + (last - left) * place.strides[4], place, out)


@njit(nogil=True)
def _fill(entries: Any, pad: Any, left: int, right: int, at: int, place: Place, out: Any) -> None:
    for channel in range(3):
        entry = entries[channel, pad[channel]]
        for copy in range(place.copies):
            begin = at + channel * place.strides[1] + copy * place.strides[2]
            for x in range(right - left):
                out[begin + x * place.strides[4]] = entry


# The passes.


_columns_rgb, _columns_rgbx = _columns_pass(3, 2), _columns_pass(4, 2)
_narrow_columns_rgb, _narrow_columns_rgbx = _columns_pass(3, 1), _columns_pass(4, 1)
_rows, _narrow_rows = _rows_pass(2), _rows_pass(1)


@njit(nogil=True, forceinline=True)
def _row(source: Any, at: Any, size: int) -> Any:
    return source[at : at + size]


@njit(nogil=True)
def _blend_rows(
    flat: Any, start: Any, pitch: int, ring: int, at: int, vertical: Axis, rows: Any, out: Any
) -> None:
    """Row `at` of the vertical pass, `out` uint8 [bytes].

    Source row i begins at byte `start + (i % ring) * pitch` of `flat`; `rows` int64 [2 * pairs] is scratch.
    """
    weights, first, size = vertical.weights[at], vertical.first[at], out.shape[0]
    for tap in range(rows.shape[0]):
        rows[tap] = start + (first + min(tap, weights.shape[0] - 1)) % ring * pitch
    if size < BLOCK:
        half = np.int32(1) << np.int32(vertical.shift - 1)
        for i in range(size):
            total = half
            for tap in range(weights.shape[0]):
                total = np.int32(total + np.int32(weights[tap] * np.int32(flat[rows[tap] + i])))
            out[i] = max(0, min(255, total >> vertical.shift))
        return
    for tap in range(rows.shape[0]):
        rows[tap] += _address(flat)
    if vertical.pairs.shape[2] == 1:
        _narrow_rows(rows, vertical.pairs[at], np.int32(vertical.shift), size, _address(out))
    else:
        _rows(rows, vertical.pairs[at], np.int32(vertical.shift), size, _address(out))


@njit(nogil=True)
def _blend_columns(
    flat: Any,
    start: Any,
    pitch: int,
    step: int,
    count: int,
    first_row: int,
    horizontal: Axis,
    scratch: Scratch,
) -> None:
    """The horizontal pass of `count` rows, at byte `start` of `flat` and every `pitch`, into the ring.

    They become the ring's rows from `first_row` on. A row from which more could be read than `flat` has is
    copied first.
    """
    reach, tail = scratch.reach, scratch.tail
    rows = np.empty(ROWS, np.int64)
    for row in range(count):
        begin = start + row * pitch
        rows[row] = _address(flat) + begin
        if begin + reach > flat.shape[0]:
            left = flat.shape[0] - begin
            tail[row * reach : row * reach + left] = flat[begin:]
            rows[row] = _address(tail) + row * reach
    to = _address(scratch.ring) + first_row * 4 * horizontal.first.shape[0]
    if horizontal.pairs.shape[2] == 1:
        if step == 3:
            _narrow_columns_rgb(rows, count, horizontal, to)
        else:
            _narrow_columns_rgbx(rows, count, horizontal, to)
    elif step == 3:
        _columns_rgb(rows, count, horizontal, to)
    else:
        _columns_rgbx(rows, count, horizontal, to)


@njit(nogil=True)
def _finish_row(
    at: int,
    done: Any,
    mode: int,
    source: Source,
    vertical: Axis,
    horizontal: Axis,
    scratch: Scratch,
    out: Any,
) -> Any:
    """Write row `at` of the seen picture to `out` uint8 [4 * seen]; rows are asked for in rising order.

    `done` is what the previous call returned, 0 at first: how far the ring has got.
    """
    pitch = 4 * horizontal.first.shape[0]
    if mode == COLUMNS_FIRST:
        while done < vertical.end[at]:
            start, count = source.start + done * source.pitch, min(ROWS, source.rows - done)
            row = done % scratch.ring_rows
            _blend_columns(source.flat, start, source.pitch, source.step, count, row, horizontal, scratch)
            done += ROWS
        if vertical.copy:
            out[:] = _row(scratch.ring, vertical.first[at] % scratch.ring_rows * pitch, out.shape[0])
        else:
            ring, rows = scratch.ring, scratch.ring_rows
            _blend_rows(ring, np.int64(0), pitch, rows, at, vertical, scratch.rows, out)
    elif mode == ROWS_FIRST:
        if at >= done:
            count = min(ROWS, vertical.end.shape[0] - done)
            for y in range(count):
                tall = _row(scratch.tall, y * scratch.reach, scratch.reach)
                _row_of_source(done + y, source, vertical, scratch.rows, tall)
            _blend_columns(
                scratch.tall, np.int64(0), scratch.reach, source.step, count, 0, horizontal, scratch
            )
            done += ROWS
        out[:] = _row(scratch.ring, at % ROWS * pitch, out.shape[0])
    elif source.step == 4:
        _row_of_source(at, source, vertical, scratch.rows, out)
    else:
        _row_of_source(at, source, vertical, scratch.rows, scratch.tall)
        _widen(scratch.tall, out)
    return done


@njit(nogil=True)
def _row_of_source(at: int, source: Source, vertical: Axis, rows: Any, out: Any) -> None:
    """Vertical pass of source rows, into pixels of `source.step` bytes."""
    # the fourth byte of the very last pixel may not exist
    size = source.step * (source.columns - 1) + 3
    if vertical.copy:
        begin = source.start + vertical.first[at] * source.pitch
        out[:size] = source.flat[begin : begin + size]
    else:
        flat, ring = source.flat, source.rows
        _blend_rows(flat, source.start, source.pitch, ring, at, vertical, rows, out[:size])


@njit(nogil=True)
def _widen(source: Any, out: Any) -> None:
    """Pixels of three bytes as words; behind the last there is room to read."""
    whole = out.shape[0] // LOAD * LOAD
    for i in range(0, whole, LOAD):
        _four_words(_address(source) + i // 4 * 3, _address(out) + i)
    for i in range(whole, out.shape[0]):
        out[i] = source[i // 4 * 3 + min(i % 4, 2)]


@njit(nogil=True, cache=True)
def run_job(
    mode: int,
    source: Source,
    vertical: Axis,
    horizontal: Axis,
    seen: Any,  # [first row, end row, first column, end column] of the picture on the canvas
    canvas: Any,  # (height, width)
    values: Values,
    pad: Any,
    windows: Any,  # int64 [windows, 2]: first canvas row, rows of each patch
    part: Any,  # (first window, end window): the rest is somebody else's
    patches: Any,  # int64 [windows, patches, 3] as in Place
    width: int,  # of a patch
    copies: int,
    strides: Any,
    scratch: Scratch,
    window: Any,  # uint8, flat: up to WINDOW canvas rows
    kept: Any,  # uint8, flat: the resized picture's words too; empty for not
    out: Any,
) -> None:
    top, bottom, left, right = seen[0], seen[1], seen[2], seen[3]
    covered = top == 0 and bottom == canvas[0] and left == 0 and right == canvas[1]
    unchanged = mode == ROWS_ONLY and vertical.copy and source.step == 4 and kept.shape[0] == 0
    # of three channels four bytes apart, the last pixel's fourth byte may not exist
    used = source.start + (source.rows - 1) * source.pitch + 4 * source.columns
    unchanged = unchanged and used <= source.flat.shape[0]
    packed = values.kind == LEVEL and strides[1] == 1 and strides[4] == 3
    by_table = values.kind == LOOKUP or width < EIGHT or strides[4] != 1
    size = 4 * (right - left)
    done: Any = np.int64(0)
    if part[0] > 0 and bottom > top:  # the ring begins where the first row of this part needs it
        done += min(max(windows[part[0], 0] - top, 0), bottom - top - 1)
        done = np.int64(vertical.first[done]) if mode == COLUMNS_FIRST else done
        done = done // ROWS * ROWS
    for index in range(part[0], part[1]):
        at, end = windows[index, 0], windows[index + 1, 0] if index + 1 < windows.shape[0] else canvas[0]
        place = Place(patches[index], windows[index, 1], width, copies, strides)
        pitch: Any = 4 * canvas[1]
        pixels: Any = _address(window)
        if covered and unchanged:
            pixels, pitch = _address(source.flat) + source.start + at * source.pitch, source.pitch
        elif covered and kept.shape[0] > 0:
            pixels = _address(kept) + at * pitch
            for y in range(at, end):
                line = kept[y * size : (y + 1) * size]
                done = _finish_row(y, done, mode, source, vertical, horizontal, scratch, line)
        elif size > 0:
            for y in range(max(at, top), min(end, bottom)):
                begin = (y - at) * pitch + 4 * left
                line = window[begin : begin + size]
                done = _finish_row(y - top, done, mode, source, vertical, horizontal, scratch, line)
                if kept.shape[0] > 0:
                    kept[(y - top) * size : (y - top + 1) * size] = line
        if packed:
            _pack(pixels, pitch, place, out)
        elif by_table:
            _look_up(values, pixels, pitch, place, out)
        else:
            _lay(values, pixels, pitch, place, out)
        if not covered:
            _pad(values, pad, at, seen, place, out)
