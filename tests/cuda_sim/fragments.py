"""Which element of a matrix each value of each lane is, as the PTX ISA says in its figures.

Each function gives an array of (row, column) for [lane, value].
"""

from __future__ import annotations

import numpy as np

Table = np.ndarray


def table(lanes: int, values: int, element) -> Table:
    return np.array([[element(lane, value) for value in range(values)] for lane in range(lanes)])


def mma_a(depth: int, per_word: int = 2) -> Table:
    """Of A, 16 rows; `per_word` elements in a register: two halves or one tf32."""

    def element(lane: int, value: int) -> tuple[int, int]:
        group, place, word, part = lane // 4, lane % 4, value // per_word, value % per_word
        return group + 8 * (word % 2), per_word * place + part + 4 * per_word * (word // 2)

    return table(32, 16 * depth // 32, element)


def mma_b(depth: int, per_word: int = 2) -> Table:
    """Of B as (column, depth), 8 columns."""

    def element(lane: int, value: int) -> tuple[int, int]:
        group, place, word, part = lane // 4, lane % 4, value // per_word, value % per_word
        return group, per_word * place + part + 4 * per_word * word

    return table(32, 8 * depth // 32, element)


def mma_c() -> Table:
    """Of C and D, 16 rows of 8."""
    return table(32, 4, lambda lane, value: (lane // 4 + 8 * (value // 2), 2 * (lane % 4) + value % 2))


def wgmma_c(columns: int) -> Table:
    """Of D of a warpgroup, 64 rows."""

    def element(thread: int, value: int) -> tuple[int, int]:
        warp, lane = divmod(thread, 32)
        row = 16 * warp + lane // 4 + 8 * (value // 2 % 2)
        return row, 8 * (value // 4) + 2 * (lane % 4) + value % 2

    return table(128, columns // 2, element)


def ldmatrix(matrices: int, transposed: bool) -> Table:
    """(The lane that gives the row, the place in that row) of each half."""

    def element(lane: int, value: int) -> tuple[int, int]:
        matrix, part = divmod(value, 2)
        row, column = lane // 4, 2 * (lane % 4) + part
        if transposed:
            row, column = column, row
        return 8 * matrix + row, column

    return table(32, 2 * matrices, element)


def gather(matrix: np.ndarray, places: Table) -> np.ndarray:
    """The values of each lane."""
    return matrix[places[..., 0], places[..., 1]]


def scatter(values: np.ndarray, places: Table, shape: tuple[int, int]) -> np.ndarray:
    """The matrix that the values of all lanes are; every element must be given."""
    matrix = np.full(shape, np.nan, values.dtype)
    matrix[places[..., 0], places[..., 1]] = values
    return matrix
