"""Marks and checksums that catch a program which touches memory of a request before its wait().

MPI forbids this but does not check it, and whether anything goes wrong depends on timing. So a receive's array is
filled with a mark until its wait(): unlikely numbers, and for floating-point numbers NaN, so that all results computed
from it are NaN, too. A NaN has spare bits, which survive sums, products and conversions: they hold the mark's number.
"""

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

MARKS = 511  # nine bits: the spare bits of a float16's NaN
# itemsize: (unsigned integer of that size, exponent and first bit of a quiet NaN, place of the nine bits after it)
NAN = {2: ("u2", 0xFE00, 0), 4: ("u4", 0xFFC0_0000, 13), 8: ("u8", 0xFFF8_0000_0000_0000, 42)}
FILLING = 0xA5  # every byte of the mark in other arrays


def checksum(array: np.ndarray) -> int:
    """The CRC-32 of a contiguous array's bytes."""
    return zlib.crc32(as_bytes(array).data)


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The memory of a contiguous array, as (bytes,) uint8."""
    return array.reshape(-1).view(np.uint8)


def mark(array: np.ndarray, number: int) -> None:
    """Fill a contiguous array with mark `number`, from 1 to MARKS."""
    words, pattern = _marked(array, number)
    words[...] = pattern


def still_marked(array: np.ndarray, number: int) -> bool:
    """Whether the array is unchanged since `mark`."""
    words, pattern = _marked(array, number)
    return bool((words == pattern).all())


def marks_in(array: np.ndarray) -> set[int]:
    """The numbers of the marks from which values in an array were computed."""
    numbers = _real(array)
    if numbers.dtype.kind != "f" or numbers.itemsize not in NAN:
        return set()
    unsigned, _, place = NAN[numbers.itemsize]
    nan = np.isnan(numbers)
    if not nan.any():
        return set()
    words = numbers[nan].view(unsigned)
    return {int(word) >> place & MARKS for word in np.unique(words)} - {0}


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    """The arrays in nested lists, tuples and dictionaries."""
    if isinstance(value, np.ndarray | np.generic):
        yield np.asarray(value)
    elif isinstance(value, dict):
        yield from arrays_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from arrays_in(item)


def _marked(array: np.ndarray, number: int) -> tuple[np.ndarray, int]:
    numbers = _real(array)
    if numbers.dtype.kind != "f" or numbers.itemsize not in NAN:
        return as_bytes(array), FILLING
    unsigned, nan, place = NAN[numbers.itemsize]
    return numbers.view(unsigned), nan | number << place


def _real(array: np.ndarray) -> np.ndarray:
    """The array, flat; complex numbers become pairs of real ones."""
    flat = array.reshape(-1)
    return flat.view(f"f{flat.itemsize // 2}") if flat.dtype.kind == "c" else flat
