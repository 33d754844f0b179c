# SPDX-License-Identifier: Apache-2.0
"""Transducer (RNN-T) loss: the cost of every sequence."""

from typing import Annotated, Any, Generic, Literal, NamedTuple

import numpy as np

from nativeops.declare import Accum, Array, AtLeast, Float, Int, Kept, Lengths, op

Topology = Literal["rnnt", "monotonic", "rna"]
PLANES = 4  # of `lattice`: shift, logarithm of the sum, logits of blank and label


class RnntCosts(NamedTuple, Generic[Array]):
    """The cost of each sequence, from `rnnt_costs`."""

    costs: Float[Array, "*b"]
    lattice: Kept[Accum[Array, "*b 4 t u+1"]]


@op(kernel="rnnt_loss.h", logs="t", caller="rnnt_loss")
def rnnt_costs(
    logits: Float[Array, "*b t u+1 v"],
    targets: Int[Array, "*b u"],
    logit_lengths: Lengths[Array, "*b"],
    target_lengths: Lengths[Array, "*b"],
    *,
    blank: Annotated[int, AtLeast(-1)] = -1,
    clamp: Annotated[float, AtLeast(-1)] = -1.0,
    fused_log_softmax: bool = True,
    topology: Topology = "rnnt",
) -> RnntCosts[Array]:
    """Negative log-probability of each target sequence under a transducer.

    ``costs = -log Σ_paths Π_steps y``, where ``y[t, u, k] = softmax_k(logits[t, u, :])``. With
    ``T`` frames and ``U`` labels a path goes from ``(0, 0)`` to ``(T, U)``: a blank from ``(t, u)``
    leads to ``(t + 1, u)``; the label ``targets[u]`` leads to ``(t, u + 1)`` ("rnnt"), or to
    ``(t + 1, u + 1)`` ("monotonic", "rna"), so that each frame gives one symbol.

    Args:
        logits: The joint network's outputs, not normalised, for each frame and each number of
            labels before. A row of ``-inf`` alone is a place where no path passes.
        targets: The labels, from 0 to ``v - 1``, without blanks. What lies beyond a target's length
            is not read.
        logit_lengths: The frames of each sequence, from 0 to ``t``.
        target_lengths: The labels of each sequence, from 0 to ``u``.
        blank: The blank among the ``v`` symbols; -1 is the last one.
        clamp: Bounds each number of the gradient for ``costs``, before what flows back is
            multiplied, to ``[-clamp, clamp]``; there is no bound where it is not above 0.
        fused_log_softmax: ``logits`` are to be normalised. Else they are log-probabilities already,
            and the gradient is for those.
        topology: Which paths there are. "monotonic" and "rna" are two names of the same: Tripathi's
            monotonic RNN-T and Sak's aligner differ in what the network sees, not in the sum.

    Returns: The costs. +inf where there is no path: no frame but labels, or with one symbol a
        frame more labels than frames. 0 where there are neither frames nor labels.
    Raises: ``RangeError`` for a length, a label or a blank outside its range, and for a blank among
        the labels; on CUDA, where kernels cannot read values beforehand, those are kept in bounds.
    NaN: stays in its own sequence.
    Range: a logarithm of a probability beyond ±6.9e10 that is not infinite counts as that.
    Gradient: for ``logits``, normalisation included: ``y`` times the probability to pass, minus
        that to leave by blank or label; 0 beyond the lengths and where there is no path. 4·b·t·u
        numbers are kept.
    Cost: O(b·t·u·v) time, where all rows are independent; 4·b·t·u numbers of workspace. Sums over
        paths are kept as logarithms in float64, so that no length loses accuracy.
    Same as: ``torchaudio.functional.rnnt_loss(.., reduction="none")``, which has no topology.
    Source: Graves 2012, Sequence transduction with recurrent neural networks, equations 12 to 20;
        one symbol a frame: Sak et al. 2017, Recurrent neural aligner, and Tripathi et al. 2019,
        Monotonic recurrent neural network transducer and decoding strategies.

    >>> one = np.array([1]), np.array([1]), np.array([1])
    >>> rnnt_costs(np.zeros((1, 1, 2, 4)), np.array([[2]]), *one[:2]).costs.round(4)
    array([2.7726])
    """
    sizes, rows = _rows(logits, targets, logit_lengths, target_lengths)
    costs: Any = np.zeros(len(rows[0]), logits.dtype)
    lattice: Any = np.zeros((len(costs), PLANES, *logits.shape[-3:-1]), logits.dtype)
    for b, (x, y, frames, labels) in enumerate(zip(*rows, strict=True)):
        cells = _planes(x, y[:labels], blank, fused_log_softmax)[:, :frames, : labels + 1]
        lattice[b, :, :frames, : labels + 1] = cells
        costs[b] = 0 - _alphas(cells, topology != "rnnt")[1]
    return RnntCosts(costs.reshape(sizes), lattice.reshape(*sizes, *lattice.shape[1:]))


def _rows(logits: Any, targets: Any, *others: Any) -> tuple[tuple[int, ...], list[Any]]:
    """The leading axes, and the arrays with one axis in place of them, broadcast."""
    own = (logits.shape[-3:], targets.shape[-1:], *[()] * len(others))
    # Wider than the kernels' own sums, so that a difference is theirs.
    arrays = [logits.astype(np.longdouble), *(np.asarray(a) for a in (targets, *others))]
    pairs = list(zip(arrays, own, strict=True))
    sizes = np.broadcast_shapes(*(a.shape[: a.ndim - len(shape)] for a, shape in pairs))
    count = int(np.prod(sizes))
    return sizes, [np.broadcast_to(a, (*sizes, *s)).reshape(count, *s) for a, s in pairs]


def _planes(x: Any, labels: Any, blank: int, fused: bool) -> Any:
    """The largest logit, log Σ e^(logit - largest), and both symbols' logits, for each cell."""
    shift, total = np.zeros(x.shape[:-1], x.dtype), np.ones(x.shape[:-1], x.dtype)
    if fused:
        largest = x.max(-1, initial=-np.inf)
        shift = np.where(largest == -np.inf, 0.0, largest)
        total = np.exp(x - shift[..., None]).sum(-1)
        total = np.where(total == 0, 1.0, total)
    by_blank = x[..., blank] if x.shape[-1] else np.full(shift.shape, -np.inf)
    by_label = np.full(shift.shape, -np.inf, x.dtype)
    for u, label in enumerate(labels):
        by_label[:, u] = x[:, u, label]
    return np.stack([shift, np.log(total), by_blank, by_label])


def _log_probs(planes: Any) -> Any:
    """The log-probabilities of blank and label."""
    return (planes[2:] - planes[0]) - planes[1]


def _alphas(cell: Any, each_frame: bool) -> tuple[Any, float]:
    """Log-probability to come to each node (one row more than frames), and to the last one."""
    by_blank, by_label = _log_probs(cell)
    frames, nodes = by_blank.shape
    alpha = np.full((frames + 1, nodes), -np.inf)
    alpha[0, 0] = 0.0
    for t in range(frames + 1):
        for u in range(nodes):
            ways = [alpha[t, u]]
            if t > 0:
                ways.append(alpha[t - 1, u] + by_blank[t - 1, u])
            before = t - 1 if each_frame else t
            if u > 0 and 0 <= before < frames:
                ways.append(alpha[before, u - 1] + by_label[before, u - 1])
            alpha[t, u] = np.logaddexp.reduce(ways)
    return alpha, float(alpha[-1, -1])


def _betas(cell: Any, each_frame: bool) -> Any:
    """Log-probability to go from each node to the last one."""
    by_blank, by_label = _log_probs(cell)
    frames, nodes = by_blank.shape
    beta = np.full((frames + 1, nodes + 1), -np.inf)
    beta[-1, -2] = 0.0
    for t in reversed(range(frames)):
        for u in reversed(range(nodes)):
            after = beta[t + each_frame, u + 1] + by_label[t, u]
            beta[t, u] = np.logaddexp(beta[t + 1, u] + by_blank[t, u], after)
    return beta


@op(kernel="rnnt_loss.h", logs="t", caller="rnnt_loss")
def rnnt_costs_grad(
    logits: Float[Array, "*b t u+1 v"],
    targets: Int[Array, "*b u"],
    logit_lengths: Lengths[Array, "*b"],
    target_lengths: Lengths[Array, "*b"],
    d_costs: Float[Array, "*b"],
    lattice: Accum[Array, "*b 4 t u+1"] | None = None,
    *,
    blank: Annotated[int, AtLeast(-1)] = -1,
    clamp: Annotated[float, AtLeast(-1)] = -1.0,
    fused_log_softmax: bool = True,
    topology: Topology = "rnnt",
) -> Float[Array, "*b t u+1 v"]:
    """What flows back through `rnnt_costs` into the logits.

    ``d_logits[t, u, k] = d_costs · (y[t, u, k]·(b + l) - [k = blank]·b - [k = targets[u]]·l)``:
    ``b`` and ``l`` are the probabilities, given the target, to leave ``(t, u)`` by the blank and by
    the label: ``b`` is the share of all paths that pass ``(t, u)`` and ``(t + 1, u)``.

    Args:
        logits: As given to `rnnt_costs`.
        targets: As given to `rnnt_costs`.
        logit_lengths: As given to `rnnt_costs`.
        target_lengths: As given to `rnnt_costs`.
        d_costs: The gradient that arrives at the costs.
        lattice: What `rnnt_costs` kept: of each cell the largest logit, the logarithm of the sum of
            exponentials relative to that, and the logits of blank and label. Or None: then it is
            computed again.
        blank: As given to `rnnt_costs`.
        clamp: As given to `rnnt_costs`.
        fused_log_softmax: As given to `rnnt_costs`. Where the logits are log-probabilities, the
            first term is left away.
        topology: As given to `rnnt_costs`.

    Returns: The gradient, 0 beyond the lengths and in sequences without a path.
    Raises: As `rnnt_costs`.
    NaN: stays in its own sequence.
    Gradient: none.
    Cost: O(b·t·u·v) time; 2·b·t·u numbers of workspace, without ``lattice`` 6·b·t·u, and
        t·u numbers of float64 for each thread.
    Same as: the gradient of ``torchaudio.functional.rnnt_loss``.
    Source: Graves 2012, Sequence transduction with recurrent neural networks, equation 20.

    >>> given = np.zeros((1, 1, 1, 2)), np.zeros((1, 0), int), np.array([1]), np.array([0])
    >>> rnnt_costs_grad(*given, np.array([1.0])).ravel()
    array([ 0.5, -0.5])
    """
    sizes, rows = _rows(logits, targets, logit_lengths, target_lengths, d_costs)
    d_logits: Any = np.zeros(rows[0].shape, logits.dtype)
    for b, (x, y, frames, labels, d_cost) in enumerate(zip(*rows, strict=True)):
        planes = _planes(x, y[:labels], blank, fused_log_softmax)[:, :frames, : labels + 1]
        by_blank, by_label = _leaving(planes, topology != "rnnt")
        part = d_logits[b, :frames, : labels + 1]
        if fused_log_softmax:
            shown = np.exp(x[:frames, : labels + 1] - planes[:2].sum(0)[..., None])
            passes = (by_blank + by_label)[..., None]
            part[:] = np.where(passes == 0, 0, passes * shown)
        if x.shape[-1]:
            part[..., blank] -= by_blank
        for u, label in enumerate(y[:labels]):
            part[:, u, label] -= by_label[:, u]
        part[:] = (np.clip(part, -clamp, clamp) if clamp > 0 else part) * d_cost
    return d_logits.reshape(*sizes, *d_logits.shape[1:])


def _leaving(planes: Any, each_frame: bool) -> tuple[Any, Any]:
    """The probabilities to leave each cell by blank and by label, given the target."""
    alpha, total = _alphas(planes, each_frame)
    if total == -np.inf:
        return np.zeros(planes.shape[1:]), np.zeros(planes.shape[1:])
    beta, here = _betas(planes, each_frame), alpha[:-1] - total
    after = beta[1:, 1:] if each_frame else beta[:-1, 1:]
    by_blank, by_label = _log_probs(planes)
    return np.exp(here + by_blank + beta[1:, :-1]), np.exp(here + by_label + after)


def _example(random: Any, given: Any) -> dict[str, Any]:
    t, u, v, lead = given["t"], given["u"], given["v"], given["b"]
    blank = given["blank"] % v if v else 0
    labels = np.array([k for k in range(v) if k != blank] or [0])
    most = u if v > 1 else 0
    if given["topology"] != "rnnt":
        most = min(most, t)
    target_lengths = np.asarray(random.integers(0, most + 1, lead))
    frames = np.asarray(random.integers(0, t + 1, lead))
    least = np.minimum(target_lengths if given["topology"] != "rnnt" else target_lengths > 0, t)
    return {
        # Numbers that every dtype has, so that a lattice of theirs fits them in each.
        "logits": random.standard_normal((*lead, t, u + 1, v)) // 0.125 / 8,
        "targets": labels[random.integers(0, len(labels), (*lead, u))],
        "logit_lengths": np.asarray(np.maximum(frames, least)),
        "target_lengths": np.asarray(np.where(t > 0, target_lengths, 0)),
    }


@rnnt_costs.example
def _(random, given):  # type: ignore[no-untyped-def]
    return _example(random, given)


@rnnt_costs_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    arrays = _example(random, given)
    names = [spec.name for spec in rnnt_costs.signature.attributes]
    kept = rnnt_costs.reference(**arrays, **{n: given[n] for n in names if n in given})
    d_costs = np.asarray(random.standard_normal(np.shape(kept.costs)))
    return {**arrays, "d_costs": d_costs, "lattice": kept.lattice}


@rnnt_costs.gradient
def _(  # type: ignore[no-untyped-def]
    logits, targets, logit_lengths, target_lengths, lattice, d_costs,
    blank, clamp, fused_log_softmax, topology
):  # fmt: skip
    return rnnt_costs_grad(
        logits, targets, logit_lengths, target_lengths, d_costs, lattice,
        blank=blank, clamp=clamp, fused_log_softmax=fused_log_softmax, topology=topology,
    )  # fmt: skip
