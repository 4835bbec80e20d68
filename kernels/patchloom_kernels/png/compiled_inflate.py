"""Inflate (RFC 1950, 1951) for the pixels of a PNG, compiled: a photo's literals by three readers at once.

The filtered bytes of a photo hardly repeat, so its stream is one literal after another, and where a code
begins is known only when the code before it was looked up: a chain of waiting. Two things help. One lookup
gives up to three literals. And two more readers start some way ahead, at bits where most likely no code
begins: Huffman codes fall into step by themselves after a few wrong symbols. When the first reader comes to
a bit that another one passed too, all that the other has read from there on is right, since both read by
the same tables, and is taken over. Where they never meet, the other's work is dropped.

What a match copies may not be there yet when a reader ahead meets it: it keeps the place, notes the match,
and the copying is done when its bytes are taken over.

Reads stay inside the stream, which is padded, and writes inside the output, which has SLACK bytes more
than are asked for. Everything stands in this one file, because numba's cache watches only a function's own.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import extending, njit, types

intrinsic: Callable[..., Any] = extending.intrinsic

PADDING = 32
"""Bytes behind the stream that may be read."""

_BLOCK = 32
_ROWS, _COLUMNS = 21, 256

SLACK = 320
"""Bytes behind the output that may be written: a match, and what a copy in whole blocks adds."""

_BITS = 11
_DISTANCE_BITS = 9
_LONGEST = 15
_LITERALS, _DISTANCES = 288, 32

# How far ahead the next reader starts at most, what it may write and note, and where it may be met.
AHEAD_BITS = 8 * 3072
_AHEAD_BYTES = 1 << 16
_NOTES = 256
_MEETINGS = 48
_WRITTEN, _MET, _NOTED = _AHEAD_BYTES + SLACK, 16 * _MEETINGS, 24 * _NOTES
# Readers ahead pay where matches are rare: their codes' share of all, in 2 ** -15.
_RARE = 1 << 9

_FEW = 32
_LONG, _MOST = np.uint32(16), np.uint32(_BITS)  # no literal; the longest that fits
_BASE = 10
_LITERAL, _LENGTH, _END, _INVALID = range(4)
_BLOCK_END, _AT_LIMIT, _DAMAGED = range(3)

_ORDER = np.array([16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15], np.uint8)


def _ranges(extra: list[int], first: int) -> npt.NDArray[np.int64]:
    """[base, extra bits] of symbols whose ranges follow one another."""
    bases = first + np.cumsum([0, *(1 << bits for bits in extra[:-1])])
    return np.stack([bases, extra], axis=1).astype(np.int64)


_LENGTHS = _ranges([0] * 8 + [i for i in range(1, 6) for _ in range(4)], 3)
_LENGTHS = np.concatenate([_LENGTHS, [[258, 0]]])
_OFFSETS = _ranges([0, 0] + [i for i in range(14) for _ in range(2)], 1)


_wide: Any = np.int64


def _jit(function: Any) -> Any:
    return njit(nogil=True, cache=True, error_model="numpy")(function)


_NUMBERS: Any = {8: types.uint8, 32: types.uint32, 64: types.int64}


def _inlined(function: Any) -> Any:
    """For what is done at every symbol."""
    return njit(inline="always")(function)


def _loader(bits: int) -> Any:
    kind = ir.IntType(bits)
    number = _NUMBERS[bits]

    @intrinsic
    def load(context: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.load(builder.inttoptr(arguments[0], kind.as_pointer()), align=1)

        return number(types.int64), emit

    return load


def _storer(bits: int) -> Any:
    kind = ir.IntType(bits)
    number = _NUMBERS[bits]

    @intrinsic
    def store(context: Any, address: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            address, value = arguments
            builder.store(value, builder.inttoptr(address, kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, number), emit

    return store


@intrinsic
def _copy_block(context: Any, to: Any, source: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block = ir.VectorType(ir.IntType(8), _BLOCK).as_pointer()
        to, source = (builder.inttoptr(address, block) for address in arguments)
        builder.store(builder.load(source, align=1), to, align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


_load8, _load32, _load64 = _loader(8), _loader(32), _loader(64)
_store8, _store32, _store64 = _storer(8), _storer(32), _storer(64)


class Code(NamedTuple):
    """A canonical Huffman code, and what its first bits tell: entries of length, kind, extra bits, base."""

    counts: Any  # int64 [16] codes of each length
    symbols: Any  # int64 [symbols] in the order of their codes
    table: Any  # uint32 [2 ** bits], 0 where no code is so short


class Tables(NamedTuple):
    """What a block is read by."""

    literals: Code
    distances: Code
    lengths: Code  # the code of the code lengths
    many: Any  # uint32 [2 ** _BITS] up to three literals: bits, count, levels; else 0 and the table's entry
    single: Any  # uint32 [2 ** _BITS] of the first literal only
    sizes: Any  # uint8 [320] code lengths


class Places(NamedTuple):
    """Addresses; arrays would be counted in and out of every function."""

    source: int
    begin: int  # of the output
    end: int
    last: int  # bits of the stream
    many: int
    counts: int
    symbols: int
    table: int
    distance_counts: int
    distance_symbols: int
    distance_table: int
    written: int
    meetings: int
    notes: int


class Reader(NamedTuple):
    """One that reads ahead: where, to which address, and how much it noted; `live` is 0 once it stopped."""

    bit: int
    at: int
    met: int
    noted: int
    live: int
    written: int
    meetings: int
    notes: int


class Ahead(NamedTuple):
    """What two readers ahead leave, one behind the other."""

    written: Any  # uint8
    meetings: Any  # int64 pairs as bytes: bits that it passed, and how much was written by then
    notes: Any  # int64 triples as bytes, matches: where, length, distance


def _code(symbols: int, bits: int) -> Code:
    return Code(np.zeros(16, np.int64), np.zeros(symbols, np.int64), np.zeros(1 << bits, np.uint32))


def inflate(stream: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> bool:
    """Whether a zlib stream is whole and gives exactly the bytes of `out` but for its last SLACK ones.

    `stream` is uint8 [n + PADDING], the last PADDING bytes do not count; `out` is uint8 [size + SLACK] and
    after a damaged stream undefined. What follows the checksum is ignored. As strict as zlib; runs without
    the interpreter lock.
    """
    size, room = len(stream) - PADDING, len(out) - SLACK
    if size < 0 or room < 0 or not (stream.flags.c_contiguous and out.flags.carray):
        raise ValueError(f"stream and out must be contiguous and padded, got {stream.shape} and {out.shape}")
    whole: bool = _stream(stream, size, out, room, *workspace())
    return whole


def _tables() -> Tables:
    return Tables(
        _code(_LITERALS, _BITS),
        _code(_DISTANCES, _DISTANCE_BITS),
        _code(19, 7),
        np.zeros(1 << _BITS, np.uint32),
        np.zeros(1 << _BITS, np.uint32),
        np.zeros(_LITERALS + _DISTANCES, np.uint8),
    )


def workspace() -> tuple[Tables, Tables, Ahead]:
    """Memory for one call: tables of a block's own code and of the fixed one, and for reading ahead."""
    ahead = Ahead(
        np.empty(2 * _WRITTEN, np.uint8), np.empty(2 * _MET, np.uint8), np.empty(2 * _NOTED, np.uint8)
    )
    return _tables(), _tables(), ahead


@_jit
def _address(array: Any) -> Any:
    return np.int64(array.ctypes.data)


@_jit
def _places(source: int, size: int, begin: int, room: int, tables: Tables, ahead: Ahead) -> Places:
    own, far = tables.literals, tables.distances
    return Places(
        source,
        begin,
        begin + room,
        8 * size,
        _address(tables.many),
        _address(own.counts),
        _address(own.symbols),
        _address(own.table),
        _address(far.counts),
        _address(far.symbols),
        _address(far.table),
        _address(ahead.written),
        _address(ahead.meetings),
        _address(ahead.notes),
    )


@_inlined
def _word(bit: int, places: Places) -> Any:
    """The next 57 bits at least; what is above them means nothing."""
    return _load64(places.source + (bit >> 3)) >> (bit & 7)


@_jit
def _stream(
    stream: Any, size: int, out: Any, out_size: int, tables: Tables, fixed: Tables, ahead: Ahead
) -> Any:
    """Whether the stream gives exactly `out_size` bytes with the right checksum."""
    if size < 6 or (stream[0] & 15) != 8 or stream[0] >> 4 > 7 or stream[1] & 32:
        return False
    if (np.int64(stream[0]) * 256 + np.int64(stream[1])) % 31:
        return False
    source, begin = _address(stream), _address(out)
    at, end, bit, last = begin, begin + out_size, 16, 8 * size
    places = _places(source, size, begin, out_size, tables, ahead)
    fixed_places = _places(source, size, begin, out_size, fixed, ahead)
    final, apart, fixed_is_there = False, AHEAD_BITS, False
    while not final:
        if bit + 3 > last:
            return False
        head = _word(bit, places)
        final, kind = (head & 1) == 1, (head >> 1) & 3
        bit += 3
        if kind == 3:
            return False
        if kind == 0:
            start = (bit + 7) >> 3
            if start + 4 > size:
                return False
            word = _load64(source + start)
            count = word & 0xFFFF
            start += 4
            if count != ~(word >> 16) & 0xFFFF or start + count > size or at + count > end:
                return False
            _move(source + start, at, count)
            at, bit = at + count, 8 * (start + count)
            continue
        status = _AT_LIMIT
        if kind == 1:
            if not fixed_is_there:
                _fixed_code(fixed)
                fixed_is_there = True
            status, bit, at = _symbols(bit, last, at, fixed_places)
        else:
            bit = _read_code(bit, tables, places)
            if bit < 0:
                return False
            symbols = 0
            while status == _AT_LIMIT and symbols < _FEW:  # blocks so short need no more tables
                status, bit, at = _step(bit, at, places)
                symbols += 1
            if status == _AT_LIMIT:
                _fill_many(tables.literals.table, tables.single, tables.many)
                if _rare_matches(tables.literals):
                    block = bit
                    status, bit, at = _by_three(bit, apart, at, places)
                    apart = _apart(bit - block)
                else:
                    status, bit, at = _symbols(bit, last, at, places)
        if status != _BLOCK_END or bit > last or at > end:
            return False
    start = (bit + 7) >> 3
    if at != end or start + 4 > size:
        return False
    stated = np.int64(0)
    for i in range(4):
        stated = stated * 256 + np.int64(stream[start + i])
    return stated == _adler(out[:out_size])


@_jit
def _adler(data: Any) -> Any:
    """The checksum of RFC 1950: a = 1 + all bytes, b = the sum of a after every byte, both modulo 65521.

    In tiles of rows, so that 16-bit sums suffice: of a column the bytes, and those sums before every row.
    """
    a, b, n = np.int64(1), np.int64(0), data.shape[0]
    sums, before = np.empty(_COLUMNS, np.uint16), np.empty(_COLUMNS, np.uint16)
    tile = _ROWS * _COLUMNS
    for start in range(0, n - tile + 1, tile):
        sums[:] = 0
        before[:] = 0
        for row in range(_ROWS):
            line = data[start + row * _COLUMNS : start + (row + 1) * _COLUMNS]
            for i in range(_COLUMNS):
                before[i] += sums[i]
                sums[i] += line[i]
        total = weighted = np.uint32(0)
        for i in range(_COLUMNS):
            total = np.uint32(total + sums[i])
            own = np.uint32(sums[i]) * np.uint32(_COLUMNS - i)
            weighted = np.uint32(weighted + np.uint32(own + np.uint32(before[i]) * np.uint32(_COLUMNS)))
        b = (b + tile * a + np.int64(weighted)) % 65521
        a = (a + np.int64(total)) % 65521
    for i in range(n - n % tile, n):
        a += data[i]
        b += a
    return b % 65521 * 65536 + a % 65521


@_jit
def _move(source: int, to: int, count: int) -> None:
    """Copies in blocks; up to _BLOCK bytes more are read and written."""
    for i in range(0, count, _BLOCK):
        _copy_block(to + i, source + i)


# Codes and their tables.


@_jit
def _arrange(sizes: Any, code: Code) -> Any:
    """Sorts the symbols by their codes. What is left of the code space: negative is too much."""
    code.counts[:] = 0
    for i in range(sizes.shape[0]):
        code.counts[sizes[i]] += 1
    code.counts[0] = 0
    left, total = 1, 0
    offsets = np.zeros(16, np.int64)
    for size in range(1, 16):
        left = 2 * left - code.counts[size]
        if left < 0:
            return left
        offsets[size] = total
        total += code.counts[size]
    for i in range(sizes.shape[0]):
        size = sizes[i]
        if size:
            code.symbols[offsets[size]] = i
            offsets[size] += 1
    return left


@_jit
def _fill(code: Code, bits: int, first_range: int, ranges: Any) -> None:
    """The table of all codes of at most `bits` bits."""
    table = code.table
    table[:] = 0
    number, index = 0, 0
    for size in range(1, bits + 1):
        for _ in range(code.counts[size]):
            entry = np.uint32(_meaning(code.symbols[index], first_range, ranges) | size)
            mirrored = 0
            for i in range(size):
                mirrored |= ((number >> i) & 1) << (size - 1 - i)
            for place in range(mirrored, 1 << bits, 1 << size):
                table[place] = entry
            number += 1
            index += 1
        number *= 2


@_jit
def _meaning(symbol: int, first_range: int, ranges: Any) -> Any:
    """The entry of a symbol without the length of its code; ranges begin at `first_range`."""
    if symbol < first_range:
        return symbol << _BASE | (_END << 4 if symbol == 256 else 0)
    if symbol - first_range >= ranges.shape[0]:
        return _INVALID << 4
    base, extra = ranges[symbol - first_range, 0], ranges[symbol - first_range, 1]
    return base << _BASE | extra << 6 | _LENGTH << 4


@_inlined
def _literal(word: int, places: Places) -> Any:
    """The entry of the literal, length or end that `word` begins with."""
    entry = _wide(_load32(places.table + 4 * (word & ((1 << _BITS) - 1))))
    return entry if entry else _long(word, places.counts, places.symbols, 257, _LENGTHS)


@_inlined
def _distance(word: int, places: Places) -> Any:
    """The entry of the distance that `word` begins with."""
    entry = _wide(_load32(places.distance_table + 4 * (word & ((1 << _DISTANCE_BITS) - 1))))
    return entry if entry else _long(word, places.distance_counts, places.distance_symbols, 0, _OFFSETS)


@_jit
def _long(word: int, counts: int, symbols: int, first_range: int, ranges: Any) -> Any:
    """The entry of a code that is in no table, found bit by bit."""
    number, first, index = 0, 0, 0
    for size in range(1, _LONGEST + 1):
        number |= (word >> (size - 1)) & 1
        count = _load64(counts + 8 * size)
        if number - first < count:
            return _meaning(_load64(symbols + 8 * (index + number - first)), first_range, ranges) | size
        index += count
        first = 2 * (first + count)
        number *= 2
    return _INVALID << 4


@_jit
def _fill_many(table: Any, single: Any, many: Any) -> None:
    """Lookups of up to three literals whose codes together are no longer than one lookup."""
    low, level, sizes = np.uint32(0xFF), np.uint32(0xFF00), np.uint32(63)
    for i in range(1 << _BITS):
        entry = np.uint32(table[i])
        literal = np.uint32((entry & np.uint32(15)) | np.uint32((entry >> np.uint32(_BASE)) << np.uint32(8)))
        other = entry == 0 or entry & np.uint32(0x30)
        single[i] = _LONG if other else np.uint32(literal | np.uint32(64))
    for i in range(1 << _BITS):
        first = np.uint32(single[i])
        rest = np.uint32(np.uint32(i) >> (first & sizes))
        second = np.uint32(single[rest])
        third = np.uint32(single[np.uint32(rest >> (second & sizes))])
        two = np.uint32(first + np.uint32((second & low) + np.uint32((second & level) << np.uint32(8))))
        three = np.uint32(two + np.uint32((third & low) + np.uint32((third & level) << np.uint32(16))))
        found = two if (two & sizes) <= _MOST else first
        found = three if (three & sizes) <= _MOST else found
        other = np.uint32(np.uint32(table[i]) << np.uint32(8))
        many[i] = found if (first & sizes) <= _MOST else other


@_jit
def _rare_matches(code: Code) -> Any:
    """Whether the lengths of matches have codes so long that there can be few of them."""
    share, index = 0, 0
    for size in range(1, 16):
        for _ in range(code.counts[size]):
            if code.symbols[index] > 256:
                share += 1 << (15 - size)
            index += 1
    return share <= _RARE


@_jit
def _fixed_code(tables: Tables) -> None:
    sizes = tables.sizes
    for i in range(_LITERALS):
        sizes[i] = 8 if i < 144 else 9 if i < 256 else 7 if i < 280 else 8
    _arrange(sizes[:_LITERALS], tables.literals)
    _fill(tables.literals, _BITS, 257, _LENGTHS)
    sizes[:_DISTANCES] = 5
    _arrange(sizes[:_DISTANCES], tables.distances)
    _fill(tables.distances, _DISTANCE_BITS, 0, _OFFSETS)
    _fill_many(tables.literals.table, tables.single, tables.many)


@_jit
def _read_code(bit: int, tables: Tables, places: Places) -> Any:
    """Reads the codes of a block: the bit behind them, or -1 where zlib refuses them."""
    head, last = _word(bit, places), places.last
    literals, distances, count = 257 + (head & 31), 1 + ((head >> 5) & 31), 4 + ((head >> 10) & 15)
    bit += 14
    if literals > 286 or distances > 30 or bit + 3 * count > last:
        return -1
    sizes = tables.sizes
    sizes[:19] = 0
    for i in range(count):
        sizes[_ORDER[i]] = _word(bit, places) & 7
        bit += 3
    if _arrange(sizes[:19], tables.lengths) != 0:
        return -1
    _fill(tables.lengths, 7, 19, _LENGTHS)
    filled, total = 0, literals + distances
    while filled < total:
        if bit > last:
            return -1
        word = _word(bit, places)
        entry = _wide(tables.lengths.table[word & 127])
        symbol, used = entry >> _BASE, entry & 15
        word >>= used
        if symbol < 16:
            sizes[filled] = symbol
            filled += 1
            bit += used
            continue
        value, times = 0, 3
        if symbol == 16:
            if filled == 0:
                return -1
            value, times, used = _wide(sizes[filled - 1]), 3 + (word & 3), used + 2
        elif symbol == 17:
            times, used = 3 + (word & 7), used + 3
        else:
            times, used = 11 + (word & 127), used + 7
        if filled + times > total:
            return -1
        sizes[filled : filled + times] = value
        filled += times
        bit += used
    if bit > last or sizes[256] == 0:
        return -1
    if not _usable(sizes[:literals], tables.literals):
        return -1
    if not _usable(sizes[literals:total], tables.distances):
        return -1
    _fill(tables.literals, _BITS, 257, _LENGTHS)
    _fill(tables.distances, _DISTANCE_BITS, 0, _OFFSETS)
    return bit


@_jit
def _usable(sizes: Any, code: Code) -> Any:
    """Whether a code is complete, or nothing but one code of one bit or none, which is allowed too."""
    left = _arrange(sizes, code)
    return left == 0 or (left > 0 and code.counts[2:].sum() == 0)


# Reading. `bit` is where, `at` the address that is written next.


@_jit
def _symbols(bit: int, until: int, at: int, places: Places) -> Any:
    """Reads on from `bit` until the bit `until` is reached or passed: (status, bit, address).

    One load has bits for three lookups of literals, or for one and a match of short codes. The next lookup
    is begun before a match is copied, whose end the processor foresees badly.
    """
    many, mask = places.many, (1 << _BITS) - 1
    word = _word(bit, places)
    entry = _wide(_load32(many + 4 * (word & mask)))
    while bit < until:
        if bit > places.last or at > places.end:
            return _DAMAGED, bit, at
        lookups = 0
        while entry & 0xFF and lookups < 3:
            _store32(at, np.uint32(entry >> 8))
            at += (entry >> 6) & 3
            bit += entry & 63
            word >>= entry & 63
            entry = _wide(_load32(many + 4 * (word & mask)))
            lookups += 1
        length = distance = 0
        if lookups < 2:
            entry >>= 8
            used, extra = entry & 15, (entry >> 6) & 15
            length = (entry >> _BASE) + ((word >> used) & ((1 << extra) - 1))
            used += extra
            far = _wide(_load32(places.distance_table + 4 * ((word >> used) & ((1 << _DISTANCE_BITS) - 1))))
            if (entry >> 4) & 3 != _LENGTH or (far >> 4) & 3 != _LENGTH:  # the end, or a long code
                status, bit, at = _step(bit, at, places)
                if status != _AT_LIMIT:
                    return status, bit, at
                length = 0
            else:
                used += far & 15
                extra = (far >> 6) & 15
                distance = (far >> _BASE) + ((word >> used) & ((1 << extra) - 1))
                if distance > at - places.begin:
                    return _DAMAGED, bit, at
                bit += used + extra
        word = _word(bit, places)
        entry = _wide(_load32(many + 4 * (word & mask)))
        if length:
            _repeat(at, distance, length)
            at += length
    return _AT_LIMIT, bit, at


@_jit
def _step(bit: int, at: int, places: Places) -> Any:
    """As `_symbols`, for one symbol."""
    if bit > places.last or at > places.end:
        return _DAMAGED, bit, at
    word = _word(bit, places)
    entry = _literal(word, places)
    kind, used = (entry >> 4) & 3, entry & 15
    if kind == _LITERAL:
        _store32(at, np.uint32(entry >> _BASE))
        return _AT_LIMIT, bit + used, at + 1
    if kind != _LENGTH:
        return (_BLOCK_END if kind == _END else _DAMAGED), bit + used, at
    length, distance, used = _match(word, entry, places)
    if length == 0 or distance > at - places.begin:
        return _DAMAGED, bit, at
    _repeat(at, distance, length)
    return _AT_LIMIT, bit + used, at + length


@_inlined
def _match(word: int, entry: int, places: Places) -> Any:
    """(length, distance, bits) of a match whose length has `entry`; length 0 for no such match."""
    used, extra = entry & 15, (entry >> 6) & 15
    length = (entry >> _BASE) + ((word >> used) & ((1 << extra) - 1))
    used += extra
    entry = _distance(word >> used, places)
    if (entry >> 4) & 3 != _LENGTH:
        return 0, 0, used
    used += entry & 15
    extra = (entry >> 6) & 15
    distance = (entry >> _BASE) + ((word >> used) & ((1 << extra) - 1))
    return length, distance, used + extra


@_inlined
def _repeat(at: int, distance: int, length: int) -> None:
    """Copies a match in words or blocks; up to _BLOCK bytes more are written."""
    stop = at + length
    if distance >= _BLOCK:
        while at < stop:
            _copy_block(at, at - distance)
            at += _BLOCK
    elif distance >= 8:
        while at < stop:
            _store64(at, _load64(at - distance))
            at += 8
    else:
        # a word of what repeats, so that no step waits for the one before it
        word = _load64(at - distance) & ((1 << 8 * distance) - 1)
        filled = distance
        while filled < 8:
            word |= word << (8 * filled)
            filled *= 2
        step = 8 - 8 % distance
        while step == 8 and at < stop:
            for i in range(0, _BLOCK, 8):
                _store64(at + i, word)
            at += _BLOCK
        while at < stop:
            _store64(at, word)
            at += step


@_jit
def _apart(block: int) -> Any:
    """How far apart readers begin, so that a block of so many bits is a whole number of rounds."""
    rounds = 1 + block // (3 * AHEAD_BITS)
    return min(AHEAD_BITS, block // (3 * rounds) + 64)


@_jit
def _by_three(bit: int, apart: int, at: int, places: Places) -> Any:
    """A block of literals, read at three places: (status, bit, address) as `_symbols`."""
    while bit + 4 * AHEAD_BITS < places.last and at + 4 * _AHEAD_BYTES < places.end:
        near_bit, far_bit = bit + apart, bit + 2 * apart
        b, c = _reader(near_bit, 0, places), _reader(far_bit, 1, places)
        while bit < near_bit:
            bit, at, first, b, second, c, third = _advance(bit, near_bit, at, b, c, places)
            if second & 0xFF == 0 and b.live:
                b = _note(b, places)
            if third & 0xFF == 0 and c.live:
                c = _note(c, places)
            if first & 0xFF == 0 or at >= places.end:
                status, bit, at = _step(bit, at, places)
            elif not (_room(b, places) and _room(c, places)):
                status, bit, at = _symbols(bit, near_bit, at, places)
            else:
                continue
            if status != _AT_LIMIT:
                return status, bit, at
        status, bit, at, taken = _take_over(bit, at, b, places)
        if status != _AT_LIMIT:
            return status, bit, at
        if not taken:
            continue
        status, bit, at = _symbols(bit, far_bit, at, places)
        if status != _AT_LIMIT:
            return status, bit, at
        status, bit, at, taken = _take_over(bit, at, c, places)
        if status != _AT_LIMIT:
            return status, bit, at
    return _symbols(bit, places.last, at, places)


@_jit
def _reader(bit: int, number: int, places: Places) -> Any:
    written = places.written + number * _WRITTEN
    return Reader(
        bit, written, 0, 0, 1, written, places.meetings + number * _MET, places.notes + number * _NOTED
    )


@_jit
def _room(reader: Reader, places: Places) -> Any:
    return reader.bit < places.last and reader.at < reader.written + _AHEAD_BYTES


@_jit
def _take_over(bit: int, at: int, ahead: Reader, places: Places) -> Any:
    """Reads on until a bit that the other reader passed, and takes over what that one has from there.

    (status, bit, address, whether they met).
    """
    meeting = 0
    while meeting < ahead.met:
        passed = _load64(ahead.meetings + 16 * meeting)
        if passed == bit:
            break
        if passed < bit:
            meeting += 1
            continue
        status, bit, at = _step(bit, at, places)
        if status != _AT_LIMIT:
            return status, bit, at, False
    if meeting == ahead.met:
        return _AT_LIMIT, bit, at, False
    first = _load64(ahead.meetings + 16 * meeting + 8)
    count = ahead.at - ahead.written - first
    if at + count > places.end:
        return _AT_LIMIT, bit, at, False
    _move(ahead.written + first, at, count)
    for i in range(ahead.noted):
        note = ahead.notes + 24 * i
        to = at + _load64(note) - first
        if to >= at and not _again(to, _load64(note + 8), _load64(note + 16), places):
            return _DAMAGED, bit, at, False
    return _AT_LIMIT, ahead.bit, at + count, True


@_jit
def _advance(bit: int, stop: int, at: int, b: Reader, c: Reader, places: Places) -> Any:
    """All readers on, five lookups at a time, until one comes upon what is no literal, or to its end.

    (bit, address, last entry, reader, its last entry, reader, its last entry). A lookup that finds no literal
    moves nothing, and so do those behind it: only the last of five is tested.
    """
    many, mask, end, last = places.many, (1 << _BITS) - 1, places.end, places.last
    b_bit, b_at, b_room, b_idle = b.bit, b.at, b.written + _AHEAD_BYTES, 1 - b.live
    c_bit, c_at, c_room, c_idle = c.bit, c.at, c.written + _AHEAD_BYTES, 1 - c.live
    met = b.met
    x = y = z = 1
    while bit < stop and at < end and b_bit < last and b_at < b_room and c_bit < last and c_at < c_room:
        if met < _MEETINGS:
            _store64(b.meetings + 16 * met, b_bit)
            _store64(b.meetings + 16 * met + 8, b_at - b.written)
            _store64(c.meetings + 16 * met, c_bit)
            _store64(c.meetings + 16 * met + 8, c_at - c.written)
            met += 1
        u, v, w = _word(bit, places), _word(b_bit, places), _word(c_bit, places)
        us = vs = ws = 0
        for _ in range(5):
            x = _wide(_load32(many + 4 * (u & mask)))
            y = _wide(_load32(many + 4 * (v & mask)))
            z = _wide(_load32(many + 4 * (w & mask)))
            _store32(at, np.uint32(x >> 8))
            _store32(b_at, np.uint32(y >> 8))
            _store32(c_at, np.uint32(z >> 8))
            u >>= x & 63
            v >>= y & 63
            w >>= z & 63
            at += (x >> 6) & 3
            b_at += (y >> 6) & 3
            c_at += (z >> 6) & 3
            us += x
            vs += y
            ws += z
        bit += us & 63
        b_bit += vs & 63
        c_bit += ws & 63
        if x & 0xFF == 0 or (y & 0xFF | b_idle) == 0 or (z & 0xFF | c_idle) == 0:
            break
    b = _moved(b, b_bit, b_at, met, b.noted, b.live)
    c = _moved(c, c_bit, c_at, met, c.noted, c.live)
    return bit, at, x, b, y, c, z


@_jit
def _moved(reader: Reader, bit: int, at: int, met: int, noted: int, live: int) -> Any:
    return Reader(bit, at, met, noted, live, reader.written, reader.meetings, reader.notes)


@_jit
def _note(reader: Reader, places: Places) -> Any:
    """One symbol of a reader ahead, which stops where it cannot go on."""
    word = _word(reader.bit, places)
    entry = _literal(word, places)
    kind = (entry >> 4) & 3
    bit, at, met, noted = reader.bit, reader.at, reader.met, reader.noted
    if kind == _LITERAL:
        _store32(at, np.uint32(entry >> _BASE))
        return _moved(reader, bit + (entry & 15), at + 1, met, noted, 1)
    length, distance, used = _match(word, entry, places)
    if kind != _LENGTH or noted == _NOTES or length == 0:
        return _moved(reader, bit, at, met, noted, 0)
    note = reader.notes + 24 * noted
    _store64(note, at - reader.written)
    _store64(note + 8, length)
    _store64(note + 16, distance)
    return _moved(reader, bit + used, at + length, met, noted + 1, 1)


@_jit
def _again(at: int, length: int, distance: int, places: Places) -> Any:
    """Copies a noted match, byte by byte; False where it reaches before the output."""
    if distance > at - places.begin:
        return False
    for place in range(at, at + length):
        _store8(place, _load8(place - distance))
    return True
