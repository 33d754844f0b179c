# SPDX-License-Identifier: Apache-2.0
"""CTC: the loss of each sequence, from logits or from logarithms of probabilities."""

from typing import Annotated, Any, Generic, NamedTuple

from nativeops.declare import Array, AtLeast, Float, Float32, Int, Kept, Lengths, op
from nativeops.ops import _ctc


class CtcLosses(NamedTuple, Generic[Array]):
    """The losses, and what the gradient needs, as `ctc_losses_grad` says."""

    loss: Float[Array, "b"]
    log_sums: Kept[Float32[Array, "t b 3"]]
    slopes: Kept[Float[Array, "t b s+1"]]


@op(kernel="ctc_loss.h", independent="b", caller="ctc_loss")
def ctc_losses(
    logits: Float[Array, "t b c"],
    targets: Int[Array, "b s"],
    input_lengths: Lengths[Array, "b"] | None = None,
    target_lengths: Lengths[Array, "b"] | None = None,
    *,
    blank: Annotated[int, AtLeast(0)] = 0,
    normalized: bool = False,
    label_loop: bool = True,
    zero_infinity: bool = False,
) -> CtcLosses[Array]:
    """Connectionist temporal classification: a loss for each sequence.

    ``loss[b] = -log Σ_w Π_t p[t, b, w[t]]`` over all ways ``w`` of one class for each frame that
    say the target: those that become it when repeats are merged and then blanks removed.
    ``p = softmax(logits)`` over the classes.

    Args:
        logits: Un-normalised; a frame of nothing but -inf makes every way impossible. Any strides
            without a copy, so ``[b, t, c]`` with its first two axes swapped is fine.
        targets: The labels of each sequence, from 0 to ``c - 1`` without ``blank``. What is beyond
            a sequence's length is never read.
        input_lengths: The number of frames of each sequence, from 0 to ``t``; ``t`` if left away.
        target_lengths: The number of labels, from 0 to ``s``; ``s`` if left away.
        blank: The class that says nothing.
        normalized: ``logits`` are logarithms of probabilities already, or any others: the loss is
            ``-log Σ_w exp Σ_t logits[t, b, w[t]]``.
        label_loop: Whether repeats are merged. Without, each label takes exactly one frame.
        zero_infinity: 0 instead of infinity where no way says the target.

    Returns: +infinity where no way says the target: it is too long, or has no probability.
    NaN: stays in its own sequence; with ``normalized`` only one of the target's classes counts.
    Range: a logarithm of a probability below -6.9e10 that is not -infinity counts as that, and with
        ``normalized`` one above 6.9e10 as that; in float64 a finite logit beyond ±9e15 as the
        nearest one of float32.
    Gradient: for ``logits``, in one more pass: ``d_loss[b] · (p[t, b, c] - P(w[t] = c))``,
        with ``normalized`` without the ``p``; 0 beyond the length, and where no way says the
        target.
    Cost: O(t·b·(c + s)) time. Weights of ways have exponents of their own, so no length is too
        long. Memory: t·b·(s + 1) numbers and t·b doubles while it runs; t·b·(s + 4) numbers more
        are kept where a gradient is needed, and t·b·s/2 doubles at most for the way to it, with
        s + 1 rounded up to 16 on the CPU; on a GPU with more than 80 labels 76·s doubles for each
        of at most 1024 sequences at work.
    Same as: ``torch.nn.functional.ctc_loss(log_softmax(logits), .., reduction="none")``,
        ``optax.ctc_loss``, both with ``label_loop``.
    Source: Graves, Fernandez, Gomez & Schmidhuber 2006, Connectionist temporal classification,
        equations 3, 6-8 and 16; without ``label_loop``: Sak, Shannon, Rao & Beaufays 2017,
        Recurrent neural aligner.

    >>> even = np.zeros((2, 1, 3))  # nine ways, of which "1 1", "0 1" and "1 0" say the label 1
    >>> np.exp(-ctc_losses(even, np.array([[1]])).loss).round(4)
    array([0.3333])
    """
    problem = _ctc.Problem(logits, targets, input_lengths, target_lengths, blank, label_loop)
    return CtcLosses(*_ctc.losses(problem, normalized, zero_infinity))


@op(kernel="ctc_loss.h", independent="b", caller="ctc_loss")
def ctc_losses_grad(
    logits: Float[Array, "t b c"],
    targets: Int[Array, "b s"],
    log_sums: Float32[Array, "t b 3"],
    slopes: Float[Array, "t b s+1"],
    d_loss: Float[Array, "b"],
    input_lengths: Lengths[Array, "b"] | None = None,
    target_lengths: Lengths[Array, "b"] | None = None,
    *,
    blank: Annotated[int, AtLeast(0)] = 0,
    normalized: bool,
) -> Float[Array, "t b c"]:
    """What flows back through `ctc_losses` into its logits.

    ``d_logits[t, b, c] = d_loss[b] · (exp(logits[t, b, c] - log_sums[t, b]) - P[t, b, c])``, where
    ``P[t, b, c]`` is the probability that a way that says the target is at class ``c`` in frame
    ``t``: the sum, over all states ``s`` with that class, of ``alpha[t, s] · Σ beta[t + 1, s']``
    over the states ``s'`` after ``s``, divided by the sum of that over all ``s``.

    Args:
        logits: As given to `ctc_losses`, as the others that are named as there.
        targets: The labels.
        log_sums: ``log Σ_c exp(logits)`` in double precision, as the sum of three floats: the
            largest logit, and what is left; zeros with ``normalized`` and beyond a length. Infinite
            in all frames of a sequence whose target no way says, NaN in those of one whose loss is
            NaN.
        slopes: The difference in brackets, for the blank and then for the class of each label; 2
            where the target had the class before; 0 where there are none.
        d_loss: The gradient that arrives at the losses.
        input_lengths: The number of frames of each sequence; all if left away.
        target_lengths: The number of labels; all if left away.
        blank: The class that says nothing.
        normalized: Whether ``logits`` are logarithms of probabilities; then without the ``exp``.

    NaN: where ``log_sums`` is NaN, in all classes of the frame.
    Gradient: none.
    Cost: O(t·b·(c + s)) time, in one pass over ``logits``.
    Same as: the gradient of ``torch.nn.functional.ctc_loss(log_softmax(logits), ..)``.
    Source: Graves et al. 2006, equations 13-16.

    >>> even, label = np.zeros((2, 1, 3)), np.array([[1]])
    >>> kept = nativeops.ops.ctc_loss.ctc_losses.reference(even, label)[1:]
    >>> d_logits = ctc_losses_grad(even, label, *kept, np.ones(1), blank=0, normalized=False)
    >>> d_logits[0].round(4) + 0  # never -0
    array([[ 0.    , -0.3333,  0.3333]])
    """
    problem = _ctc.Problem(logits, targets, input_lengths, target_lengths, blank, True)
    return _ctc.gradient(problem, log_sums, slopes, normalized) * d_loss[:, None]


@ctc_losses.gradient
def _(  # type: ignore[no-untyped-def]
    logits, targets, input_lengths, target_lengths, log_sums, slopes, d_loss, blank, normalized
):  # fmt: skip
    return ctc_losses_grad(
        logits, targets, log_sums, slopes, d_loss, input_lengths, target_lengths,
        blank=blank, normalized=normalized,
    )  # fmt: skip


@ctc_losses.example
def _(random, given):  # type: ignore[no-untyped-def]
    return _ctc.example(random, given)


@ctc_losses_grad.example
def _(random, given):  # type: ignore[no-untyped-def]
    arrays: dict[str, Any] = _ctc.example(random, given)
    options = {name: given[name] for name in ("blank", "normalized")}
    kept = ctc_losses.reference(**arrays, **options)._asdict()
    loss = kept.pop("loss")
    for labels, slopes in zip(arrays["targets"], kept["slopes"].swapaxes(0, 1), strict=True):
        again = [label in labels[:i] for i, label in enumerate(labels)]
        slopes[:, 1:][:, again] = _ctc.AGAIN  # also where a case leaves the lengths away
    return {**arrays, **kept, "d_loss": random.standard_normal(loss.shape)}
