# SPDX-License-Identifier: Apache-2.0
"""Findings for errors that what stands beside a kernel raised, in whichever aspect it was used."""

from typing import Any

from nativeops.call import Op
from nativeops.checking import source
from nativeops.checking.finding import Finding, found
from nativeops.checking.reports import compiler_errors
from nativeops.errors import BuildError, KernelError
from nativeops.testing.claims import ClaimError
from nativeops.testing.returned import OwnError


def fault(op: Op[Any], error: Exception, case: object = "", device: str = "") -> Finding | None:
    """The finding for an error, unless it says that the kernel's numbers are wrong."""
    where = f" ({case})" if case else ""
    if isinstance(error, BuildError):
        return build_failure(op, error, device)
    if isinstance(error, KernelError):
        text = str(error).partition(": ")[2] + where
        return found(op.name, "the kernel fails", text, source.kernel(op))
    if isinstance(error, ClaimError):
        return found(op.name, error.claim, error.text + where, source.declaration(op))
    if isinstance(error, OwnError):
        raised = source.raised_in(error.function, error.__cause__)
        place = raised.place if raised else source.beginning(error.function)
        return found(op.name, error.bug, error.text + where, place or source.declaration(op))
    if raised := source.raised_by_rule(op, error):
        return rule_failure(op, raised, where)
    if raised := source.raised_in(op.reference, error):
        text = f"it raises {type(error).__name__}: {error}{where}"
        return found(op.name, "the reference fails", text, raised.place)
    return None


def rule_failure(op: Op[Any], raised: source.Raised, where: str) -> Finding:
    """The finding for a gradient rule that raises."""
    error = raised.error
    text = f"the rule raises {type(error).__name__}: {error}{where}"
    return found(op.name, "the gradient rule fails", text, raised.place)


def build_failure(op: Op[Any], error: BuildError, device: str = "") -> Finding:
    """The finding for a kernel that does not compile."""
    place, text = compiler_errors(str(error), source.own_files(op))
    bug = "the kernel does not compile" + (f" for {device}" if device else "")
    return found(op.name, bug, text, place or source.kernel(op))
