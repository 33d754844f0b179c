# SPDX-License-Identifier: Apache-2.0
"""gru_layer against its rivals."""

from nativeops.bench.recurrent import benches
from nativeops.bench.recurrent_rivals import Layer
from nativeops.ops.gru import gru_layer

BENCHES = benches(Layer("gru", gru_layer))
