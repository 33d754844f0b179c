# SPDX-License-Identifier: Apache-2.0
"""Automata for `fast_baum_welch`, `fsa_loss` and `fast_viterbi`: building, checking, drawing them.

Everything here runs once per batch, in NumPy; only `from_arcs` goes through its tuples one by one.
An automaton says a class on each edge, takes an edge in each frame, and has costs: -log of
probabilities.

>>> made = nativeops.automata.hmm([[7, 8], [9]])
>>> made.edges.T.tolist()  # from a state, to a state, the class, the sequence
[[0, 1, 7, 0], [1, 1, 7, 0], [1, 2, 8, 0], [2, 2, 8, 0], [3, 4, 9, 1], [4, 4, 9, 1]]
"""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from nativeops.arrays import MOST, dtype_name, to_numpy
from nativeops.errors import ArgumentError, RangeError, message
from nativeops.ops.ctc_fsa import ctc_fsa
from nativeops.signature import Signature

Given = Literal["probability", "cost"]
LARGEST = {"float64": 1e15, "float32": 2.9e6}  # costs that sums hold (devices/scaled.h)
LARGEST_FLOAT32 = float(np.finfo(np.float32).max)


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
    labels, counts = _listed("ctc", "targets", targets)
    _check_count("ctc", "blank", blank)
    taken = np.arange(counts.max(initial=0)) < counts[:, None]
    padded = np.zeros(taken.shape, np.int64)
    padded[taken] = labels
    for b, i in np.argwhere(taken & (padded == blank))[:1]:
        text = f"`targets[{b}][{i}]` is {blank}, but that is `blank`, which stands between labels."
        hint = "leave it out, or let `blank` be another class."
        raise RangeError(message("ctc", text, hint=hint))
    lengths = counts.astype(np.int32)
    made = ctc_fsa(padded, lengths, blank=int(blank), label_loop=label_loop)
    return Automata(*map(np.asarray, made))


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

    Raises: ArgumentError for what is no list of arcs, or no map; RangeError for states or labels
        that are no integers from 0 on, or states that are too many together for an int32, weights
        that are no probabilities, costs beyond a float32, and another ``given``.
    """
    _check_given("from_arcs", given)
    listed = [_arcs(b, own) for b, own in enumerate(_items("from_arcs", "arcs", arcs, "lists"))]
    one = getattr(starts, "ndim", 1) == 0 or not isinstance(starts, Iterable)
    first_states: list[Any] = [starts] * len(listed) if one else [*cast(Any, starts)]
    given_ends = [{}] * len(listed) if ends is None else _items("from_arcs", "ends", ends, "maps")
    finals = [_final(b, own) for b, own in enumerate(given_ends)]
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
        if offset + max(states) > MOST:
            text = f"state {max(states)} of sequence {b} becomes {offset + max(states)}, behind "
            text += f"the states of those before, but an int32 holds at most {MOST}."
            hint = "number the states of each sequence from 0 on, without gaps."
            raise RangeError(message("from_arcs", text, hint=hint))
        rows += [(offset + a.source, offset + a.target, a.label, b) for a in own]
        weights += [_cost("from_arcs", a.weight, given, f"arc {a} of sequence {b}") for a in own]
        start_end.append((offset + start, offset + max(final or states)))
        end_rows += [(b, offset + state) for state in final]
        end_costs += [
            _cost("from_arcs", w, given, f"end {s} of sequence {b}") for s, w in final.items()
        ]
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
    _check_given("hmm", given)
    said, counts = _listed("hmm", "labels", labels)
    named = [("loop", loop), ("forward", forward), ("skip", skip)]
    steps = [(size, *step) for size, step in enumerate(named) if step[1] is not None]
    costs = [0.0, *(_cost("hmm", weight, given, f"`{name}`") for _, name, weight in steps)]
    sizes = np.array([0, *(size for size, _, _ in steps)])
    sequence = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts + 1) - counts - 1  # the state before the first label
    state = np.arange(len(said)) + sequence + 1
    # From each label's state by each step, and before those, in column 0, into the first one.
    exists = state[:, None] + sizes <= (first + counts)[sequence, None]
    exists[:, 0] = state == first[sequence] + 1
    at, column = np.nonzero(exists)
    to = at + sizes[column]
    rows = [state[at] - (column == 0), state[to], said[to], sequence[at]]
    ends = [np.arange(len(counts)), first + counts]
    exits = np.full(len(counts), _cost("hmm", exit, given, "`exit`"), np.float32)
    weights = np.array(costs)[column].astype(np.float32)
    return Automata(_int32(rows), weights, _int32([first, ends[1]]), _int32(ends), exits)


def validate(automata: Any, n_classes: int, lengths: Sequence[int] | None = None) -> None:
    """Raise an error that says what is wrong with automata, if something is.

    Args:
        automata: `Automata`, or the results of `ctc_fsa`.
        n_classes: The number of classes of the scores they are meant for.
        lengths: If given, each sequence must have a path of that many frames, too.

    Raises: ArgumentError, ShapeError and DtypeError for what an op would not take; RangeError for
        states that two sequences share, numbers out of range, costs that are none or that sums in
        the dtype of the weights do not hold (the ops' ``Range``), and sequences without a path.
    """
    arrays = _named("validate", automata)
    _check_count("validate", "n_classes", n_classes)
    frames = None if lengths is None else _items("validate", "lengths", lengths, "integers")
    for b, count in enumerate(frames or ()):
        _check_count("validate", f"lengths[{b}]", count)
    _check_arrays(arrays, frames)
    if not arrays["start_end_states"].size:
        return
    _check_ranges(arrays, int(n_classes))
    ends, end_costs = _end_lists(arrays)
    _check_costs("weights", arrays["weights"], arrays["edges"][3])
    _check_costs("end_weights", end_costs, ends[0])
    _check_owners(arrays)
    has_path = _have_paths(arrays, np.array(frames, np.int64)) if frames else ()
    for b, (count, found) in enumerate(zip(frames or (), has_path, strict=True)):
        if not found:
            text = f"sequence {b} has no path of {count} frames."
            hint = "leave it out, or give the loss `zero_infinity=True`."
            raise RangeError(message("validate", text, hint=hint))


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

    arrays = _named("draw", automata)
    batch = arrays["start_end_states"].shape[1]
    if not (_is_count(sequence, -batch) and sequence < batch):
        text = f"`sequence` is {sequence!r}, but there are {batch} sequences."
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
            said = _name(labels, label)
            text = said if cost == 0 else f"{said} / {cost:.3g}"
            # Graphviz would take `<s>` for its HTML, and what is behind a backslash for its own.
            picture.edge(str(source), str(target), label=graphviz.escape(text))
    return picture


def _name(labels: Any, label: int) -> str:
    """What a class is called."""
    try:
        return str(label if labels is None else labels[label])
    except LookupError:
        text = f"`labels` has no name for class {label}, which an edge says."
        hint = "name all classes, or leave `labels` away."
        raise RangeError(message("draw", text, hint=hint)) from None


def _named(op: str, automata: Any) -> dict[str, Any]:
    """The arrays of automata by name, of whatever framework they are."""
    given = {name: getattr(automata, name, None) for name in Automata._fields}
    for name in Automata._fields[:3]:
        if given[name] is None:
            text = f"`automata` is of the type {type(automata).__name__}, without `{name}`."
            hint = "give what `from_arcs` or `ctc_fsa` makes, or `Automata(edges, weights, ..)`."
            raise ArgumentError(message(op, text, hint=hint))
    return {name: to_numpy(array) for name, array in given.items() if array is not None}


def _check_arrays(arrays: Mapping[str, Any], frames: Sequence[int] | None) -> None:
    """Refuse the dtypes and sizes that an op would refuse."""
    from nativeops.ops.fsa_loss import fsa_loss

    shapes = {name: (dtype_name(array), array.shape) for name, array in arrays.items()}
    shapes |= {} if frames is None else {"lengths": ("int32", (len(frames),))}
    inputs = tuple(spec for spec in fsa_loss.signature.inputs if spec.name in shapes)
    given = [spec.given(*shapes[spec.name]) for spec in inputs]
    Signature("validate", inputs, ()).solve(given, {})


def _end_lists(arrays: Mapping[str, Any]) -> tuple[Any, Any]:
    """The rows of `end_states`, and their costs."""
    rows = arrays.get("end_states", np.zeros((2, 0), np.int32))
    free = np.zeros(rows.shape[1], arrays["weights"].dtype)
    return rows, arrays.get("end_weights", free) if rows.size else free


def _check_ranges(arrays: Mapping[str, Any], n_classes: int) -> None:
    """Refuse the states, classes and sequences that an op would refuse."""
    batch = arrays["start_end_states"].shape[1]
    state, sequence = (MOST, "a state"), (batch - 1, "a sequence of the batch")
    classes = (n_classes - 1, "the classes of `n_classes`")
    for name, array, costs, bounds in (
        ("edges", arrays["edges"], arrays["weights"], (state, state, classes, sequence)),
        ("start_end_states", arrays["start_end_states"], np.zeros(batch), (state, state)),
        ("end_states", *_end_lists(arrays), (sequence, state)),
    ):
        for row, (most, of) in enumerate(bounds):
            wrong = ((array[row] < 0) | (array[row] > most)) & ~(costs == np.inf)
            for i in np.flatnonzero(wrong)[:1]:
                must = f"must be from 0 to {most}" if most >= 0 else "there is none"
                text = f"`{name}[{row}, {i}]` is {array[row, i]}, but {must}, {of}."
                raise RangeError(message("validate", text))


def _check_costs(name: str, costs: Any, sequences: Any) -> None:
    """Refuse costs that make sums NaN, and those that sums take as infinite."""
    dtype, wide = dtype_name(costs), costs.astype(np.float64)
    most = LARGEST.get(dtype, LARGEST["float32"])
    for i in np.flatnonzero(~((np.abs(wide) <= most) | (wide == np.inf)))[:1]:
        text = f"`{name}[{i}]`, of sequence {sequences[i]}, is {wide[i]}, but must be from "
        text += f"{-most:g} to {most:g}, what sums in {dtype} hold, or inf."
        hint = "a cost is -log of a probability, and inf where that is 0."
        if np.isfinite(wide[i]) and dtype != "float64":
            hint = "give weights and scores in float64, which holds 1e+15, or inf for no edge."
        raise RangeError(message("validate", text, hint=hint))


def _check_owners(arrays: Mapping[str, Any]) -> None:
    """Refuse states that two sequences share."""
    edges = arrays["edges"][:, arrays["weights"] < np.inf]
    starts, finals = arrays["start_end_states"]
    rows, costs = _end_lists(arrays)
    batch, ends = np.arange(len(starts)), rows[:, costs < np.inf]
    states = np.concatenate([edges[:2].T.ravel(), starts, finals, ends[1]])
    owners = np.concatenate([np.repeat(edges[3], 2), batch, batch, ends[0]])
    _, first, place = np.unique(states, return_index=True, return_inverse=True)
    for i in np.flatnonzero(owners != owners[first][place])[:1]:
        state, owner, other = states[i], owners[i], owners[first][place[i]]
        text = f"state {state} belongs to the sequences {other} and {owner}."
        after = i - 2 * edges.shape[1]
        if after >= 0:
            what = ("start", "end", "end")[min(after // len(starts), 2)]
            text = f"the {what} of sequence {owner}, state {state}, belongs to sequence {other}."
        raise RangeError(message("validate", text, hint="give each its own states."))


def _have_paths(arrays: Mapping[str, Any], frames: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each sequence has a path of so many frames."""
    edges = arrays["edges"][:, arrays["weights"] < np.inf]
    starts, finals = arrays["start_end_states"]
    rows, costs = _end_lists(arrays)
    rest = np.setdiff1d(np.arange(len(starts)), rows[0])  # which end in that of `start_end_states`
    owners, ends = np.hstack([rows[:, costs < np.inf], [rest, finals[rest]]])
    parts = [edges[0], edges[1], starts, ends]
    states, places = np.unique(np.concatenate(parts), return_inverse=True)
    source, target, start, end = np.split(places, np.cumsum([len(part) for part in parts[:3]]))
    reached, found = np.zeros(len(states), bool), np.zeros(len(frames), bool)
    reached[start] = True
    step, kept, since = 0, reached, 0
    while True:
        found[owners[(frames[owners] == step) & reached[end]]] = True
        if step >= frames.max(initial=0):
            return found
        before, reached = reached, np.zeros(len(states), bool)
        reached[target[before[source]]] = True
        step += 1
        if np.array_equal(reached, kept):  # it goes in circles: leave whole ones out
            circles = (frames - step) // (step - since) * (step - since)
            frames = frames - np.maximum(circles, 0)
        if step & (step - 1) == 0:  # of Brent's search for a circle
            kept, since = reached, step


def _items(op: str, name: str, values: Any, of: str) -> list[Any]:
    """The parts of a list or of an array."""
    try:
        return list(values.tolist() if hasattr(values, "tolist") else values)
    except TypeError:
        text = f"`{name}` is {values!r}, but must be a list of {of}."
        outer = name.partition("[")[0]
        hint = f"for a single sequence write `[{outer}]`." if name != outer else None
        raise ArgumentError(message(op, text, hint=hint)) from None


def _listed(op: str, name: str, lists: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The labels of all sequences one behind the other, and the number of those of each."""
    outer = enumerate(_items(op, name, lists, "lists of labels"))
    parts = [_items(op, f"{name}[{b}]", own, "labels") for b, own in outer]
    every = [label for own in parts for label in own]
    if not all(type(label) is int and 0 <= label <= MOST for label in every):
        for b, own in enumerate(parts):
            _check_counts(op, b, [], own)
    counts = np.array([len(own) for own in parts], np.int64)
    return np.array([*map(int, every)], np.int64), counts


def _arcs(b: int, given: Any) -> list[Arc]:
    """The arcs of one sequence."""
    found = []
    for i, arc in enumerate(_items("from_arcs", f"arcs[{b}]", given, "arcs")):
        try:
            found.append(Arc(*arc))
        except TypeError:
            text = f"`arcs[{b}][{i}]` is {arc!r}, but must be (source, target, label), or that and "
            hint = "`arcs` has a list of arcs for each sequence."
            raise ArgumentError(message("from_arcs", f"{text}a weight.", hint=hint)) from None
    return found


def _final(b: int, given: Any) -> dict[int, float | None]:
    """The end states of one sequence, and their weights."""
    try:
        return dict(given)
    except (TypeError, ValueError):
        text = f"`ends[{b}]` is {given!r}, but must be a map from states to weights."
        hint = "`ends` has a map for each sequence, such as `[{1: 0.5}]`."
        raise ArgumentError(message("from_arcs", text, hint=hint)) from None


def _check_given(op: str, given: str) -> None:
    if given not in get_args(Given):
        text = f"`given` must be 'probability' or 'cost', but is {given!r}."
        raise RangeError(message(op, text))


def _check_counts(op: str, b: int, states: Iterable[Any], labels: Iterable[Any]) -> None:
    for what, numbers in (("state", states), ("label", labels)):
        for number in numbers:
            if not _is_count(number):
                text = f"{what} {number!r} of sequence {b} is no integer from 0 to {MOST}."
                raise RangeError(message(op, text))


def _check_count(op: str, name: str, number: Any) -> None:
    if not _is_count(number):
        text = f"`{name}` is {number!r}, but must be an integer from 0 to {MOST}."
        raise RangeError(message(op, text))


def _is_count(number: Any, least: int = 0) -> bool:
    """Whether it is of a type for integers, and from `least` to what an int32 holds."""
    try:
        return least <= operator.index(number) <= MOST
    except (TypeError, AttributeError):  # the latter of TensorFlow's floats
        return False


def _cost(op: str, weight: Any, given: Given, where: str) -> float:
    """A weight as a cost."""
    if weight is None:
        return 0.0
    try:
        number = math.nan if isinstance(weight, str) else float(weight)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if given == "cost":
        if not (abs(number) <= LARGEST_FLOAT32 or number == math.inf):
            text = f"{where} has the cost {weight}, but must have one from {-LARGEST_FLOAT32:g} to "
            hint = "the cost inf is that of no edge."
            raise RangeError(message(op, f"{text}{LARGEST_FLOAT32:g}, or inf.", hint=hint))
        return number
    if not 0 <= number <= 1:
        text = f"{where} has the weight {weight}, which is no probability."
        raise RangeError(message(op, text, hint='say `given="cost"` if it is a cost.'))
    exact = weight if isinstance(weight, np.generic) else number
    return float(-np.log(exact)) if number > 0 else math.inf


def _columns(rows: Sequence[tuple[int, ...]], width: int) -> NDArray[np.int32]:
    return np.ascontiguousarray(np.array(rows, np.int32).reshape(-1, width).T)


def _int32(rows: Sequence[Any]) -> NDArray[np.int32]:
    return np.stack(rows).astype(np.int32)
