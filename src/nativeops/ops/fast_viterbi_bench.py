# SPDX-License-Identifier: Apache-2.0
"""fast_viterbi on the automata of CTC.

RETURNN compiles its op when it is first called; what that took on the first machine is in
benchmarks/NOTES.md.
"""

from typing import Any

import nativeops
from nativeops.bench.case import Bench
from nativeops.bench.forms import ours_in, torch_rival
from nativeops.ops.forced_align_bench import SIZES, path_scores, sequences, torch_steps


def ours(scores: Any, targets: Any) -> Any:
    """The automata are made in each call."""
    return nativeops.fast_viterbi(scores, *nativeops.ctc_fsa(targets)).scores


BENCHES = [
    Bench(
        "best path",
        "the best path of each sequence through the automaton of its targets",
        sizes=SIZES,
        inputs=sequences,
        expected=path_scores,
        seconds=3,
        rivals=[
            *ours_in(ours, "numpy", "torch"),
            torch_rival(torch_steps),
        ],
    ),
]
