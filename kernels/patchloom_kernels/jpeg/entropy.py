"""Triton kernels from entropy-coded bytes to coefficients: destuff, synchronise, write, sum up DC.

A stream is the bytes between two restart markers (the whole scan without them). A lane owns
SUBSEQUENCE bits of a stream. A state (p, b, z) says that at bit p the next symbol belongs to
block b of the MCU and to coefficient z of that block (0: the DC symbol); it is stored as
p << 16 | b << 8 | z. The layouts of all tables are in `plan.py`.
"""

# Triton functions take no annotations but constexpr.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from patchloom_kernels.jpeg import plan, tables

_STREAM = tl.constexpr(len(plan.Stream))
_IMAGE = tl.constexpr(len(plan.Image))
_PLANE = tl.constexpr(len(plan.Plane))
_IMAGE_BLOCKS_PER_MCU = tl.constexpr(plan.Image.BLOCKS_PER_MCU.value)
_IMAGE_COMPONENTS = tl.constexpr(plan.Image.COMPONENTS.value)
_IMAGE_FIRST_PLANE = tl.constexpr(plan.Image.FIRST_PLANE.value)
_PLANE_BLOCKS_PER_MCU = tl.constexpr(plan.Plane.BLOCKS_PER_MCU.value)
_PLANE_H = tl.constexpr(plan.Plane.H.value)
_PLANE_IN_MCU = tl.constexpr(plan.Plane.IN_MCU.value)
_PLANE_V = tl.constexpr(plan.Plane.V.value)
_STREAM_BLOCKS = tl.constexpr(plan.Stream.BLOCKS.value)
_STREAM_FIRST_BLOCK = tl.constexpr(plan.Stream.FIRST_BLOCK.value)
_STREAM_FIRST_LANE = tl.constexpr(plan.Stream.FIRST_LANE.value)
_STREAM_FIRST_TILE = tl.constexpr(plan.Stream.FIRST_TILE.value)
_STREAM_IMAGE = tl.constexpr(plan.Stream.IMAGE.value)
_STREAM_LANES = tl.constexpr(plan.Stream.LANES.value)
_STREAM_LENGTH = tl.constexpr(plan.Stream.LENGTH.value)
_STREAM_SOURCE = tl.constexpr(plan.Stream.SOURCE.value)
_STREAM_WORD = tl.constexpr(plan.Stream.WORD.value)
_SLOTS = tl.constexpr(plan.SLOTS)
_SECOND_BITS = tl.constexpr(tables.SECOND_BITS)
_PRIMARY_SHIFT = tl.constexpr(32 - tables.PRIMARY_BITS)
_PRIMARY_SIZE = tl.constexpr(1 << tables.PRIMARY_BITS)
_SECOND_MASK = tl.constexpr((1 << tables.SECOND_BITS) - 1)
# Symbols decoded between two looks at whether any lane of the program still runs.
_UNROLL = tl.constexpr(4)

# Bits of an image's flags: why its pixels do not count.
BAD_CODE = 1
BAD_BLOCK = 2
BAD_MARKER = 4
BAD_COUNT = 8
BAD_END = 16
NOT_SYNCHRONISED = 32


@triton.jit
def _kept(source, start, length, i):
    """Bytes i of a stream, whether each stays once stuffing is removed, whether it is a marker."""
    here = i < length
    byte = tl.load(source + start + i, mask=here, other=0).to(tl.int32)
    before = tl.load(source + start + i - 1, mask=here & (i > 0), other=0).to(tl.int32)
    escaped = before == 0xFF
    return byte, here & ((byte != 0) | (escaped == 0)), here & escaped & (byte != 0)


@triton.jit
def count_kept(source, tile_stream, streams, kept, flags, TILE: tl.constexpr):
    """kept[tile] = bytes of the tile that are not stuffing; flags images with markers inside."""
    tile = tl.program_id(0)
    stream = streams + tl.load(tile_stream + tile) * _STREAM
    i = (tile - tl.load(stream + _STREAM_FIRST_TILE)) * TILE + tl.arange(0, TILE)
    _, keep, marker = _kept(source, tl.load(stream + _STREAM_SOURCE), tl.load(stream + _STREAM_LENGTH), i)
    tl.store(kept + tile, tl.sum(keep.to(tl.int32), 0))
    bad = tl.max(marker.to(tl.int32), 0)
    tl.atomic_or(flags + tl.load(stream + _STREAM_IMAGE), 4, mask=bad > 0)


@triton.jit
def compact(source, tile_stream, streams, kept, kept_sums, words, bits, TILE: tl.constexpr):
    """Write the kept bytes of a tile, first byte of a word uppermost, and each stream's bits.

    `kept_sums` is the inclusive sum of `kept` over all tiles of the batch.
    """
    tile = tl.program_id(0)
    index = tl.load(tile_stream + tile)
    stream = streams + index * _STREAM
    first = tl.load(stream + _STREAM_FIRST_TILE)
    length = tl.load(stream + _STREAM_LENGTH)
    i = (tile - first) * TILE + tl.arange(0, TILE)
    byte, keep, _ = _kept(source, tl.load(stream + _STREAM_SOURCE), length, i)
    before_stream = tl.load(kept_sums + first) - tl.load(kept + first)
    end = tl.load(kept_sums + tile) - before_stream
    position = end - tl.load(kept + tile) + tl.cumsum(keep.to(tl.int32), 0) - 1
    to = tl.load(stream + _STREAM_WORD) * 4 + (position ^ 3)
    tl.store(words + to, byte.to(tl.uint8), mask=keep)
    last = (tile - first + 1) * TILE >= length
    tl.store(bits + index, end.to(tl.int32) * 8, mask=last)


@triton.jit
def _symbol(words, word, slots, slot, lookup, bits, p, b, z, live):
    """Decode one symbol of each live lane: its length and symbol, the value's bits, what is wrong.

    `stuck` lanes have met the end of the stream: their symbol does not fit into what is left, or
    fewer than 8 bits are left that are no code. `broken` lanes stand before bits that are no code.
    """
    at = words + word + (p >> 5)
    upper = tl.load(at, mask=live, other=0).to(tl.uint32, bitcast=True)
    lower = tl.load(at + 1, mask=live, other=0).to(tl.uint32, bitcast=True)
    shift = (p & 31).to(tl.uint32)
    window = (upper << shift) | ((lower >> 1) >> (31 - shift))
    table = tl.load(slots + (slot + b) * 2 + (z > 0).to(tl.int32), mask=live, other=0)
    entry = tl.load(lookup + table + (window >> _PRIMARY_SHIFT).to(tl.int32), mask=live)
    entry = tl.where(live, entry.to(tl.int32), 0)
    second = (window >> 16).to(tl.int32) & _SECOND_MASK
    second += _PRIMARY_SIZE + ((-1 - entry) << _SECOND_BITS)
    deep = live & (entry < 0)
    entry = tl.where(deep, tl.load(lookup + table + second, mask=deep, other=0), entry)
    entry = entry.to(tl.int32)
    length = entry >> 8
    symbol = entry & 255
    size = symbol & 15
    broken = live & (length == 0)
    stuck = live & ((p + length + size > bits) | (broken & (bits - p < 8)))
    value = (((window << length.to(tl.uint32)) >> 1) >> (31 - size).to(tl.uint32)).to(tl.int32)
    half = (1 << size) >> 1
    value = tl.where(value < half, value - (1 << size) + 1, value)
    return length, symbol, value, broken & (stuck == 0), stuck


@triton.jit
def _advance(length, symbol, broken, moving, p, b, z, per_mcu):
    """The state behind a symbol, whether it ended a block, whether the block ran past 64.

    Before bits that are no code a lane steps one bit on: all that matters is that it moves.
    """
    size = symbol & 15
    run = symbol >> 4
    dc = z == 0
    end_of_block = (dc == 0) & (size == 0) & (run != 15)
    following = tl.where(dc, 1, tl.where(end_of_block, 64, z + run + 1))
    following = tl.where(broken, z, following)
    done = moving & (following >= 64)
    p = tl.where(moving, p + tl.where(broken, 1, length + size), p)
    next_b = tl.where(b + 1 == per_mcu, 0, b + 1)
    b = tl.where(done, next_b, b)
    z = tl.where(done, 0, tl.where(moving, following, z))
    return p, b, z, done, done & (following > 64)


@triton.jit
def _decode_lanes(words, word, slots, slot, lookup, bits, per_mcu, state, limit, run):
    """Follow the running lanes to their limit: their end states and how many blocks they ended.

    Every step moves a lane by a bit at least or stops it, so there are at most as many steps as
    bits between its state and its limit.
    """
    p = (state >> 16).to(tl.int32)
    b = (state >> 8).to(tl.int32) & 255
    z = state.to(tl.int32) & 255
    count = tl.zeros_like(p)
    live = run & (p < limit)
    while tl.max(live.to(tl.int32), 0) > 0:
        for _ in tl.static_range(_UNROLL):
            length, symbol, _value, broken, stuck = _symbol(
                words, word, slots, slot, lookup, bits, p, b, z, live
            )
            moving = live & (stuck == 0)
            p, b, z, done, _over = _advance(length, symbol, broken, moving, p, b, z, per_mcu)
            count += done.to(tl.int32)
            live = moving & (p < limit)
    return (p.to(tl.int64) << 16) | (b << 8) | z, count


@triton.jit
def _lane(lanes, count, lane_stream, streams, images, bits, SUBSEQUENCE: tl.constexpr):
    """What the lanes know of themselves: stream, first of it?, its fields, where they start and end."""
    here = lanes < count
    index = tl.load(lane_stream + lanes, mask=here, other=0)
    stream = streams + index * _STREAM
    word = tl.load(stream + _STREAM_WORD)
    image = tl.load(stream + _STREAM_IMAGE)
    per_mcu = tl.load(images + image * _IMAGE + _IMAGE_BLOCKS_PER_MCU).to(tl.int32)
    length = tl.load(bits + index)
    number = (lanes - tl.load(stream + _STREAM_FIRST_LANE)).to(tl.int32)
    start = number * SUBSEQUENCE
    limit = tl.minimum(start + SUBSEQUENCE, length)
    return here, stream, number, word, image, per_mcu, length, start, limit


@triton.jit(do_not_specialize=["lane_count"])
def synchronise(
    words,
    bits,
    lane_stream,
    streams,
    images,
    slots,
    lookup,
    starts,  # [lanes] the state each lane started from
    ends,  # [lanes] the state in which it reached its limit
    counts,  # [lanes] blocks that it ended
    edges_in,  # [programs] ends of each program's last lane, after the round before
    edges_out,  # [programs] the same after this round
    lane_count,
    FIRST: tl.constexpr,
    LANES: tl.constexpr,
    SUBSEQUENCE: tl.constexpr,
):
    """One round: every lane starts where its left neighbour ended, until nothing changes here.

    In the first round every lane guesses that an MCU begins at its first bit; the first lane of
    a stream is right. With k lanes of a program right, one more turn makes k + 1 right, so the loop
    ends after LANES turns at the latest.
    """
    program = tl.program_id(0)
    i = tl.arange(0, LANES)
    lanes = program * LANES + i
    here, _stream, number, word, image, per_mcu, length, begin, limit = _lane(
        lanes, lane_count, lane_stream, streams, images, bits, SUBSEQUENCE
    )
    slot = image * _SLOTS
    guess = begin.to(tl.int64) << 16
    if FIRST:
        start = guess
        end = guess
        count = tl.zeros_like(number)
        changed = here
        edge = guess
    else:
        start = tl.load(starts + lanes, mask=here, other=0)
        end = tl.load(ends + lanes, mask=here, other=0)
        count = tl.load(counts + lanes, mask=here, other=0)
        edge = tl.load(edges_in + program - 1 + i * 0, mask=(i == 0) & (program > 0), other=0)
        edge = tl.where(number == 0, guess, edge)
        changed = here & (i == 0) & (edge != start)
        start = tl.where(changed, edge, start)
    turns = 0
    while (tl.max(changed.to(tl.int32), 0) > 0) & (turns < LANES):
        new_end, new_count = _decode_lanes(
            words, word, slots, slot, lookup, length, per_mcu, start, limit, changed
        )
        end = tl.where(changed, new_end, end)
        count = tl.where(changed, new_count, count)
        from_left = tl.gather(end, tl.maximum(i - 1, 0), 0)
        wanted = tl.where(number == 0, guess, tl.where(i == 0, edge, from_left))
        changed = here & (wanted != start)
        start = tl.where(changed, wanted, start)
        turns += 1
    tl.store(starts + lanes, start, mask=here)
    tl.store(ends + lanes, end, mask=here)
    tl.store(counts + lanes, count, mask=here)
    tl.store(edges_out + program + i * 0, end, mask=(i == LANES - 1) & here)


@triton.jit(do_not_specialize=["lane_count"])
def write_coefficients(
    words,
    bits,
    lane_stream,
    streams,
    images,
    slots,
    lookup,
    natural,  # [64] position of the k-th coefficient of the stream
    starts,
    ends,
    counts,
    count_sums,  # [lanes] inclusive sum of counts over the batch
    coefficients,  # [blocks, 64] zeros
    differences,  # [blocks] DC differences
    flags,  # [images]
    lane_count,
    LANES: tl.constexpr,
    SUBSEQUENCE: tl.constexpr,
):
    """Decode once more, now knowing each lane's state and first block, and judge the stream."""
    i = tl.arange(0, LANES)
    lanes = tl.program_id(0) * LANES + i
    here, stream, number, word, image, per_mcu, length, begin, limit = _lane(
        lanes, lane_count, lane_stream, streams, images, bits, SUBSEQUENCE
    )
    slot = image * _SLOTS
    first_lane = tl.load(stream + _STREAM_FIRST_LANE)
    first_block = tl.load(stream + _STREAM_FIRST_BLOCK)
    expected = tl.load(stream + _STREAM_BLOCKS).to(tl.int32)
    start = tl.load(starts + lanes, mask=here, other=0)
    left = tl.load(ends + lanes - 1, mask=here & (number > 0), other=0)
    left = tl.where(number > 0, left, begin.to(tl.int64) << 16)
    wrong = tl.where(here & (left != start), 32, 0)
    before = tl.load(count_sums + first_lane, mask=here, other=0)
    before -= tl.load(counts + first_lane, mask=here, other=0)
    block = tl.load(count_sums + lanes, mask=here, other=0)
    block -= tl.load(counts + lanes, mask=here, other=0)
    block = (block - before).to(tl.int32)
    p = (start >> 16).to(tl.int32)
    b = (start >> 8).to(tl.int32) & 255
    z = start.to(tl.int32) & 255
    live = here & (p < limit)
    while tl.max(live.to(tl.int32), 0) > 0:
        for _ in tl.static_range(_UNROLL):
            length_, symbol, value, broken, stuck = _symbol(
                words, word, slots, slot, lookup, length, p, b, z, live
            )
            moving = live & (stuck == 0)
            inside = moving & (broken == 0) & (block < expected)
            k = z + (symbol >> 4)
            to = first_block + block
            tl.store(differences + to, value.to(tl.int16), mask=inside & (z == 0))
            ac = inside & (z > 0) & ((symbol & 15) > 0) & (k < 64)
            place = tl.load(natural + k, mask=ac, other=0)
            tl.store(coefficients + to * 64 + place, value.to(tl.int16), mask=ac)
            p, b, z, done, over = _advance(length_, symbol, broken, moving, p, b, z, per_mcu)
            wrong |= tl.where(broken, 1, 0) | tl.where(over, 2, 0)
            block += done.to(tl.int32)
            live = moving & (p < limit)
    last = here & (number + 1 == tl.load(stream + _STREAM_LANES).to(tl.int32))
    wrong |= tl.where(last & (block != expected), 8, 0)
    wrong |= tl.where(last & ((b != 0) | (z != 0) | (length - p > 7)), 16, 0)
    tl.atomic_or(flags + image, wrong, mask=here & (wrong != 0))


@triton.jit
def sum_dc(streams, images, planes, differences, CHUNK: tl.constexpr):
    """Turn the DC differences of one component of one stream into DC coefficients, in place."""
    stream = streams + tl.program_id(0) * _STREAM
    image = images + tl.load(stream + _STREAM_IMAGE) * _IMAGE
    component = tl.program_id(1)
    if component < tl.load(image + _IMAGE_COMPONENTS):
        plane = planes + (tl.load(image + _IMAGE_FIRST_PLANE) + component) * _PLANE
        per_mcu = tl.load(plane + _PLANE_BLOCKS_PER_MCU).to(tl.int32)
        own = (tl.load(plane + _PLANE_H) * tl.load(plane + _PLANE_V)).to(tl.int32)
        first = differences + tl.load(stream + _STREAM_FIRST_BLOCK) + tl.load(plane + _PLANE_IN_MCU)
        total = tl.load(stream + _STREAM_BLOCKS).to(tl.int32) // per_mcu * own
        carry = 0
        for begin in range(0, total, CHUNK):
            i = begin + tl.arange(0, CHUNK)
            at = first + i // own * per_mcu + i % own
            value = tl.load(at, mask=i < total, other=0).to(tl.int32)
            tl.store(at, (tl.cumsum(value, 0) + carry).to(tl.int16), mask=i < total)
            carry += tl.sum(value, 0)
