# SPDX-License-Identifier: Apache-2.0
"""Every public function and every op is documented, and the documentation is true."""

import doctest
import inspect
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nativeops
import nativeops.ops
from nativeops.call import Op
from nativeops.document import document
from nativeops.registry import find, ops

ROOT = Path(__file__).resolve().parent.parent
PUBLIC = [getattr(nativeops, name) for name in nativeops.__all__]
FUNCTIONS = [f for f in PUBLIC if not inspect.isclass(f)]
# Of every op; the sections "Raises" and "Returns" only where there is something to say.
SECTIONS = ["Args", "Gradient", "Cost", "Same as"]


@pytest.mark.parametrize("op", ops(), ids=lambda op: op.name)
def test_op_is_documented_by_the_template(op: Op[Any]) -> None:
    text = inspect.cleandoc(op.reference.__doc__ or "")
    first, blank, *rest = text.splitlines()
    assert first.endswith(".")
    assert len(first) <= 80
    assert not blank
    assert rest[0].startswith("``"), "the formula comes after the first sentence"
    places = [text.find(f"\n{section}:") for section in SECTIONS]
    assert -1 not in places
    assert places == sorted(places)
    for spec in (*op.signature.inputs, *op.signature.attributes):
        assert f"\n    {spec.name}: " in text, f"`{spec.name}` is not explained"


@pytest.mark.parametrize("op", [f for f in FUNCTIONS if isinstance(f, Op)], ids=lambda op: op.name)
def test_public_op_names_its_source(op: Op[Any]) -> None:
    assert "\nSource:" in (op.__doc__ or "")


@pytest.mark.parametrize("op", ops(), ids=lambda op: op.name)
def test_document_states_all_that_is_declared(op: Op[Any]) -> None:
    text = document(op)
    assert str(op.signature) in text
    for spec in (*op.signature.inputs, *op.signature.outputs):
        if spec.kept:  # hidden, but in the signature
            continue
        assert f"    {spec.name} " in text
        assert str(spec) in text
    for attribute in op.signature.attributes:
        assert f"default {attribute.default!r}" in text or attribute.required
        assert attribute.bounds in text


def test_document_marks_optional_results_and_hides_kept_ones() -> None:
    text = document(nativeops.registry.find("pairwise_l1_grad"))
    results = text.partition("Results:")[2].partition("\n\n")[0]
    assert results.count("optional") == 2


def test_help_shows_the_document() -> None:
    shown = pydoc.plain(pydoc.render_doc(nativeops.pairwise_lp))
    for line in document(nativeops.pairwise_lp).splitlines():
        assert line in shown


@pytest.mark.parametrize("function", dict.fromkeys([*FUNCTIONS, *ops()]), ids=lambda f: f.__name__)
def test_examples_in_docstrings_are_right(function: Any) -> None:
    names = {"np": np, "nativeops": nativeops, function.__name__: function}
    examples = doctest.DocTestParser().get_doctest(
        function.__doc__, names, function.__name__, None, None
    )
    assert examples.examples, "there is no example"
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples)
    assert not result.failed


@pytest.mark.parametrize("name", nativeops.__all__)
def test_public_names_have_a_docstring(name: str) -> None:
    assert (getattr(nativeops, name).__doc__ or "").strip()


def test_reference_pages_are_those_of_the_declarations(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "nativeops.document", tmp_path], check=True)
    committed = ROOT / "docs/reference"
    assert {p.name for p in committed.iterdir()} == {p.name for p in tmp_path.iterdir()}
    for page in tmp_path.iterdir():
        assert page.read_text() == (committed / page.name).read_text(), "run `make docs`"


def test_page_names_the_devices_with_a_kernel_of_their_own() -> None:
    tuned = {"lstm_layer": "cpu, cuda", "pairwise_l1": "cpu", "ctc_fsa": "none; the portable"}
    for name, devices in tuned.items():
        assert f"Tuned for    {devices}" in document(find(name))
