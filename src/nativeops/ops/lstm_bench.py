# SPDX-License-Identifier: Apache-2.0
"""lstm_layer against its rivals."""

from nativeops.bench.recurrent import benches
from nativeops.bench.recurrent_rivals import Layer
from nativeops.ops.lstm import lstm_layer

BENCHES = benches(Layer("lstm", lstm_layer))
