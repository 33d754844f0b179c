# SPDX-License-Identifier: Apache-2.0
"""Builders of automata: what they build, what they refuse, and pictures."""

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nativeops import automata, fast_baum_welch, fast_viterbi, fsa_loss
from nativeops.errors import ArgumentError, DtypeError, NativeOpsError, RangeError, ShapeError
from nativeops.ops import _paths
from nativeops.testing.paths import all_paths


def labels_of(made: automata.Automata, b: int, frames: int) -> dict[tuple[int, ...], float]:
    """The label sequences of all paths with their probabilities."""
    start, end = made.start_end_states[:, b].tolist()
    ends = {end: 0.0}
    if made.end_states is not None:
        rows = zip(*made.end_states.tolist(), made.end_weights.tolist(), strict=True)
        ends = {s: w for q, s, w in rows if q == b}
    found: dict[tuple[int, ...], float] = {}
    for path, cost in all_paths(made.edges, b, start, ends, frames):
        said = tuple(made.edges[2, list(path)].tolist())
        share = math.exp(-cost - made.weights[list(path)].sum())
        found[said] = found.get(said, 0) + share
    return found


def test_hmm_passes_its_labels_in_order() -> None:
    made = automata.hmm([[5, 6, 7], [8]], loop=0.5, forward=0.25, skip=0.125, exit=0.0625)
    assert labels_of(made, 0, 2) == pytest.approx({(5, 7): 0.125 * 0.0625})
    assert labels_of(made, 0, 3) == pytest.approx(
        {(5, 6, 7): 0.25**2 / 16, (5, 5, 7): 0.5 * 0.125 / 16, (5, 7, 7): 0.125 * 0.5 / 16}
    )
    assert labels_of(made, 1, 3) == pytest.approx({(8, 8, 8): 0.25 / 16})
    assert labels_of(made, 1, 0) == {}
    assert labels_of(automata.hmm([[1, 2]], loop=None), 0, 3) == {}


@pytest.mark.parametrize("given", ["probability", "cost"])
@pytest.mark.parametrize("loop", [None, 0.3, 0.0])
@pytest.mark.parametrize("skip", [None, 0.125])
@pytest.mark.parametrize("exit", [None, 0.7])
def test_hmm_has_the_edges_of_its_arcs_in_their_order(given, loop, skip, exit) -> None:
    lists = [[5, 6, 7, 5], [], [8], [1, 2]]
    arcs = [
        [(0, 1, label, None) for label in own[:1]]
        + [
            (i + 1, i + size + 1, own[i + size], weight)
            for i in range(len(own))
            for size, weight in enumerate((loop, 0.4, skip))
            if weight is not None and i + size < len(own)
        ]
        for own in lists
    ]
    ends = [{len(own): exit} for own in lists]
    made = automata.hmm(lists, loop=loop, forward=0.4, skip=skip, exit=exit, given=given)
    for mine, other in zip(made, automata.from_arcs(arcs, 0, ends, given=given), strict=True):
        np.testing.assert_array_equal(mine, other)
        assert mine.dtype == other.dtype
        assert mine.flags.c_contiguous


def test_hmm_of_no_sequence_has_no_edge() -> None:
    assert [array.shape for array in automata.hmm([])] == [(4, 0), (0,), (2, 0), (2, 0), (0,)]


def test_costs_are_minus_the_logarithm_of_probabilities() -> None:
    p = automata.hmm([[1, 2]], loop=0.3, forward=0.7, exit=0.2)
    costs = [-math.log(x) for x in (0.3, 0.7, 0.2)]
    c = automata.hmm([[1, 2]], loop=costs[0], forward=costs[1], exit=costs[2], given="cost")
    for mine, other in zip(p, c, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-7)


def test_loss_of_a_model_that_says_everything_is_its_own_probability() -> None:
    made = automata.hmm([[0, 1]], loop=0.5, forward=0.5)
    log_probs = np.zeros((4, 1, 2), "float32")
    loss = fsa_loss(log_probs, **made.arguments(), normalized=True)
    np.testing.assert_allclose(loss, -math.log(3 * 0.125), rtol=1e-6)


def test_automata_from_arcs_have_their_own_states_each() -> None:
    arcs = [[(0, 1, 3, 0.5), (0, 0, 2, 0.5)], [(1, 0, 4)], []]
    made = automata.from_arcs(arcs, [0, 1, 0], [{1: 0.5, 0: 1.0}, {0: None}, {0: None}])
    assert made.edges.tolist() == [[0, 0, 3], [1, 0, 2], [3, 2, 4], [0, 0, 1]]
    assert made.start_end_states[0].tolist() == [0, 3, 4]
    assert labels_of(made, 0, 1) == pytest.approx({(3,): 0.25, (2,): 0.5})
    assert labels_of(made, 1, 1) == {(4,): 1}
    assert labels_of(made, 2, 0) == {(): 1}
    found = fast_baum_welch(np.zeros((1, 3, 5), "float32"), **made.arguments())
    np.testing.assert_allclose(found.obs_scores[0, :2], [-math.log(0.75), 0], atol=1e-6)
    assert np.isposinf(found.obs_scores[0, 2])


def test_ctc_takes_lists_of_any_lengths() -> None:
    made = automata.ctc([[1, 2], [], [3]])
    assert labels_of(made, 0, 2) == {(1, 2): 1}
    assert labels_of(made, 1, 2) == {(0, 0): 1}
    assert sorted(labels_of(made, 2, 2)) == [(0, 3), (3, 0), (3, 3)]
    assert automata.ctc([]).batch == 0
    assert automata.ctc([[1, 1]], label_loop=False).edges.shape == (4, 15)


@pytest.mark.parametrize(
    ("arcs", "options", "text"),
    [
        (
            [[(0, 1, 2, 1.5)]],
            {},
            "arc .* of sequence 0 has the weight 1.5, which is no probability",
        ),
        ([[(0, 1, -2)]], {}, "label -2 of sequence 0 is no integer from 0 to 2147483647"),
        ([[(0, 1, 1.5)]], {}, "label 1.5 of sequence 0 is no integer"),
        ([[(0, 1, 1.0)]], {}, "label 1.0 of sequence 0 is no integer"),
        ([[(0, 1, "1")]], {}, "label '1' of sequence 0 is no integer"),
        ([[(0, 2**31, 1)]], {}, "state 2147483648 of sequence 0 is no integer"),
        ([[(0, 1, 1)]], {"given": "costs"}, "`given` must be 'probability' or 'cost', but is 'c"),
        ([[(0, -1, 2)]], {}, "state -1 of sequence 0 is no integer"),
        ([[(0, 1, 2, math.nan)]], {"given": "cost"}, "has the cost nan"),
        ([[], []], {"starts": [0]}, "there are 2 sequences, but 1 starts and 2 maps of ends"),
        ([[(0, 1, 2)]], {"ends": [{1: -0.5}]}, "end 1 of sequence 0 has the weight -0.5"),
        ([[(0, 1, 2, "a")]], {}, "arc .* of sequence 0 has the weight a, which is no probability"),
        (
            [[(0, 1, 2, 1e39)]],
            {"given": "cost"},
            r"cost 1e\+39, but must have one from -3.40282e\+38 to 3.40282e\+38, or inf",
        ),
        ([[(0, 1, 2)]], {"ends": [{1: -1e39}], "given": "cost"}, r"end 1 .* has the cost -1e\+39"),
        (
            [[(0, 2**31 - 1, 1)], [(0, 1, 1)]],
            {},
            "state 1 of sequence 1 becomes 2147483649, .* but an int32 holds at most 2147483647",
        ),
    ],
)
def test_arcs_that_mean_nothing_are_refused(arcs, options, text: str) -> None:
    with pytest.raises(RangeError, match=f"^from_arcs: .*{text}"):
        automata.from_arcs(arcs, **options)


def test_one_start_of_all_may_be_an_array() -> None:
    arcs = [[(0, 1, 1), (1, 0, 2)]] * 2
    for one in (np.array(1), np.int64(1)):
        assert automata.from_arcs(arcs, one).start_end_states[0].tolist() == [1, 3]


@pytest.mark.filterwarnings("error")
def test_the_cost_of_no_edge_is_infinite() -> None:
    made = automata.from_arcs([[(0, 1, 2, math.inf), (0, 1, 2, 3e38)]], given="cost")
    np.testing.assert_array_equal(made.weights, np.array([math.inf, 3e38], np.float32))


@pytest.mark.parametrize(
    ("arcs", "ends", "text"),
    [
        ([[(0, 1)]], None, r"`arcs\[0\]\[0\]` is \(0, 1\), but must be \(source, target, label\)"),
        ([[], [(0, 1, 2, 3, 4)]], None, r"`arcs\[1\]\[0\]` is \(0, 1, 2, 3, 4\), but must be"),
        ([(0, 1, 2)], None, r"`arcs\[0\]\[0\]` is 0, but must be"),
        ([5], None, r"`arcs\[0\]` is 5, but must be a list of arcs"),
        (5, None, "`arcs` is 5, but must be a list of lists"),
        ([[]], {1: 0.5}, r"`ends\[0\]` is 1, but must be a map from states to weights"),
        ([[]], 3, "`ends` is 3, but must be a list of maps"),
    ],
)
def test_lists_that_are_none_of_arcs_are_refused(arcs, ends, text: str) -> None:
    with pytest.raises(ArgumentError, match=f"^from_arcs: {text}"):
        automata.from_arcs(arcs, ends=ends)


@pytest.mark.parametrize(
    ("make", "name"), [(automata.ctc, "targets"), (automata.hmm, "labels")], ids=["ctc", "hmm"]
)
def test_labels_that_are_no_list_of_lists_are_refused(make, name: str) -> None:
    text = rf"^{make.__name__}: `{name}\[0\]` is 1, but must be a list of labels\."
    for flat in ([1, 2], np.array([1, 2])):
        with pytest.raises(ArgumentError, match=rf"{text}\n  hint: .* `\[{name}\]`"):
            make(flat)
    with pytest.raises(ArgumentError, match=f"^{make.__name__}: `{name}` is 5, but must be a list"):
        make(5)


def test_errors_name_the_builder_that_was_called() -> None:
    with pytest.raises(RangeError, match=r"^hmm: `loop` has the weight 2, which is no probability"):
        automata.hmm([[1]], loop=2)
    with pytest.raises(RangeError, match=r"^hmm: `exit` has the cost nan"):
        automata.hmm([[1]], exit=math.nan, given="cost")
    with pytest.raises(RangeError, match=r"^hmm: `given` must be 'probability' or 'cost'"):
        automata.hmm([[1]], given="costs")
    with pytest.raises(RangeError, match=r"^hmm: label -1 of sequence 1"):
        automata.hmm([[1], [-1]])
    with pytest.raises(RangeError, match=r"^ctc: `targets\[1\]\[2\]` is 3, but that is `blank`"):
        automata.ctc([[1], [1, 2, 3]], blank=3)
    with pytest.raises(RangeError, match=r"^ctc: `blank` is -1, but must be an integer from 0"):
        automata.ctc([[1]], blank=-1)
    with pytest.raises(RangeError, match=r"^ctc: `blank` is 0\.0, but must be an integer from 0"):
        automata.ctc([[1]], blank=0.0)
    with pytest.raises(ArgumentError, match=r"^draw: `automata` is of the type int, without `edg"):
        automata.draw(3)


@pytest.mark.parametrize(
    "labels", [[[1.7, 2]], [[1.0, 2]], [["1", 2]], [[math.nan]], [[2**31]], [[-1]]]
)
@pytest.mark.parametrize("make", [automata.ctc, automata.hmm])
def test_labels_that_are_no_classes_are_refused(make, labels) -> None:
    with pytest.raises(RangeError, match=r"label .* of sequence 0 is no integer from 0 to"):
        make(labels)


@pytest.mark.parametrize("make", [automata.ctc, automata.hmm])
def test_labels_may_be_arrays(make) -> None:
    lists, arrays = make([[1, 2], [2, 1]]), make(np.array([[1, 2], [2, 1]]))
    mixed = make([np.array([1, 2]), [2, 1]])
    for field, one, other in zip(lists._fields, arrays, mixed, strict=True):
        np.testing.assert_array_equal(one, getattr(lists, field))
        np.testing.assert_array_equal(other, getattr(lists, field))


def test_validate_says_what_is_wrong() -> None:
    made = automata.ctc([[1, 2, 2], [1]])
    automata.validate(made, 3, [4, 1])
    with pytest.raises(RangeError, match="validate: sequence 0 has no path of 3 frames"):
        automata.validate(made, 3, [3, 1])
    with pytest.raises(RangeError, match="is 2, but must be from 0 to 1, the classes"):
        automata.validate(made, 2)
    foreign = made._replace(start_end_states=np.array([[0, 1], made.start_end_states[1]], np.int32))
    with pytest.raises(RangeError, match="the start of sequence 1, state 1, belongs to sequence 0"):
        automata.validate(foreign, 3)
    shared = made._replace(edges=np.where(made.edges == 9, 0, made.edges))
    with pytest.raises(RangeError, match="state 0 belongs to the sequences 0 and 1"):
        automata.validate(shared, 3)


def with_weight(made: automata.Automata, name: str, weight: float) -> automata.Automata:
    """The automata with another weight of the last edge or end."""
    array = getattr(made, name).copy()
    array[-1] = weight
    return made._replace(**{name: array})


@pytest.mark.parametrize("name", ["weights", "end_weights"])
@pytest.mark.parametrize("weight", [-math.inf, math.nan, 3e6, -3e6])
def test_validate_refuses_what_sums_do_not_hold(name: str, weight: float) -> None:
    made = automata.hmm([[0], [1]], loop=None)
    automata.validate(with_weight(made, name, 2.9e6), 2, [1, 1])
    wrong = with_weight(made, name, weight)
    place = len(getattr(made, name)) - 1
    text = rf"^validate: `{name}\[{place}\]`, of sequence 1, is {float(weight)}, but must be from "
    for lengths in (None, [1, 1]):
        with pytest.raises(RangeError, match=text + r"-2.9e\+06 to 2.9e\+06, what .* in float32"):
            automata.validate(wrong, 2, lengths)
    scores = np.zeros((1, 2, 2), np.float32)
    assert not np.isfinite(fsa_loss(scores, **wrong.arguments(), normalized=True)[1])

    made = automata.Automata(**made.arguments(np.float64))
    if np.isfinite(weight):
        wider = with_weight(made, name, weight)
        automata.validate(wider, 2, [1, 1])
        loss = fsa_loss(scores.astype(np.float64), **wider.arguments(), normalized=True)
        np.testing.assert_allclose(loss, [0, weight])
        weight *= 1e10
    with pytest.raises(RangeError, match=r"-1e\+15 to 1e\+15, what sums in float64 hold"):
        automata.validate(with_weight(made, name, weight), 2)


def test_an_infinite_cost_is_that_of_no_edge_and_no_end() -> None:
    made = automata.hmm([[0], [1]])
    foreign = np.concatenate([made.end_states, [[0, 7], [3, -1]]], 1).astype(np.int32)
    costs = np.append(made.end_weights, np.full(2, np.inf, np.float32))
    automata.validate(made._replace(end_states=foreign, end_weights=costs), 2, [1, 4])
    made = with_weight(made, "end_weights", np.inf)
    automata.validate(made, 2)
    with pytest.raises(RangeError, match="sequence 1 has no path of 1 frames"):
        automata.validate(made, 2, [1, 1])
    unused = np.full(2, np.nan, np.float32)
    automata.validate(made._replace(end_states=None, end_weights=unused), 2, [1, 1])


def test_validate_refuses_an_end_that_is_another_sequences_state() -> None:
    made = automata.hmm([[0, 1], [1]])
    foreign = made._replace(end_states=np.array([[0, 1], [2, 2]], np.int32))
    with pytest.raises(RangeError, match="the end of sequence 1, state 2, belongs to sequence 0"):
        automata.validate(foreign, 2)


@pytest.mark.parametrize(
    ("name", "place", "value", "text"),
    [
        ("edges", (0, 1), -1, r"`edges\[0, 1\]` is -1, but must be from 0 to 2147483647, a state"),
        ("edges", (3, 2), 2, r"`edges\[3, 2\]` is 2, but must be from 0 to 1, a sequence of"),
        ("start_end_states", (0, 1), -5, r"`start_end_states\[0, 1\]` is -5, but must be from 0"),
        ("end_states", (0, 1), 4, r"`end_states\[0, 1\]` is 4, but must be from 0 to 1, a seq"),
        ("end_states", (1, 0), -1, r"`end_states\[1, 0\]` is -1, but must be from 0 to 2147483647"),
    ],
)
def test_validate_refuses_numbers_out_of_range(name: str, place, value: int, text: str) -> None:
    made = automata.hmm([[0, 1], [1]])
    getattr(made, name)[place] = value
    with pytest.raises(RangeError, match=f"^validate: {text}"):
        automata.validate(made, 2)
    with pytest.raises(RangeError, match=text.partition(",")[0]):
        fast_viterbi(np.zeros((1, 2, 2), np.float32), **made.arguments())


@pytest.mark.parametrize(
    ("n_classes", "lengths", "kind", "text"),
    [
        (2, [1.7, 1], RangeError, r"`lengths\[0\]` is 1.7, but must be an integer from 0 to 2147"),
        (2, np.ones(2), RangeError, r"`lengths\[0\]` is 1.0, but must be an integer"),
        (2, [1, -1], RangeError, r"`lengths\[1\]` is -1, but must be an integer from 0 to 2147"),
        (2, [2**32 + 1, 1], RangeError, r"`lengths\[0\]` is 4294967297, but must be an integer"),
        (2, 3, ArgumentError, "`lengths` is 3, but must be a list of integers"),
        (2, [3], ShapeError, "axis `b` is 2 in `start_end_states` but 1 in `lengths`"),
        (-1, None, RangeError, "`n_classes` is -1, but must be an integer from 0 to 2147483647"),
        (1.5, None, RangeError, "`n_classes` is 1.5, but must be an integer"),
        (0, None, RangeError, r"`edges\[2, 0\]` is 0, but there is none, the classes of"),
    ],
)
def test_validate_refuses_other_arguments_by_name(n_classes, lengths, kind, text: str) -> None:
    with pytest.raises(kind, match=f"^validate: {text}"):
        automata.validate(automata.hmm([[0, 1], [1]]), n_classes, lengths)


def test_errors_of_validate_name_what_it_was_given() -> None:
    made = automata.hmm([[0, 1], [1]])
    wrong = [
        (made._replace(edges=made.edges[:3]), ShapeError, "must be 4 but is 3 in `edges`"),
        (made._replace(weights=made.weights[:2]), ShapeError, "is 6 in `edges` but 2 in `weights`"),
        (
            made._replace(edges=made.edges.astype(np.int64)),
            DtypeError,
            "must be int32, but is int64",
        ),
        (
            made._replace(weights=made.weights.astype(np.float64)),
            DtypeError,
            "`end_weights` is flo",
        ),
        (made.arguments(), ArgumentError, "`automata` is of the type dict, without `edges`"),
    ]
    for given, kind, text in wrong:
        with pytest.raises(NativeOpsError, match=f"^validate: .*{text}") as caught:
            automata.validate(given, 2, [2, 1])
        assert isinstance(caught.value, kind)
        assert "am_scores" not in str(caught.value)


@pytest.mark.parametrize("seed", range(40))
def test_validate_finds_a_path_where_there_is_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    sizes = {"b": 5, "c": 2, "e": 18} | ({"m": 4} if seed % 2 else {})
    made = automata.Automata(**_paths.example(random, sizes)).arguments(np.float32)
    for frames in [*range(9), 50, 51, 52, 53]:
        scores = np.zeros((frames, 5, 2), np.float32)
        for b, best in enumerate(fast_viterbi(scores, **made).scores):
            # The others' edges become none, so that only this sequence can be without a path.
            alone = {**made, "lengths": [0] * 5}
            alone["lengths"][b] = frames
            found = fast_viterbi(scores, **alone).scores
            lacking = np.flatnonzero(found == -np.inf)
            assert (b in lacking) == (best == -np.inf)
            given, lengths = automata.Automata(**made), alone["lengths"]
            if len(lacking) == 0:
                automata.validate(given, 2, lengths)
                continue
            with pytest.raises(
                RangeError, match=f"^validate: sequence {lacking[0]} has no path of"
            ):
                automata.validate(given, 2, lengths)


def test_validate_follows_circles_of_any_length() -> None:
    circles = [[(i, (i + 1) % n, 0) for i in range(n)] for n in (2, 3, 7)]
    made = automata.from_arcs([*circles, [(0, 1, 0)]], ends=[{0: 1.0}] * 3 + [{1: 1.0}])
    automata.validate(made, 1, [2_000_000_000, 3 * 10**8, 7 * 10**8, 1])
    for b, length in enumerate([2_000_000_001, 3 * 10**8 + 2, 7 * 10**8 + 6, 2]):
        lengths = [2, 3, 7, 1]
        lengths[b] = length
        with pytest.raises(RangeError, match=f"sequence {b} has no path of {length} frames"):
            automata.validate(made, 1, lengths)


def test_weights_are_of_the_dtype_of_the_scores() -> None:
    made = automata.ctc([[1], [2, 1]])
    scores = np.zeros((5, 2, 4))
    loss = fsa_loss(scores, **made.arguments(np.float64))
    assert loss.dtype == np.float64
    np.testing.assert_allclose(
        loss, fsa_loss(scores.astype(np.float32), **made.arguments()), rtol=1e-6
    )
    automata.validate(made._replace(weights=made.weights.astype(np.float64)), 4, [5, 5])
    with pytest.raises(RangeError, match="sequence 1 has no path of 1 frames"):
        automata.validate(made._replace(weights=made.weights.astype(np.float64)), 4, [5, 1])
    torch = pytest.importorskip("torch")
    weights = torch.from_numpy(made.weights).bfloat16().requires_grad_()
    trained = made._replace(weights=weights)
    automata.validate(trained, 4, [5, 5])
    assert trained.arguments()["weights"] is weights


def test_validate_makes_no_scores() -> None:
    """Of 100 000 classes in 20 000 frames there would be 119 GiB."""
    automata.validate(automata.ctc([[1, 99_999]] * 16), 100_000, [20_000] * 16)


def test_picture_of_a_sequence_without_ends_of_its_own_has_that_of_the_batch() -> None:
    pytest.importorskip("graphviz")
    arcs = [[(0, 1, 1), (1, 1, 2)]] * 2
    made = automata.from_arcs(arcs, ends=[{1: 0.5}, {}])
    last = automata.draw(made, 1).source
    assert "3 [shape=doublecircle]" in last
    assert automata.draw(made, -1).source == last
    with pytest.raises(RangeError, match="`sequence` is 2, but there are 2 sequences"):
        automata.draw(made, 2)


def test_picture_shows_states_labels_and_costs() -> None:
    pytest.importorskip("graphviz")
    made = automata.hmm([[0, 1], [1]], loop=0.5, forward=0.5, exit=0.25)
    source = automata.draw(made, labels=["sil", "a"]).source
    assert '1 -> 2 [label="a / 0.693"]' in source
    assert "0 -> 1 [label=sil]" in source
    assert "2 [shape=doublecircle xlabel=1.39]" in source
    assert "start -> 0" in source
    assert "start -> 3" in automata.draw(made, 1).source
    assert "inf" not in automata.draw(automata.ctc([[1, 1]])).source


def test_picture_shows_names_as_they_are() -> None:
    pytest.importorskip("graphviz")
    made = automata.hmm([[0, 1, 2]], loop=None, forward=1.0)
    source = automata.draw(made, labels=["<s>", "\\n", 'ü"']).source
    for name in ('"<s>"', r'"\\n"', r'"ü\""'):  # which Graphviz reads as the label itself
        assert f"[label={name}]" in source
    assert "[label=7]" in automata.draw(automata.hmm([[0]]), labels={0: 7}).source


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"labels": ["a", "b"]}, "`labels` has no name for class 2"),
        ({"labels": {0: "a", 1: "b"}}, "`labels` has no name for class 2"),
        ({"sequence": "0"}, "`sequence` is '0', but there are 1 sequences"),
        ({"sequence": 0.0}, "`sequence` is 0.0, but there are 1 sequences"),
    ],
)
def test_picture_of_what_is_not_there_is_refused(options: Any, text: str) -> None:
    pytest.importorskip("graphviz")
    with pytest.raises(RangeError, match=f"draw: {text}"):
        automata.draw(automata.ctc([[1, 2]]), **options)


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_picture_is_written_to_a_file(tmp_path: Path) -> None:
    pytest.importorskip("graphviz")
    picture = automata.draw(automata.ctc([[1, 1, 2]]), labels=["blank", "a", "b"])
    text = Path(picture.render(tmp_path / "ctc", format="svg")).read_text()
    assert (
        text.count('class="node"') == 10
    )  # 2·3 + 3 states, and where the arrow to the first begins
    assert ">blank</text>" in text
    png = Path(picture.render(tmp_path / "ctc", format="png")).read_bytes()
    assert png.startswith(b"\x89PNG")
