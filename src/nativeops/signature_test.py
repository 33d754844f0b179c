# SPDX-License-Identifier: Apache-2.0
"""Solving signatures: against a model that searches, and the same in Python and in the core."""

import itertools
import subprocess
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import nativeops.ops  # noqa: F401  declares the built-in ops
from nativeops import library
from nativeops.attributes import AttributeSpec
from nativeops.compilers import cpp_compiler
from nativeops.errors import DtypeError, Given, NativeOpsError, ShapeError
from nativeops.frameworks.numpy import framework
from nativeops.registry import find
from nativeops.signature import Signature, array_spec
from nativeops.testing import arguments
from nativeops.testing.arrays import arrays_of, numpy_dtype
from nativeops.testing.tolerance import assert_close, terms, tolerance

FEW = settings(max_examples=150, deadline=None, derandomize=True)
MANY = settings(FEW, max_examples=400, suppress_health_check=list(HealthCheck))
SIZES = range(5)

# Declarations of all kinds: (inputs, output); `k` is an attribute, an input with `?` is optional.
DECLARED = [
    (["*b n d", "*b m d"], "*b n m"),
    (["n d", "*b d"], "*b n"),
    (["n", "2*n"], "n"),
    (["*b n", "*b m", "*b n+m"], "*b n*m"),
    (["*b t d"], "*b t-k+1 d"),
    (["t", "t-k"], "k"),
    (["t", "(t-k)//2+1"], "k*t"),
    (["*b", "*b n"], "*b"),
    (["", "n"], "n"),
    (["n n", "k n"], "n//k"),
    (["3 n", "*b n 2"], "*b n"),
    (["*b n", "*b n", "*b"], "n"),
    (["*b n d", "?*b n", "?d m"], "*b n"),
    (["*b n", "?*b m"], "*b n*m"),
    (["n", "?2*n", "?n 3"], "n"),
]


def signature(inputs: Sequence[str], output: str) -> Signature:
    specs = tuple(
        array_spec(f"x{i}", "Float", axes.lstrip("?"), optional="?" in axes)
        for i, axes in enumerate(inputs)
    )
    k = AttributeSpec("k", int, required=True)
    return Signature("op", specs, (array_spec("out", "Float", output),), (k,))


SIGNATURES = [signature(*one) for one in DECLARED]
SHAPES = st.lists(
    st.lists(st.sampled_from((0, 1, 2, 2, 3, 3, 4)), max_size=4).map(tuple), min_size=3, max_size=3
)


def describe(one: Signature, shapes: Sequence[tuple[int, ...]]) -> list[Given]:
    pairs = zip(one.inputs, shapes, strict=False)
    return [spec.given("float32", shape) for spec, shape in pairs]


def outcome(one: Signature, shapes: Sequence[tuple[int, ...]], k: int) -> Any:
    """The output's shape, or None where the arguments do not fit."""
    try:
        solution = one.solve(describe(one, shapes), {"k": k})
    except ShapeError:
        return None
    return one.output_shape(one.outputs[0], solution)


def model(one: Signature, shapes: Sequence[tuple[int, ...]], k: int) -> Any:
    """The same by search: try all sizes of all names, and let NumPy broadcast."""
    pairs = zip(one.inputs, shapes, strict=False)
    there = [(s, shape) for s, shape in pairs if not (s.optional and shape == (0,) * len(s.axes))]
    names = sorted({n for s, _ in there for a in s.axes for n in a.names()} - {"k"})
    if not {n for a in one.outputs[0].axes for n in a.names()} <= {*names, "k"}:
        return None
    for sizes in itertools.product(SIZES, repeat=len(names)):
        known = {**dict(zip(names, sizes, strict=True)), "k": k}
        leads = [_lead(spec, shape, known) for spec, shape in there]
        if None in leads:
            continue
        try:
            lead = np.broadcast_shapes(*leads)
            own = [axis.evaluate(known) for axis in one.outputs[0].axes]
        except (ValueError, ZeroDivisionError):
            return None
        return (*(lead if one.outputs[0].batch else ()), *own) if min(own, default=0) >= 0 else None
    return None


def _lead(spec: Any, shape: tuple[int, ...], known: dict[str, int]) -> Any:
    """The leading axes of a shape, or None if its own axes are others."""
    cut = len(shape) - len(spec.axes)
    own = tuple(axis.evaluate(known) for axis in spec.axes)
    fits = cut >= 0 and shape[cut:] == own and (spec.batch or cut == 0)
    return shape[:cut] if fits else None


def fitting(one: Signature, shapes: Sequence[tuple[int, ...]], k: int, sizes: Sequence[int]) -> Any:
    """Shapes whose own axes fit, behind the leading axes of the given ones."""
    names = sorted({n for s in one.inputs for a in s.axes for n in a.names()} - {"k"})
    known = {**dict(zip(names, sizes, strict=False)), "k": k}
    made = []
    for spec, shape in zip(one.inputs, shapes, strict=False):
        own = tuple(axis.evaluate(known) for axis in spec.axes)
        absent = spec.optional and len(shape) % 2
        made.append((0,) * len(own) if absent else (*(shape[:2] if spec.batch else ()), *own))
    assume(all(size >= 0 for shape in made for size in shape))
    return made


CALL = (
    st.integers(0, len(DECLARED) - 1),
    SHAPES,
    st.integers(0, 4),
    st.lists(st.sampled_from(SIZES), min_size=3, max_size=3),
    st.booleans(),
)


def draw_call(number: int, shapes: Any, k: int, sizes: Any, fit: bool) -> Any:
    one = SIGNATURES[number]
    return one, fitting(one, shapes, k, sizes) if fit else shapes[: len(one.inputs)]


@MANY
@given(*CALL)
def test_solution_is_the_one_that_a_search_finds(number, shapes, k, sizes, fit) -> None:
    one, chosen = draw_call(number, shapes, k, sizes, fit)
    assert outcome(one, chosen, k) == model(one, chosen, k)


@pytest.fixture(scope="module")
def core_ops(tmp_path_factory) -> list[int]:
    """The same declarations in the core, with a kernel that does nothing."""
    folder = tmp_path_factory.mktemp("core")
    rows = [f'{{"solve{i}", "{one}", "float32", 0, run}},' for i, one in enumerate(SIGNATURES)]
    (folder / "none.cpp").write_text(
        '#include "nativeops/devices/abi.h"\n'
        "static int32_t run(const NativeopsCall*) { return kNativeopsOk; }\n"
        f"static const NativeopsEntry entries[] = {{{' '.join(rows)}}};\n"
        'static const NativeopsLibrary table = {NATIVEOPS_ABI, "cpu", "portable", '
        f"{len(rows)}, entries}};\n"
        'extern "C" const NativeopsLibrary* nativeops_library() { return &table; }\n'
    )
    source = library.Path(library.__file__).parent.parent
    command = [*cpp_compiler(), "-shared", "-fPIC", f"-I{source}", str(folder / "none.cpp")]
    subprocess.run([*command, "-o", str(folder / "none.so")], check=True)
    core = library.extension()
    ids = []
    for i, one in enumerate(SIGNATURES):
        slots = {name: slot for slot, name in enumerate(library._names(one))}
        arrays = [tuple(library._array(s, slots) for s in a) for a in (one.inputs, one.outputs)]
        numbers = tuple(library._attribute(s, slots) for s in one.attributes)
        ids.append(
            core.define(f"solve{i}", f"solve{i}", f"solve{i}", str(one), *arrays, numbers, 1, 1)
        )
    core.load(str(folder / "none.so"))
    return ids


class InCore:
    """What the extension asks an op for."""

    result = None  # one array

    def __init__(self, number: int) -> None:
        self.id = number


@MANY
@given(*CALL)
def test_core_solves_as_python_does(core_ops, number, shapes, k, sizes, fit) -> None:
    one, chosen = draw_call(number, shapes, k, sizes, fit)
    expected = outcome(one, chosen, k)
    arrays = tuple(np.empty(shape, np.float32) for shape in chosen)
    refused = []

    def explain(op, args, kwargs):
        refused.append(op)

    core = library.extension()
    dtypes = tuple(None if d == "bfloat16" else np.dtype(d) for d in library.DTYPES)
    core.connect_numpy(np.ndarray, np.empty, dtypes, explain)
    try:
        found = core.fast(InCore(core_ops[number]), arrays, {"k": k})
    finally:
        type(framework)()  # connects the adapter again
    assert bool(refused) == (expected is None)
    assert expected is None or found.shape == expected


OPS = ("pairwise_l1", "pairwise_l1_grad", "pairwise_lp")
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "bool", "complex64", ">f4", "O")
AXES = st.lists(st.sampled_from((0, 1, 2, 3)), max_size=4)
ARRAY = st.one_of(
    st.builds(
        lambda shape, dtype: np.zeros(shape, numpy_dtype(dtype)), AXES, st.sampled_from(DTYPES)
    ),
    st.sampled_from((None, 1.0, "x", [[1.0]], np.float32(2), range(3))),
)
NUMBER = st.one_of(
    st.floats(), st.integers(), st.sampled_from((None, "x", True, np.float32(2), 1j, [1], 2**70))
)


@settings(FEW, max_examples=500)
@given(st.sampled_from(OPS), st.lists(ARRAY, max_size=4), st.none() | NUMBER, st.booleans())
def test_any_arguments_give_a_result_or_an_error_of_ours(name, arrays, p, unknown) -> None:
    op = find(name)
    options = {} if p is None else {"p": p}
    if unknown:
        options["nothing"] = 1
    check_refusal(op, arrays, options)


def check_refusal(op: Any, arrays: Sequence[Any], options: Any) -> None:
    """The op gives a result, or an error of ours that names it."""
    said = f"{op.name}: "
    try:
        op(*arrays, **options)
    except NativeOpsError as error:
        said = str(error)
    assert said.startswith(f"{op.name}: ")


@settings(FEW, max_examples=300)
@given(
    st.sampled_from(OPS), st.lists(st.tuples(ARRAY, st.booleans()), max_size=4), st.none() | NUMBER
)
def test_any_arguments_in_torch_give_a_result_or_an_error_of_ours(name, arrays, p) -> None:
    torch = pytest.importorskip("torch")
    made = []
    for array, as_tensor in arrays:
        plain = isinstance(array, np.ndarray) and array.dtype.str[1:] in (
            "f4",
            "f8",
            "i4",
            "b1",
            "c8",
        )
        tensor = as_tensor and plain and array.dtype.isnative
        made.append(torch.from_numpy(array) if tensor else array)
    check_refusal(find(name), made, {} if p is None else {"p": p})


@st.composite
def layouts(draw: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """An array of a shape, cut in some way out of a larger one."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    steps = [draw(st.sampled_from((1, 2, -1, -3))) for _ in shape]
    axes = draw(st.permutations(range(len(shape))))
    big = [shape[a] * abs(steps[a]) + draw(st.integers(0, 2)) for a in axes]
    buffer = random.standard_normal(big).astype(numpy_dtype(dtype))
    view = buffer.transpose(np.argsort(axes))
    cut = view[tuple(slice(None, None, step) for step in steps)]
    return cut[tuple(slice(size) for size in shape)]


@st.composite
def calls(draw: Any) -> Any:
    """Valid arguments of `pairwise_l1`, of any shape, layout and leading axes."""
    dtype = draw(st.sampled_from(("float32", "float64", "float16", "bfloat16")))
    n, m, d = (draw(st.sampled_from((0, 1, 2, 5, 16, 19, 33))) for _ in range(3))
    lead = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    cut = [lead[draw(st.integers(0, len(lead))) :] for _ in range(2)]
    own = [tuple(1 if draw(st.booleans()) else size for size in one) for one in cut]
    shapes = ((*own[0], n, d), (*own[1], m, d))
    return dtype, tuple(draw(layouts(shape, dtype)) for shape in shapes)


@settings(MANY, max_examples=300)
@given(calls())
def test_random_layouts_and_batches_give_what_the_reference_gives(call) -> None:
    dtype, (x, y) = call
    op = find("pairwise_l1")
    exact = op.reference(x.astype(np.float64), y.astype(np.float64))
    known = {"n": x.shape[-2], "m": y.shape[-2], "d": x.shape[-1]}
    allowed = tolerance(exact, dtype, terms(op, op.signature.outputs[0], known, 1))
    found = op(x, y)
    assert arrays_of("numpy", "cpu").dtype(found) == dtype
    assert_close(found, exact, allowed, "`out`")


def test_first_dtype_chooses_and_the_other_is_named() -> None:
    op = find("pairwise_l1")
    given = arguments(op, np.random.default_rng(0))
    with pytest.raises(DtypeError, match="`x` is float64 but `y` is float32"):
        op(given["x"], given["y"].astype(np.float32))


def test_sums_are_as_wide_as_the_floats_want() -> None:
    """Also where the sums come first; an absent array has no say."""
    specs = (
        array_spec("mean", "Accum", "n"),
        array_spec("x", "Float", "n"),
        array_spec("scale", "Accum", "n", optional=True),
    )
    one = Signature("op", specs, (array_spec("out", "Accum", "n"),))

    def dtype(*dtypes: str) -> str:
        arrays = [spec.given(d, (3,)) for spec, d in zip(specs, dtypes, strict=False)]
        absent = specs[2].given("float32", (0,))
        solution = one.solve([*arrays, absent][:3], {})
        return one.output_dtype(one.outputs[0], solution)

    assert dtype("float32", "bfloat16") == dtype("float32", "float32", "float32") == "float32"
    assert dtype("float64", "float64") == "float64"
    text = "`mean` must be float32 where `x` is float16, but is float64"
    with pytest.raises(DtypeError, match=text):
        dtype("float64", "float16")
    with pytest.raises(DtypeError, match="`mean` is float32 but `scale` is float64"):
        dtype("float32", "float32", "float64")
    with pytest.raises(DtypeError, match="`mean` must be float32 or float64, but is float16"):
        dtype("float16", "float16")


def test_transposed_match_is_hinted_at() -> None:
    with pytest.raises(ShapeError, match=r"did you mean `y\.swapaxes"):
        find("pairwise_l1")(np.zeros((3, 4)), np.zeros((4, 6)))


def test_what_does_not_fit_when_transposed_is_not_turned() -> None:
    with pytest.raises(ShapeError) as caught:
        find("rnn_layer")(np.zeros((4, 3, 6)), np.zeros((7, 6)), np.zeros((7, 5)))
    assert "hint: give `w_hh` the size 7 along `h`." in str(caught.value)
    with pytest.raises(ShapeError, match=r"did you mean `w_ih\.swapaxes"):
        find("rnn_layer")(np.zeros((4, 3, 6)), np.zeros((6, 7)), np.zeros((7, 7)))


def test_array_of_unlike_sides_does_not_fit_when_transposed() -> None:
    square = Signature("op", (array_spec("x", "Float", "n n"),), (array_spec("out", "Float", "n"),))
    with pytest.raises(ShapeError) as caught:
        square.solve([Given("x", "float32", (3, 4), "Float[n n]")], {})
    assert "axis `n` is 3 in `x` but 4 in `x`" in str(caught.value)
    assert "give `x` the same size along both" in str(caught.value)


def test_leading_axes_of_one_unknown_size_are_equal() -> None:
    class Unknown:  # as in PyTorch's compiler: the same as itself, but perhaps 1 and perhaps not
        def __eq__(self, other):
            if self is other:
                return True
            raise AssertionError("nobody knows")

        __hash__ = None

    u, op = Unknown(), SIGNATURES[0]
    given = [Given(f"x{i}", "float32", (u, 2, 3), "Float[*b n d]") for i in range(2)]
    assert op.solve(given, {"k": 1}).batch == (u,)
