# SPDX-License-Identifier: Apache-2.0
"""What a gradient rule gave that is not one fitting gradient for each input."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def gradients_word(gradients: Sequence[Any]) -> str:
    """What a gradient rule gave that is not one gradient for each input."""
    if len(gradients) == 1 and (gradients[0] is None or isinstance(gradients[0], Mapping)):
        return "nothing" if gradients[0] is None else "a dict"
    return f"{len(gradients)} gradients"


def check_gradients(op: str, gradients: Sequence[Any], wanted: int) -> None:
    """Refuse what is not one array, or None, for each of the inputs."""
    if len(gradients) != wanted:
        text = f"{op}: the gradient rule gave {gradients_word(gradients)} for {wanted} inputs"
        raise TypeError(f"{text}: give one gradient for each, in order")
    for gradient in gradients:
        if gradient is not None and not hasattr(gradient, "dtype"):
            kind = type(gradient).__name__
            text = f"{op}: the gradient rule gave {'an' if kind[0] in 'aeiou' else 'a'} {kind}"
            raise TypeError(f"{text} for an input: give an array, or None")


def apart(gradients: Sequence[Any], copy: Callable[[Any], Any]) -> list[Any]:
    """The same with a copy where one comes again, as that of both biases of a layer does."""
    seen: set[int] = set()
    found = []
    for gradient in gradients:
        again = gradient is not None and id(gradient) in seen
        found.append(copy(gradient) if again else gradient)
        seen.add(id(gradient))
    return found


def check_fit(op: str, gave: tuple[str, Any], wanted: tuple[str, Any]) -> None:
    """Refuse a gradient of other dtype and shape than its input; what is None is not known.

    It may be longer along axes of size 1, and have more axes in front: those are summed over.
    """
    (dtype, shape), (wanted_dtype, wanted_shape) = gave, wanted
    fits = dtype == wanted_dtype
    if fits and shape is not None and wanted_shape is not None:
        pairs = zip(reversed(shape), reversed(wanted_shape), strict=False)
        fits = len(shape) >= len(wanted_shape)
        fits = fits and all(n == 1 or n == size or None in (n, size) for size, n in pairs)
    if not fits:
        one, other = (f"{kind}{'[?]' if s is None else [*s]}" for kind, s in (gave, wanted))
        raise TypeError(f"{op}: the gradient rule gave {one} for an input of {other}")
