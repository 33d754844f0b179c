# SPDX-License-Identifier: Apache-2.0
"""Builders of automata: what they build, what they refuse, and pictures."""

import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from nativeops import automata, fast_baum_welch, fsa_loss
from nativeops.errors import RangeError
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
        ([[(0, 1, "1")]], {}, "label '1' of sequence 0 is no integer"),
        ([[(0, 2**31, 1)]], {}, "state 2147483648 of sequence 0 is no integer"),
        ([[(0, 1, 1)]], {"given": "costs"}, "`given` must be 'probability' or 'cost', but is 'c"),
        ([[(0, -1, 2)]], {}, "state -1 of sequence 0 is no integer"),
        ([[(0, 1, 2, math.nan)]], {"given": "cost"}, "has the cost nan"),
        ([[], []], {"starts": [0]}, "there are 2 sequences, but 1 starts and 2 maps of ends"),
        ([[(0, 1, 2)]], {"ends": [{1: -0.5}]}, "end 1 of sequence 0 has the weight -0.5"),
    ],
)
def test_arcs_that_mean_nothing_are_refused(arcs, options, text: str) -> None:
    with pytest.raises(RangeError, match=f"^from_arcs: .*{text}"):
        automata.from_arcs(arcs, **options)


@pytest.mark.parametrize("labels", [[[1.7, 2]], [["1", 2]], [[math.nan]], [[2**31]], [[-1]]])
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
    with pytest.raises(RangeError, match="`weights` has NaN"):
        automata.validate(made._replace(weights=np.full_like(made.weights, np.nan)), 3)
    foreign = made._replace(start_end_states=np.array([[0, 1], *made.start_end_states[1:]]))
    with pytest.raises(RangeError, match="the start of sequence 1, state 1, belongs to sequence 0"):
        automata.validate(foreign, 3)
    shared = made._replace(edges=np.where(made.edges == 9, 0, made.edges))
    with pytest.raises(RangeError, match="state 0 belongs to the sequences 0 and 1"):
        automata.validate(shared, 3)


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
