# SPDX-License-Identifier: Apache-2.0
"""CTC prefix beam search, alone or with a scorer of one's own, such as a language model."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from nativeops.arrays import cast, is_compiling, namespace, to_numpy
from nativeops.attributes import AttributeSpec
from nativeops.declare import Array
from nativeops.errors import ArgumentError, RangeError, message
from nativeops.layers.ctc import lengths_of
from nativeops.ops._prefixes import Options, Scorer, search_batch
from nativeops.ops.ctc_beam_search import CtcPrefixes, ctc_prefixes

_WEIGHT = AttributeSpec("scorer_weight", float)


def ctc_beam_search(
    logits: Array,
    lengths: Array | Sequence[int] | None = None,
    *,
    beam_width: int = 16,
    n_best: int = 1,
    blank: int = 0,
    normalized: bool = False,
    token_threshold: float = 0.0,
    insertion_bonus: float = 0.0,
    scorer: Scorer | None = None,
    scorer_weight: float = 1.0,
) -> CtcPrefixes[Array]:
    """The label sequences of highest probability under CTC, by prefix beam search.

    Without a scorer all of it is the op `ctc_prefixes`, native and on all threads of the CPU; from
    a GPU, PyTorch's logits are copied there and the results back. With one, the score of a prefix
    ``p`` is ``log P(p) + Σ (weight · scorer(p[:i])[p[i]] + bonus)``; the search then runs in NumPy
    on the host, and the scorer is asked once a frame, for all prefixes of a sequence's beam that it
    has not seen since they came in.

    Args:
        logits: The outputs ``[t, b, c]`` of each frame, not normalised.
        lengths: The frames of each sequence, int32 ``[b]`` or a list; ``t`` if left away.
        beam_width: How many prefixes stay after each frame.
        n_best: How many sequences to return, at most ``beam_width``.
        blank: The blank among the ``c`` symbols; -1 is the last one.
        normalized: ``logits`` are log-probabilities already.
        token_threshold: A label with a smaller probability in a frame extends no prefix there.
        insertion_bonus: Added to the score for each label.
        scorer: From ``n`` prefixes, tuples of labels, to the logarithmic scores of each label that
            may follow: an array ``[n, c]``, whose column of the blank is not read.
        scorer_weight: By which those scores are multiplied.

    Returns: As `ctc_prefixes`: ``tokens``, ``lengths``, ``scores`` and ``frames``.
    Raises: As `ctc_prefixes`; ``ArgumentError`` where a scorer is to be called inside a compiled
        function; ``ShapeError`` for scores of another shape; ``RangeError`` also for a weight that
        is not finite, and for scores that are NaN or, weighted, +inf.
    NaN: stays in its own sequence.
    Gradient: none.
    Cost: As `ctc_prefixes`; with a scorer O(t·b·beam_width·c) time in NumPy, and the scorer's.
    Same as: no equivalent in PyTorch.
    Source: Hannun et al. 2014, First-pass large vocabulary continuous speech recognition using
        bi-directional recurrent DNNs, which also has weight and bonus.

    >>> logits = np.log([[[0.4, 0.35, 0.25]]])
    >>> never_one = lambda prefixes: np.log([[1.0, 0.01, 0.99]] * len(prefixes))
    >>> found = nativeops.ctc_beam_search(logits, n_best=3, scorer=never_one)
    >>> found.tokens[0, :, 0]
    array([-1,  2,  1], dtype=int32)
    """
    options: dict[str, Any] = {
        "beam_width": beam_width, "n_best": n_best, "blank": blank, "normalized": normalized,
        "token_threshold": token_threshold, "insertion_bonus": insertion_bonus,
    }  # fmt: skip
    own: Any = lengths_of("ctc_beam_search", ctc_prefixes, "lengths", lengths, logits)
    weight = _WEIGHT.check("ctc_beam_search", scorer_weight)
    if not -math.inf < weight < math.inf:  # which torch.compile can follow, too
        text = f"`scorer_weight` must be a finite number, but is {scorer_weight!r}."
        raise RangeError(message("ctc_beam_search", text))
    if scorer is not None and not callable(scorer):
        text = f"`scorer` must be a function of prefixes, but is {type(scorer).__name__}."
        raise ArgumentError(message("ctc_beam_search", text))
    if scorer is None or getattr(logits, "ndim", 0) not in (3, None):  # TensorFlow may not know it
        return _native(logits, own, options)
    # The op tells what is wrong, in its own words, and is done long before the search in NumPy.
    plain = _native(logits, own, options)
    x = _on_host(logits)
    frames = None if own is None else _on_host(own)
    weighted = Options(beam_width, blank, token_threshold, insertion_bonus, weight)
    found = search_batch(x, frames, n_best, normalized, weighted, scorer)
    result = CtcPrefixes(*(_back(logits, array) for array in found))
    return result._replace(scores=_with_derivative_of(plain.scores, result.scores))


vars(ctc_beam_search)["autograph_info__"] = True  # TensorFlow's AutoGraph leaves it as it is


def _native(logits: Any, lengths: Any, options: Mapping[str, Any]) -> CtcPrefixes[Any]:
    """The search without a scorer, on the CPU."""
    if not getattr(logits, "is_cuda", False):
        return ctc_prefixes(logits, lengths, **options)
    own: Any = None if lengths is None else lengths.cpu()
    there = ctc_prefixes(logits.cpu(), own, **options)
    return CtcPrefixes(*(array.to(logits.device) for array in there))


def _with_derivative_of(other: Any, scores: Any) -> Any:
    """The scores, which have no derivative where another array has none: it says so."""
    module = namespace(other)
    nowhere = module.zeros_like(scores) > 0
    return module.where(nowhere, other, scores)


def _on_host(array: Any) -> Any:
    """The numbers in NumPy; an error where a program is only being built."""
    text = "a `scorer` is called from Python: no compiled or transformed function can do that."
    hint = "search outside of it, or leave `scorer` away."
    refused = ArgumentError(message("ctc_beam_search", text, hint=hint))
    if is_compiling(array):
        raise refused
    try:
        if namespace(array).__name__ == "jax.numpy":  # while it is differentiated
            array = sys.modules["jax"].lax.stop_gradient(array)
        return to_numpy(array)
    except Exception as error:
        raise refused from error


def _back(logits: Any, array: Any) -> Any:
    """An array of the framework, device and kind of float that the logits have."""
    module = namespace(logits)
    made = module.constant(array) if hasattr(module, "RaggedTensor") else module.asarray(array)
    if hasattr(logits, "new_tensor"):
        made = made.to(logits.device)
    return cast(made, logits.dtype) if array.dtype.kind == "f" else made
