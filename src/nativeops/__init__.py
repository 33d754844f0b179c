# SPDX-License-Identifier: Apache-2.0
"""Fused native operations for NumPy, PyTorch, JAX and TensorFlow, each written once."""

from nativeops import frameworks
from nativeops.errors import NativeOpsError
from nativeops.layers.accelerate import accelerate
from nativeops.layers.stack import gru, lstm, rnn
from nativeops.library import get_num_threads, set_num_threads
from nativeops.ops.chunk import chunk, chunk_view, unchunk
from nativeops.ops.dropout import dropout
from nativeops.ops.gru import gru_layer
from nativeops.ops.lstm import lstm_layer
from nativeops.ops.pairwise_l1 import pairwise_l1
from nativeops.ops.pairwise_lp import pairwise_lp
from nativeops.ops.rnn import rnn_layer
from nativeops.ops.sparse import (
    max_and_argmax_sparse,
    sparse_to_dense,
    subtensor_batched_index,
)
from nativeops.ops.sparse_cross_entropy import cross_entropy_softmax_and_gradient_sparse

__all__ = [
    "NativeOpsError",
    "accelerate",
    "chunk",
    "chunk_view",
    "cross_entropy_softmax_and_gradient_sparse",
    "dropout",
    "get_num_threads",
    "gru",
    "gru_layer",
    "lstm",
    "lstm_layer",
    "max_and_argmax_sparse",
    "pairwise_l1",
    "pairwise_lp",
    "rnn",
    "rnn_layer",
    "set_num_threads",
    "sparse_to_dense",
    "subtensor_batched_index",
    "unchunk",
]


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata  # only when asked: it costs more than all else in this file

    try:
        return metadata.version(__name__)
    except metadata.PackageNotFoundError:
        return "0+unknown"  # sources that were built but not installed


frameworks.load_imported()
