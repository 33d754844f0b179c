# SPDX-License-Identifier: Apache-2.0
"""A layer in both directions is the layer twice: to the last bit, at any size, for any threads."""

from typing import Any

import numpy as np
import pytest

from nativeops import get_num_threads, set_num_threads
from nativeops.errors import RangeError, ShapeError
from nativeops.registry import find

LAYERS = ["rnn_layer", "gru_layer", "lstm_layer", "lstm_projected_layer"]
# Computed at once by two threads, and too large for that: one direction after the other.
SIZES = {"short": {"t": 40, "b": 2, "i": 9, "h": 17}, "long": {"t": 6, "b": 40, "i": 70, "h": 96}}


def _example(name: str, size: str) -> tuple[Any, dict[str, Any]]:
    both = find(f"bidirectional_{name}")
    given = SIZES[size] | ({"p": 11} if "projected" in name else {})
    arrays = both.make_example(np.random.default_rng(3), given)
    floats = {name: a.astype(np.float32) for name, a in arrays.items() if name != "lengths"}
    return both, floats | {"lengths": arrays["lengths"]}


def _of(op: Any, arrays: dict[str, Any], second: bool) -> dict[str, Any]:
    """What the layer in one direction gets of what that in both does."""
    one = op.twice.layer
    part = {s.name: arrays[op.twice.names(s.name)[second]] for s in one.signature.inputs}
    for name in {*op.twice.joined} & part.keys():
        part[name] = np.split(part[name], 2, axis=-1)[second]
    return part


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", LAYERS)
def test_both_directions_have_the_bits_of_each(name: str, size: str, threads: int) -> None:
    both, arrays = _example(name, size)
    grad = find(f"{both.name}_grad")
    results = [spec.name for spec in both.signature.outputs]
    before = get_num_threads()
    set_num_threads(threads)
    try:
        made = both.only(results)(**arrays)._asdict()
        known = arrays | made
        known |= {f"d_{name}": np.sin(array) for name, array in made.items()}
        grads = grad(**{s.name: known[s.name] for s in grad.signature.inputs})._asdict()
    finally:
        set_num_threads(before)
    for op, inputs, found in ((both, arrays, made), (grad, known, grads)):
        one = op.twice.layer
        wanted = [spec.name for spec in one.signature.outputs]
        parts = [
            one.only(wanted)(**_of(op, inputs, second), reverse=second) for second in (False, True)
        ]
        for field in wanted:
            first, second = (getattr(part, field) for part in parts)
            if field in op.twice.joined:
                assert np.array_equal(found[field], np.concatenate([first, second], axis=-1))
            elif field in op.twice.shared:
                assert np.array_equal(found[field], first + second)
            else:
                assert np.array_equal(found[field], first)
                assert np.array_equal(found[f"{field}_reverse"], second)


@pytest.mark.parametrize("name", LAYERS)
def test_only_what_is_wanted_is_made(name: str) -> None:
    both, arrays = _example(name, "short")
    grad = find(f"{both.name}_grad")
    made = both.only([spec.name for spec in both.signature.outputs])(**arrays)._asdict()
    known = arrays | made | {f"d_{name}": np.cos(array) for name, array in made.items()}
    given = {s.name: known[s.name] for s in grad.signature.inputs}
    every = grad(**given)
    some = grad.only(["d_w_hh_reverse", "d_h_0"])(**given)
    assert some.d_x is None
    assert some.d_w_hh is None
    assert np.array_equal(some.d_w_hh_reverse, every.d_w_hh_reverse)
    assert np.array_equal(some.d_h_0, every.d_h_0)


def test_mistakes_name_the_direction() -> None:
    both, arrays = _example("gru_layer", "short")
    with pytest.raises(ShapeError, match="`w_hh_reverse`"):
        both(**arrays | {"w_hh_reverse": arrays["w_hh_reverse"][:, :-1]})
    with pytest.raises(RangeError, match=r"`lengths\[0\]`"):
        both(**arrays | {"lengths": arrays["lengths"] + 41})


@pytest.mark.parametrize("name", ["bidirectional_rnn_layer", "two_rnn_layers"])
def test_a_result_can_be_pickled(name: str) -> None:
    import pickle

    both = find(name)
    made = both(**both.make_example(np.random.default_rng(3), SIZES["short"]))
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is type(made)
    assert np.array_equal(again.output, made.output)
    assert pickle.loads(pickle.dumps(both)) is both
