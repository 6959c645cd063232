"""The building blocks of all kernels: unaligned loads and stores, varints, CRC-32C and a 64 by 64 bit product.

Loads, stores, byte swaps and the product are LLVM instructions that Numba does not offer by itself. CRC-32C uses the
processor's own instruction where there is one and a table elsewhere; both give the same results and both are tested.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import binding, ir
from numba import types

from sexton.jit import inlined_kernel, instruction, kernel

Bytes = npt.NDArray[np.uint8]

HAS_CRC_INSTRUCTION = binding.get_host_cpu_features().get("sse4.2", False) and (
    binding.get_process_triple().startswith("x86_64")
)

_I8, _I32, _I64, _I128 = (ir.IntType(bits) for bits in (8, 32, 64, 128))


def _load(bits: int) -> Any:
    @instruction
    def load(typing_context: Any, data: Any, position: Any) -> Any:
        result = {64: types.uint64, 32: types.uint32}[bits]

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            pointer = builder.gep(array.data, [arguments[1]])
            pointer = builder.bitcast(pointer, ir.IntType(bits).as_pointer())
            return builder.load(pointer, align=1)

        return result(data, types.intp), generate

    return load


load_u64 = _load(64)
load_u32 = _load(32)


@instruction
def store_u64(typing_context: Any, data: Any, position: Any, value: Any) -> Any:
    """Stores eight bytes at any position, in native byte order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        pointer = builder.gep(array.data, [arguments[1]])
        pointer = builder.bitcast(pointer, _I64.as_pointer())
        builder.store(arguments[2], pointer, align=1)
        return context.get_dummy_value()

    return types.void(data, types.intp, types.uint64), generate


@instruction
def swap_u64(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), generate


@instruction
def swap_u32(typing_context: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.uint32(types.uint32), generate


@instruction
def multiply_high(typing_context: Any, left: Any, right: Any) -> Any:
    """Returns the upper 64 bits of the 128-bit product; ``left * right`` is the lower half."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide_left, wide_right = (builder.zext(argument, _I128) for argument in arguments)
        product = builder.mul(wide_left, wide_right)
        return builder.trunc(builder.lshr(product, ir.Constant(_I128, 64)), _I64)

    return types.uint64(types.uint64, types.uint64), generate


@instruction
def _crc_step_u64(typing_context: Any, crc: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(_I64, [_I64, _I64])
        step = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.64.64", fnty=function_type)
        return builder.call(step, arguments)

    return types.uint64(types.uint64, types.uint64), generate


@instruction
def _crc_step_u8(typing_context: Any, crc: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function_type = ir.FunctionType(_I32, [_I32, _I8])
        step = builder.module.declare_intrinsic("llvm.x86.sse42.crc32.32.8", fnty=function_type)
        return builder.call(step, arguments)

    return types.uint32(types.uint32, types.uint8), generate


@kernel
def crc32c_by_instruction(data: Bytes, start: int, end: int) -> int:
    crc = np.uint64(0xFFFFFFFF)
    position = start
    while position + 8 <= end:
        crc = _crc_step_u64(crc, load_u64(data, position))
        position += 8
    tail = np.uint32(crc)
    while position < end:
        tail = _crc_step_u8(tail, data[position])
        position += 1
    return np.uint32(tail ^ np.uint32(0xFFFFFFFF))


def _make_crc_tables() -> npt.NDArray[np.uint32]:
    """Slicing-by-eight tables for the reflected polynomial of CRC-32C."""
    tables = np.zeros((8, 256), dtype=np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, byte] = crc
    for byte in range(256):
        for slice_index in range(1, 8):
            previous = int(tables[slice_index - 1, byte])
            tables[slice_index, byte] = (previous >> 8) ^ int(tables[0, previous & 0xFF])
    return tables


_CRC_TABLES = _make_crc_tables()


@kernel
def crc32c_by_table(data: Bytes, start: int, end: int) -> int:
    crc = np.uint32(0xFFFFFFFF)
    position = start
    while position + 8 <= end:
        word = load_u64(data, position) ^ np.uint64(crc)
        crc = np.uint32(0)
        for index in range(8):
            byte = np.int64((word >> np.uint64(8 * index)) & np.uint64(0xFF))
            crc ^= _CRC_TABLES[7 - index, byte]
        position += 8
    while position < end:
        crc = _CRC_TABLES[0, (crc ^ data[position]) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
        position += 1
    return np.uint32(crc ^ np.uint32(0xFFFFFFFF))


crc32c = crc32c_by_instruction if HAS_CRC_INSTRUCTION else crc32c_by_table
"""CRC-32C of ``data[start:end]``."""


@inlined_kernel
def read_i64(data: Bytes, position: int) -> int:
    return np.int64(swap_u64(load_u64(data, position)))


@inlined_kernel
def read_i32(data: Bytes, position: int) -> int:
    return np.int64(np.int32(swap_u32(load_u32(data, position))))


@inlined_kernel
def read_u32(data: Bytes, position: int) -> int:
    return np.int64(swap_u32(load_u32(data, position)))


@inlined_kernel
def read_i16(data: Bytes, position: int) -> int:
    return np.int64(np.int16((np.uint16(data[position]) << np.uint16(8)) | np.uint16(data[position + 1])))


@kernel
def write_big_endian(data: Bytes, position: int, value: int, size: int) -> None:
    for index in range(size):
        data[position + index] = np.uint8((value >> (8 * (size - 1 - index))) & 0xFF)


@kernel
def _read_long_varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    unsigned = np.uint64(0)
    for index in range(10):
        if position + index >= end:
            return 0, -1
        byte = np.uint64(data[position + index])
        unsigned |= (byte & np.uint64(0x7F)) << np.uint64(7 * index)
        if byte < np.uint64(0x80):
            return np.int64(unsigned >> np.uint64(1)) ^ -np.int64(unsigned & np.uint64(1)), position + index + 1
    return 0, -1


@inlined_kernel
def read_varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """Returns the value and the position after it; position -1 if it does not end before ``end``.

    One and two bytes are the common cases (lengths and deltas below 8192) and are written out.
    """
    if position + 2 > end:
        return _read_long_varint(data, position, end)
    first = np.int64(data[position])
    if first < 0x80:
        return (first >> 1) ^ -(first & 1), position + 1
    second = np.int64(data[position + 1])
    if second < 0x80:
        unsigned = (first & 0x7F) | (second << 7)
        return (unsigned >> 1) ^ -(unsigned & 1), position + 2
    return _read_long_varint(data, position, end)


@kernel
def write_varint(data: Bytes, position: int, value: int) -> int:
    """Writes ``value`` and returns the position after it."""
    unsigned = np.uint64((value << 1) ^ (value >> 63))
    while unsigned >= np.uint64(0x80):
        data[position] = np.uint8((unsigned & np.uint64(0x7F)) | np.uint64(0x80))
        unsigned >>= np.uint64(7)
        position += 1
    data[position] = np.uint8(unsigned)
    return position + 1


@kernel
def copy_bytes(source: Bytes, source_start: int, target: Bytes, target_start: int, size: int) -> None:
    """Like memcpy, for ranges that do not overlap. Whole words first; the tail by bytes."""
    index = 0
    while index + 8 <= size:
        store_u64(target, target_start + index, load_u64(source, source_start + index))
        index += 8
    while index < size:
        target[target_start + index] = source[source_start + index]
        index += 1
