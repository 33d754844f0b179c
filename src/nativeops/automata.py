# SPDX-License-Identifier: Apache-2.0
"""Automata for `fast_baum_welch`, `fsa_loss` and `fast_viterbi`: building, checking, drawing them.

Everything here is NumPy and runs once per batch. An automaton says a class on each edge, takes an
edge in each frame, and has costs: -log of probabilities.

>>> made = nativeops.automata.hmm([[7, 8], [9]])
>>> made.edges.T.tolist()  # from a state, to a state, the class, the sequence
[[0, 1, 7, 0], [1, 1, 7, 0], [1, 2, 8, 0], [2, 2, 8, 0], [3, 4, 9, 1], [4, 4, 9, 1]]
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from nativeops.arrays import to_numpy
from nativeops.errors import RangeError, message
from nativeops.ops.ctc_fsa import ctc_fsa

Given = Literal["probability", "cost"]


class Arc(NamedTuple):
    """One edge: it leads from a state to a state, says a class, and has a weight."""

    source: int
    target: int
    label: int
    weight: float | None = None


class Automata(NamedTuple):
    """A batch of automata as the ops take them: ``fsa_loss(logits, **automata.arguments())``.

    For logits of another framework its arrays must first become that framework's, as in
    ``{name: torch.from_numpy(array) for name, array in automata.arguments().items()}``.
    """

    edges: NDArray[np.int32]
    weights: NDArray[np.float32]
    start_end_states: NDArray[np.int32]
    end_states: NDArray[np.int32] | None = None
    end_weights: NDArray[np.float32] | None = None

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return int(self.start_end_states.shape[1])

    def arguments(self, dtype: Any = None) -> dict[str, Any]:
        """All of it by name, without what is None: ``fast_baum_welch(scores, **a.arguments())``.

        Args:
            dtype: Of the weights, which must have that of the scores; as they are if left away.
        """
        given = {name: value for name, value in self._asdict().items() if value is not None}
        if dtype is not None:
            given |= {n: v.astype(dtype) for n, v in given.items() if n.endswith("weights")}
        return given


def ctc(targets: Sequence[Sequence[int]], *, blank: int = 0, label_loop: bool = True) -> Automata:
    """The automata of CTC for lists of labels of any lengths, by `ctc_fsa`."""
    for b, own in enumerate(targets):
        _check_counts("ctc", b, [], own)
    lengths = np.array([len(labels) for labels in targets], np.int32)
    padded = np.zeros((len(targets), max(lengths, default=0)), np.int64)
    for row, labels in zip(padded, targets, strict=True):
        row[: len(labels)] = labels
    return Automata(*map(np.asarray, ctc_fsa(padded, lengths, blank=blank, label_loop=label_loop)))


def from_arcs(
    arcs: Sequence[Iterable[tuple[Any, ...]]],
    starts: int | Sequence[int] = 0,
    ends: Sequence[Mapping[int, float | None]] | None = None,
    *,
    given: Given = "probability",
) -> Automata:
    """Automata from the edges of each sequence, whose states are its own numbers from 0 on.

    Args:
        arcs: For each sequence, tuples ``(source, target, label)`` or with a weight as the fourth.
        starts: The start state, or one for each sequence.
        ends: For each sequence, its end states and their weights. If left away, or empty for a
            sequence, the end is the state with the largest number.
        given: What weights are: probabilities, or costs, which are -log of them. None is certain.

    Raises: RangeError for states or labels that are no integers from 0 on, weights that are no
        probabilities, and another ``given``.
    """
    if given not in get_args(Given):
        text = f"`given` must be 'probability' or 'cost', but is {given!r}."
        raise RangeError(message("from_arcs", text))
    listed = [[Arc(*arc) for arc in own] for own in arcs]
    first_states = list(starts) if isinstance(starts, Iterable) else [starts] * len(listed)
    given_ends: Sequence[Mapping[int, float | None]] = [{}] * len(listed) if ends is None else ends
    finals = [dict(own) for own in given_ends]
    if not len(listed) == len(first_states) == len(finals):
        text = f"there are {len(listed)} sequences, but {len(first_states)} starts"
        raise RangeError(message("from_arcs", f"{text} and {len(finals)} maps of ends."))
    rows: list[tuple[int, ...]] = []
    start_end: list[tuple[int, ...]] = []
    end_rows: list[tuple[int, ...]] = []
    weights: list[float] = []
    end_costs: list[float] = []
    offset = 0
    for b, (own, start, final) in enumerate(zip(listed, first_states, finals, strict=True)):
        states = [start, *final, *(s for arc in own for s in arc[:2])]
        _check_counts("from_arcs", b, states, [arc.label for arc in own])
        rows += [(offset + a.source, offset + a.target, a.label, b) for a in own]
        weights += [_cost(a.weight, given, f"arc {a} of sequence {b}") for a in own]
        start_end.append((offset + start, offset + max(final or states)))
        end_rows += [(b, offset + state) for state in final]
        end_costs += [_cost(w, given, f"end {s} of sequence {b}") for s, w in final.items()]
        offset += max(states) + 1
    plain = _columns(rows, 4), np.array(weights, np.float32), _columns(start_end, 2)
    if ends is None:
        return Automata(*plain)
    return Automata(*plain, _columns(end_rows, 2), np.array(end_costs, np.float32))


def hmm(
    labels: Sequence[Sequence[int]],
    *,
    loop: float | None = 0.5,
    forward: float | None = 0.5,
    skip: float | None = None,
    exit: float | None = None,
    given: Given = "probability",
) -> Automata:
    """Left-to-right hidden Markov models: a state for each label, passed in order.

    State ``i`` says label ``i``. From frame to frame a path stays in its state (``loop``), goes to
    the next (``forward``) or, if that is allowed, to the one after it (``skip``). It ends in the
    last state, with ``exit``.

    Args:
        labels: The labels of each sequence: classes, as often as a state has this emission.
        loop: Weight of staying; None if that is not possible.
        forward: Weight of going on; None if that is not possible.
        skip: Weight of leaving a state out; None if that is not possible.
        exit: Weight of ending; None is certain.
        given: What weights are: probabilities, or costs, which are -log of them.
    """
    arcs: list[list[tuple[Any, ...]]] = []
    ends: list[dict[int, float | None]] = []
    steps = [(size, w) for size, w in enumerate((loop, forward, skip)) if w is not None]
    for own in labels:  # state 0 is before the first label
        found: list[tuple[Any, ...]] = []
        found += [(0, 1, own[0], None)] if len(own) else []
        found += [
            (i + 1, i + size + 1, own[i + size], weight)
            for i in range(len(own))
            for size, weight in steps
            if i + size < len(own)
        ]
        arcs.append(found)
        ends.append({len(own): exit})
    return from_arcs(arcs, 0, ends, given=given)


def validate(automata: Any, n_classes: int, lengths: Sequence[int] | None = None) -> None:
    """Raise a RangeError that says what is wrong with automata, if something is.

    Args:
        automata: `Automata`, or the results of `ctc_fsa`.
        n_classes: The number of classes of the scores they are meant for.
        lengths: If given, each sequence must have a path of that many frames, too.
    """
    from nativeops.ops.fast_viterbi import fast_viterbi

    arrays = _named(automata)
    owners: dict[int, int] = {}
    alive = arrays["weights"] < np.inf
    for source, target, _, b in arrays["edges"][:, alive].T.tolist():
        for state in (source, target):
            if owners.setdefault(state, b) != b:
                text = f"state {state} belongs to the sequences {owners[state]} and {b}."
                raise RangeError(message("validate", text, hint="give each its own states."))
    frames = np.asarray([0] * arrays["start_end_states"].shape[1] if lengths is None else lengths)
    steps = int(frames.max(initial=0))
    for name in ("weights", "end_weights"):
        if np.isnan(arrays.get(name, 0)).any():
            raise RangeError(message("validate", f"`{name}` has NaN."))
    for b, pair in enumerate(arrays["start_end_states"].T.tolist()):
        for what, state in zip(("start", "end"), pair, strict=True):
            if owners.setdefault(state, b) != b:
                text = f"the {what} of sequence {b}, state {state}, belongs to sequence "
                raise RangeError(message("validate", f"{text}{owners[state]}."))
    zero = np.zeros((), arrays["weights"].dtype)
    scores = np.broadcast_to(zero, (steps, len(frames), n_classes))
    best = fast_viterbi(scores, **arrays, lengths=frames.astype(np.int32)).scores
    for b in np.flatnonzero(best == -np.inf) if lengths is not None else ():
        text = f"sequence {b} has no path of {frames[b]} frames."
        raise RangeError(message("validate", text))


def draw(automata: Any, sequence: int = 0, labels: Sequence[str] | None = None) -> Any:
    """One automaton as a picture: a `graphviz.Digraph`, which notebooks show as it is.

    ``.source`` is its text in the language of Graphviz; ``.render("name", format="svg")`` writes a
    file and needs the program ``dot``.

    Args:
        automata: `Automata`, or the results of `ctc_fsa`.
        sequence: Which of the batch; -1 is the last one.
        labels: What to call the classes.
    """
    try:
        import graphviz
    except ImportError as error:
        raise ImportError("draw needs graphviz: pip install 'nativeops[draw]'") from error

    arrays = _named(automata)
    batch = arrays["start_end_states"].shape[1]
    if not -batch <= sequence < batch:
        text = f"`sequence` is {sequence}, but there are {batch} sequences."
        raise RangeError(message("draw", text))
    sequence %= batch
    edges, weights, start_end = (arrays[name] for name in Automata._fields[:3])
    ends, end_weights = arrays.get("end_states"), arrays.get("end_weights")
    picture = graphviz.Digraph(graph_attr={"rankdir": "LR"}, node_attr={"shape": "circle"})
    start, finals = int(start_end[0, sequence]), {int(start_end[1, sequence]): 0.0}
    if ends is not None:
        costs = np.zeros(ends.shape[1]) if end_weights is None else end_weights
        own = {int(s): float(w) for b, s, w in zip(*ends, costs, strict=True) if b == sequence}
        finals = own or finals  # a sequence without ends of its own has that one
    picture.node("start", "", shape="none", width="0")
    picture.edge("start", str(start))
    for state, cost in finals.items():
        picture.node(
            str(state), shape="doublecircle", **({"xlabel": f"{cost:.3g}"} if cost else {})
        )
    for (source, target, label, b), cost in zip(edges.T.tolist(), weights, strict=True):
        if b == sequence and cost < np.inf:
            said = str(label) if labels is None else labels[label]
            text = said if cost == 0 else f"{said} / {cost:.3g}"
            picture.edge(str(source), str(target), label=text)
    return picture


def _named(automata: Any) -> dict[str, Any]:
    """The arrays of automata by name, of whatever framework they are."""
    given = {name: getattr(automata, name, None) for name in Automata._fields}
    return {name: to_numpy(array) for name, array in given.items() if array is not None}


def _check_counts(op: str, b: int, states: Iterable[Any], labels: Iterable[Any]) -> None:
    for what, numbers in (("state", states), ("label", labels)):
        for number in numbers:
            if not _is_count(number):
                text = f"{what} {number!r} of sequence {b} is no integer from 0 to {2**31 - 1}."
                raise RangeError(message(op, text))


def _is_count(number: Any) -> bool:
    try:
        return bool(int(number) == number and 0 <= number < 2**31)
    except (TypeError, ValueError, OverflowError):  # a word, NaN, infinity
        return False


def _cost(weight: float | None, given: Given, where: str) -> float:
    """A weight as a cost."""
    if weight is None:
        return 0.0
    if given == "cost":
        if not weight > -np.inf:
            raise RangeError(message("from_arcs", f"{where} has the cost {weight}."))
        return float(weight)
    if not 0 <= weight <= 1:
        text = f"{where} has the weight {weight}, which is no probability."
        raise RangeError(message("from_arcs", text, hint='say `given="cost"` if it is a cost.'))
    return float(-np.log(weight)) if weight > 0 else float(np.inf)


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> NDArray[np.int32]:
    return np.ascontiguousarray(np.array(rows, np.int32).reshape(-1, width).T)
