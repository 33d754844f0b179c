# SPDX-License-Identifier: Apache-2.0
"""The demo's findings as one page that needs no other file."""

import io
from base64 import b64encode
from pathlib import Path
from typing import Any

from nativeops.bench.machine import commit, cpu_name, package_version, today
from nativeops.demos import lines

TEMPLATE = Path(__file__).with_name("lines_report.html.jinja")


def html(outcome: lines.Outcome, figure: Any) -> str:
    """The page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    packages = ("nativeops", "torch", "scikit-learn", "numpy")
    return environment.from_string(TEMPLATE.read_text("utf-8")).render(
        findings=lines.findings(outcome),
        picture=_as_uri(figure),
        columns=lines.COLUMNS,
        rows=lines.rows(outcome.speed),
        plan=outcome.training.plan,
        parameters=sum(each.numel() for each in outcome.training.model.parameters()),
        cpu=cpu_name(),
        commit=commit(),
        date=today(),
        versions={name: package_version(name) for name in packages},
    )


def _as_uri(figure: Any) -> str:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"
