# SPDX-License-Identifier: Apache-2.0
"""Results that only a gradient rule reads: a derivative that would go through one is an error.

TensorFlow fills in zeros for what does not arrive at an op, so that the op cannot tell.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe

from nativeops.call import Op
from nativeops.errors import GradientError
from nativeops.signature import ArraySpec

_possible_gradients = pywrap_tfe.TFE_Py_TapeSetPossibleGradientTypes


class Kept:
    """The outputs of an op that no derivative goes through."""

    def __init__(self, op: Op[Any], floats: Sequence[int]) -> None:
        self.op = op
        specs = {i: op.signature.outputs[i] for i in floats}
        self.specs = {i: spec for i, spec in specs.items() if op.stops_at(spec)}

    def record(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Let tapes refuse, if there may be a second derivative: each output for itself."""
        if not self.specs or _possible_gradients(inputs) < 2:
            return
        for i, spec in self.specs.items():
            refuse = self._refusal(spec)
            pywrap_tfe.TFE_Py_TapeSetRecordOperation(
                self.op.name, [outputs[i]], list(inputs), refuse, refuse
            )

    def stopped(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Those among what a rule is given, for a graph that may be differentiated later."""
        if not self.specs or tf.executing_eagerly():
            return {}
        stopped = {}
        for spec in self.specs.values():
            if spec.name in known:
                stopped[spec.name] = same = tf.identity(known[spec.name])
                same.op._gradient_function = self._refusal(spec)
        return stopped

    def _refusal(self, spec: ArraySpec) -> Callable[..., Any]:
        def refuse(*_: Any) -> None:
            raise GradientError(self.op.not_through(spec.name))

        return refuse
