# SPDX-License-Identifier: Apache-2.0
"""Fused native operations for NumPy, PyTorch, JAX and TensorFlow, each written once."""

from typing import TYPE_CHECKING, Any

from nativeops import frameworks
from nativeops.errors import NativeOpsError
from nativeops.layers.accelerate import accelerate
from nativeops.layers.ctc import ctc_greedy_decode, ctc_loss
from nativeops.layers.decoding import ctc_beam_search
from nativeops.layers.stack import gru, lstm, rnn
from nativeops.layers.transducer import rnnt_loss
from nativeops.library import empty_cache, get_num_threads, set_num_threads
from nativeops.ops.chunk import chunk, chunk_view, unchunk
from nativeops.ops.ctc_beam_search import ctc_prefixes
from nativeops.ops.ctc_fsa import ctc_fsa, ctc_fsa_packed
from nativeops.ops.dropout import dropout
from nativeops.ops.edit_alignment import edit_alignment
from nativeops.ops.edit_distance import edit_distance, pairwise_edit_distance
from nativeops.ops.error_rate import ErrorRate, error_rate
from nativeops.ops.fast_baum_welch import fast_baum_welch, fast_baum_welch_packed
from nativeops.ops.fast_viterbi import fast_viterbi
from nativeops.ops.forced_align import forced_align
from nativeops.ops.fsa_loss import fsa_loss
from nativeops.ops.gru import gru_layer
from nativeops.ops.lstm import lstm_layer
from nativeops.ops.lstm_projected import lstm_projected_layer
from nativeops.ops.native_lstm import lstm_low_mem, native_lstm2
from nativeops.ops.next_edit_distance import next_edit_distance_reduce, next_edit_distance_row
from nativeops.ops.optimal_completion import (
    ocd_targets,
    optimal_completion_edit_distance,
    optimal_completion_edit_distance_per_successor,
)
from nativeops.ops.pairwise_l1 import pairwise_l1
from nativeops.ops.pairwise_lp import pairwise_lp
from nativeops.ops.rnn import rnn_layer
from nativeops.ops.rnnt_loss import rnnt_costs
from nativeops.ops.segmental_loss import segmental_loss
from nativeops.ops.sparse import (
    max_and_argmax_sparse,
    sparse_to_dense,
    subtensor_batched_index,
)
from nativeops.ops.sparse_cross_entropy import cross_entropy_softmax_and_gradient_sparse
from nativeops.ops.two_d_lstm import two_d_lstm

__all__ = [
    "ErrorRate",
    "NativeOpsError",
    "accelerate",
    "automata",
    "chunk",
    "chunk_view",
    "cross_entropy_softmax_and_gradient_sparse",
    "ctc_beam_search",
    "ctc_fsa",
    "ctc_fsa_packed",
    "ctc_greedy_decode",
    "ctc_loss",
    "ctc_prefixes",
    "dropout",
    "edit_alignment",
    "edit_distance",
    "empty_cache",
    "error_rate",
    "fast_baum_welch",
    "fast_baum_welch_packed",
    "fast_viterbi",
    "forced_align",
    "fsa_loss",
    "get_num_threads",
    "gru",
    "gru_layer",
    "lstm",
    "lstm_layer",
    "lstm_low_mem",
    "lstm_projected_layer",
    "max_and_argmax_sparse",
    "native_lstm2",
    "next_edit_distance_reduce",
    "next_edit_distance_row",
    "ocd_targets",
    "optimal_completion_edit_distance",
    "optimal_completion_edit_distance_per_successor",
    "pairwise_edit_distance",
    "pairwise_l1",
    "pairwise_lp",
    "rnn",
    "rnn_layer",
    "rnnt_costs",
    "rnnt_loss",
    "segmental_loss",
    "set_num_threads",
    "sparse_to_dense",
    "subtensor_batched_index",
    "two_d_lstm",
    "unchunk",
]


if TYPE_CHECKING:
    from nativeops import automata


def __getattr__(name: str) -> Any:
    if name == "automata":  # not before it is asked for: it needs more of NumPy than all the others
        from importlib import import_module

        return import_module("nativeops.automata")
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import metadata  # only when asked: it costs more than all else in this file

    try:
        return metadata.version(__name__)
    except metadata.PackageNotFoundError:
        return "0+unknown"  # sources that were built but not installed


frameworks.load_imported()
