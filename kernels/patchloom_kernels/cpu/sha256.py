"""SHA-256 (FIPS 180-4) of several messages, two at a time, on processors with instructions for it.

A round needs the one before it, so that one message leaves the unit idle half of the time: two
messages take hardly longer than one. Everything stands in this one file, because numba's cache watches only
a function's own.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import extending, njit, types
from numba.core import cgutils as untyped_cgutils

from patchloom_kernels.cpu.processor import INSTRUCTION_SETS

cgutils: Any = untyped_cgutils
intrinsic: Callable[..., Any] = extending.intrinsic

BLOCK = 64
_WORDS = ir.VectorType(ir.IntType(32), 4)
_BYTES = ir.VectorType(ir.IntType(8), 16)


def _primes(count: int) -> list[int]:
    found: list[int] = []
    number = 2
    while len(found) < count:
        if all(number % prime for prime in found):
            found.append(number)
        number += 1
    return found


def _root_bits(number: int, root: int) -> int:
    """The first 32 bits of the fraction of a root, exactly."""
    scaled = number << (32 * root)
    low, high = 0, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**root <= scaled else (low, middle)
    return low & 0xFFFFFFFF


_ROUNDS = [_root_bits(prime, 3) for prime in _primes(64)]
_START = np.array([_root_bits(prime, 2) for prime in _primes(8)], np.uint32)


def available() -> bool:
    """Whether this processor has the instructions, as far as numba is told."""
    return {"+sha", "+ssse3"} <= INSTRUCTION_SETS


def sha256(messages: Sequence[tuple[bytes, bytes]]) -> list[str]:
    """The hexadecimal digests of messages, each in two parts, of which the second is not copied.

    Only where `available`. Runs without the interpreter lock.
    """
    edges: list[bytes] = []  # what lies before and behind the whole blocks of second parts, padded
    spans: list[tuple[int, int, int]] = []
    for first, second in messages:
        cut = min(-len(first) % BLOCK, len(second))
        whole = (len(second) - cut) // BLOCK
        behind = len(second) - cut - BLOCK * whole
        head = first + second[:cut]
        if len(head) % BLOCK:  # the second part ended before the block did
            head, last = head[: -(len(head) % BLOCK)], head[-(len(head) % BLOCK) :]
        else:
            last = second[len(second) - behind :]
        size = len(first) + len(second)
        edges += head, last + b"\x80" + bytes(-(len(last) + 9) % BLOCK) + (8 * size).to_bytes(8, "big")
        spans.append((_address(second) + cut, whole, len(head) // BLOCK))
    joined = b"".join(edges)
    place, rows = _address(joined), []
    for (body, whole, before), tail in zip(spans, edges[1::2], strict=True):
        after = len(tail) // BLOCK
        rows.append((place, before, body, whole, place + BLOCK * before, after))
        place += BLOCK * (before + after)
    states = np.tile(_START, (len(messages), 1))
    _all(np.array(rows, np.int64).reshape(-1, 3, 2), states)
    digits = states.astype(">u4").tobytes().hex()
    return [digits[i : i + 64] for i in range(0, len(digits), 64)]


def _address(data: bytes) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data) if data else 0


def _blocks(lanes: int) -> Any:
    """The compression of `count` blocks of so many messages side by side."""

    def shuffle(builder: Any, a: Any, b: Any, places: list[int]) -> Any:
        return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places))

    def call(builder: Any, name: str, *arguments: Any) -> Any:
        kind = ir.FunctionType(_WORDS, [_WORDS] * len(arguments))
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)

    def constants(group: int) -> ir.Constant:
        return ir.Constant(_WORDS, _ROUNDS[4 * group : 4 * group + 4])

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        states, sources, count = arguments[:lanes], arguments[lanes:-1], arguments[-1]
        swapped = [4 * word + byte for word in range(4) for byte in (3, 2, 1, 0)]
        pairs = []  # per lane the variables of (a, b, e, f) and (c, d, g, h), in the unit's order
        for state in states:
            low, high = (
                builder.load(
                    builder.inttoptr(builder.add(state, ir.IntType(64)(16 * i)), _WORDS.as_pointer()), align=4
                )
                for i in (0, 1)
            )
            variables = []
            for places in ([5, 4, 1, 0], [7, 6, 3, 2]):
                variable = cgutils.alloca_once(builder, _WORDS)
                builder.store(shuffle(builder, low, high, places), variable)
                variables.append(variable)
            pairs.append(variables)
        with cgutils.for_range(builder, count) as loop:
            offset = builder.mul(loop.index, ir.IntType(64)(BLOCK))
            words = []
            for source in sources:
                place = builder.add(source, offset)
                own = []
                for i in range(4):
                    address = builder.add(place, ir.IntType(64)(16 * i))
                    loaded = builder.load(builder.inttoptr(address, _BYTES.as_pointer()), align=1)
                    own.append(builder.bitcast(shuffle(builder, loaded, loaded, swapped), _WORDS))
                words.append(own)
            before = [[builder.load(variable) for variable in pair] for pair in pairs]
            now = [list(pair) for pair in before]
            for group in range(16):
                for lane in range(lanes):
                    w, (x, y) = words[lane], now[lane]
                    keyed = builder.add(w[group], constants(group))
                    y = call(builder, "llvm.x86.sha256rnds2", y, x, keyed)
                    x = call(
                        builder, "llvm.x86.sha256rnds2", x, y, shuffle(builder, keyed, keyed, [2, 3, 0, 0])
                    )
                    now[lane] = [x, y]
                    if group < 12:
                        moved = shuffle(builder, w[group + 2], w[group + 3], [1, 2, 3, 4])
                        sums = builder.add(
                            call(builder, "llvm.x86.sha256msg1", w[group], w[group + 1]), moved
                        )
                        w.append(call(builder, "llvm.x86.sha256msg2", sums, w[group + 3]))
            for pair, old, new in zip(pairs, before, now, strict=True):
                for variable, a, b in zip(pair, old, new, strict=True):
                    builder.store(builder.add(a, b), variable)
        for state, pair in zip(states, pairs, strict=True):
            abef, cdgh = (builder.load(variable) for variable in pair)
            for i, places in enumerate(([3, 2, 7, 6], [1, 0, 5, 4])):
                address = builder.add(state, ir.IntType(64)(16 * i))
                builder.store(
                    shuffle(builder, abef, cdgh, places),
                    builder.inttoptr(address, _WORDS.as_pointer()),
                    align=4,
                )
        return context.get_dummy_value()

    if lanes == 1:

        @intrinsic
        def one(context: Any, state: Any, source: Any, count: Any) -> Any:
            return types.void(*[types.int64] * 3), emit

        return one

    @intrinsic
    def two(context: Any, state: Any, other: Any, source: Any, far: Any, count: Any) -> Any:
        return types.void(*[types.int64] * 5), emit

    return two


_one, _two = _blocks(1), _blocks(2)


@njit(nogil=True, cache=True, error_model="numpy")
def _all(parts: npt.NDArray[np.int64], states: npt.NDArray[np.uint32]) -> None:
    """`parts` are [messages, 3, (address, blocks)]; `states` [messages, 8] become the digests."""
    lanes = np.full((2, 2), -1, np.int64)  # message and part of each lane
    lanes[:, 1] = 3
    taken, messages = 0, parts.shape[0]
    base = np.int64(states.ctypes.data)
    while True:
        for lane in range(2):
            while lanes[lane, 0] < messages and (
                lanes[lane, 1] > 2 or parts[lanes[lane, 0], lanes[lane, 1], 1] == 0
            ):
                lanes[lane, 1] += 1
                if lanes[lane, 1] > 2:
                    lanes[lane, 0], lanes[lane, 1] = taken, 0
                    taken += 1
        a, b = lanes[0, 0], lanes[1, 0]
        if a >= messages and b >= messages:
            return
        i, j = lanes[0, 1], lanes[1, 1]
        if a < messages and b < messages:
            count = min(parts[a, i, 1], parts[b, j, 1])
            _two(base + 32 * a, base + 32 * b, parts[a, i, 0], parts[b, j, 0], count)
        elif a < messages:
            count = parts[a, i, 1]
            _one(base + 32 * a, parts[a, i, 0], count)
        else:
            count = parts[b, j, 1]
            _one(base + 32 * b, parts[b, j, 0], count)
        if a < messages:
            parts[a, i, 0] += 64 * count
            parts[a, i, 1] -= count
        if b < messages:
            parts[b, j, 0] += 64 * count
            parts[b, j, 1] -= count
