# SPDX-License-Identifier: Apache-2.0
"""Fused native operations for NumPy, PyTorch, JAX and TensorFlow, each written once."""

from nativeops import frameworks
from nativeops.errors import NativeOpsError
from nativeops.layers.accelerate import accelerate
from nativeops.layers.ctc import ctc_loss
from nativeops.layers.decoding import ctc_beam_search
from nativeops.layers.stack import gru, lstm, rnn
from nativeops.layers.transducer import rnnt_loss
from nativeops.library import get_num_threads, set_num_threads
from nativeops.ops.ctc_beam_search import ctc_prefixes
from nativeops.ops.ctc_fsa import ctc_fsa, ctc_fsa_packed
from nativeops.ops.dropout import dropout
from nativeops.ops.fast_baum_welch import fast_baum_welch, fast_baum_welch_packed
from nativeops.ops.fast_viterbi import fast_viterbi
from nativeops.ops.forced_align import forced_align
from nativeops.ops.fsa_loss import fsa_loss
from nativeops.ops.gru import gru_layer
from nativeops.ops.lstm import lstm_layer
from nativeops.ops.pairwise_l1 import pairwise_l1
from nativeops.ops.pairwise_lp import pairwise_lp
from nativeops.ops.rnn import rnn_layer
from nativeops.ops.rnnt_loss import rnnt_costs

__all__ = [
    "NativeOpsError",
    "accelerate",
    "ctc_beam_search",
    "ctc_fsa",
    "ctc_fsa_packed",
    "ctc_loss",
    "ctc_prefixes",
    "dropout",
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
    "pairwise_l1",
    "pairwise_lp",
    "rnn",
    "rnn_layer",
    "rnnt_costs",
    "rnnt_loss",
    "set_num_threads",
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
