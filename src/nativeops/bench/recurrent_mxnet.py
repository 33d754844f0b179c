# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers in MXNet, which needs the NumPy of its time and thus runs aside."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nativeops.bench.aside import prepare_aside
from nativeops.bench.case import NdArray, Rival

PROGRAM = Path(__file__).with_name("mxnet_program.py")


def mxnet_layers(
    word: str,
    *,
    training: bool,
    both: bool = False,
    arrays: Callable[..., Sequence[NdArray]] | None = None,
) -> list[Rival]:
    """Its fused layer, and a graph of its cells.

    Args:
        word: ``lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``.
        both: In both directions.
        arrays: From the arrays of the case to what the program takes; by default they are that.
    """

    def rival(name: str, *, cells: bool) -> Rival:
        job = {"kind": word, "both": both, "cells": cells, "training": training}

        def prepare(*given: NdArray) -> Callable[[], Any]:
            own = arrays(*given) if arrays else given
            results = len(own) - 1 if training else 1  # what flows back has no gradient
            return prepare_aside("mxnet", PROGRAM, json.dumps(job), own, results)

        return Rival(name, prepare, "mxnet", "numpy", aside=True)

    return [rival("mxnet", cells=False), rival("mxnet cells", cells=True)]
