# SPDX-License-Identifier: Apache-2.0
"""The command ``nativeops``. Data goes to standard output, progress to standard error."""

import sys

MISSING = "nativeops: the command line needs typer and rich: run `pip install 'nativeops[cli]'`."


def main() -> None:
    """Run the command line, or say what it needs."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ImportError:
        print(MISSING, file=sys.stderr)
        raise SystemExit(2) from None
    from nativeops.cli.app import app

    app(prog_name="nativeops")
