# SPDX-License-Identifier: Apache-2.0
"""A step of diffusion on a grid: a stencil of five points."""

import numpy as np

from nativeops.declare import Array, Float, op


@op(kernel="stencil.h")
def stencil(x: Float[Array, "*b h w"], *, rate: float = 0.25) -> Float[Array, "*b h w"]:
    """Each cell gives the share ``rate`` of its difference to each of its four neighbours.

    ``out[i, j] = x[i, j] + rate · (x[i-1, j] + x[i+1, j] + x[i, j-1] + x[i, j+1] - 4 x[i, j])``;
    beyond the border the grid is 0.

    Gradient: the op itself, as a stencil that looks the same to all sides is a symmetric matrix.
    Cost: O(h·w) time; no memory beyond the result.
    Same as: ``scipy.ndimage.convolve(x, [[0, r, 0], [r, 1 - 4 * r, r], [0, r, 0]],
    mode="constant")`` of each grid, with ``r = rate``.

    >>> stencil(np.array([[0.0, 0.0, 0.0], [0.0, 8.0, 0.0], [0.0, 0.0, 0.0]]))
    array([[0., 2., 0.],
           [2., 0., 2.],
           [0., 2., 0.]])
    """
    around = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(1, 1), (1, 1)])
    rows, columns = around[..., :, 1:-1], around[..., 1:-1, :]
    neighbours = rows[..., :-2, :] + rows[..., 2:, :] + columns[..., :-2] + columns[..., 2:]
    return x + rate * (neighbours - 4 * x)


@stencil.gradient
def _(d_out, rate):
    return stencil(d_out, rate=rate)
