# SPDX-License-Identifier: Apache-2.0
"""rnn_layer against its rivals."""

from nativeops.bench.recurrent import benches
from nativeops.bench.recurrent_rivals import Layer
from nativeops.ops.rnn import rnn_layer

BENCHES = benches(Layer("rnn", rnn_layer, "tanh"), also=[Layer("rnn", rnn_layer, "relu")])
