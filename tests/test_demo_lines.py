# SPDX-License-Identifier: Apache-2.0
"""The recogniser of the demo: its data, its training, what it reads, its picture and its page."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")
pytest.importorskip("torch")
import torch
from matplotlib.image import imread
from typer.testing import CliRunner

from nativeops.bench.check import check_result
from nativeops.bench.measure import QUICK
from nativeops.cli.app import app
from nativeops.demos import lines, lines_data, lines_model, lines_speed
from nativeops.demos.digits import Digits, digits
from nativeops.demos.lines_data import HEIGHT, compose, held_out_lines, training_lines
from nativeops.demos.lines_train import Plan, Training, train
from nativeops.errors import ArgumentError
from nativeops.testing.aspects import num_threads

TINY = Plan(steps=6, batch=3, hidden=8, keep_every=2)


def test_no_image_is_on_both_sides() -> None:
    data = digits()
    train, held_out = ({image.tobytes() for image in images} for images in data[::2])
    assert len(train) > 1300
    assert len(held_out) > 400
    assert not train & held_out


def test_lines_show_images_of_their_own_side_and_their_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each image has one number of its own, which tells who it is."""
    numbers = np.arange(1, 17, dtype=np.float32)
    images, labels = np.repeat(numbers[:, None], 64, 1), np.arange(16) % 10
    data = Digits(images[:10], labels[:10], images[10:], labels[10:])
    monkeypatch.setattr(lines_data, "digits", lambda: data)
    monkeypatch.setattr(lines_data, "INK", 0.0)
    for made, own in ((training_lines(0, 3, 9), range(10)), (held_out_lines(0, 9), range(10, 16))):
        for i, row in enumerate(made.labels()):
            inks = (16 * made.pixels[: made.lengths[i], i].max(1)).round().astype(int)
            shown = [inks[t] - 1 for t in range(len(inks)) if inks[t] and _begins(inks, t)]
            assert set(shown) <= set(own)
            assert [labels[each] + 1 for each in shown] == row
            assert not made.pixels[made.lengths[i] :, i].any()


def _begins(inks: Any, t: int) -> bool:
    """Whether an image of 8 columns begins here; the same one may come twice in a row."""
    run = t
    while run and inks[run - 1] == inks[t]:
        run -= 1
    return (t - run) % 8 == 0


def test_a_line_is_its_images_at_uneven_places() -> None:
    one = np.ones((1, 64), np.float32) * 16
    made = compose(np.random.default_rng(0), one, np.array([7]), 20)
    assert made.pixels.shape[1:] == (20, HEIGHT)
    for i in range(20):
        assert made.pixels[:, i].sum() == 64 * made.target_lengths[i]
        assert made.labels()[i] == [8] * made.target_lengths[i]
    tops = {int(np.flatnonzero(made.pixels[:, i].any(0))[0]) for i in range(20)}
    assert len(tops) > 1
    assert len({*(made.lengths - 8 * made.target_lengths).tolist()}) > 1


def test_only_what_is_learnt_from_has_thinner_and_thicker_ink() -> None:
    data = digits()
    known = {*(data.train / 16).ravel().tolist()}
    assert {*held_out_lines(0, 9).pixels.ravel().tolist()} <= known
    pixels = training_lines(0, 3, 9).pixels
    assert len({*pixels.ravel().tolist()} - known) > 100
    assert 0 == pixels.min() < pixels.max() <= 1


def test_the_lines_of_a_step_are_always_the_same() -> None:
    first, again, other = (training_lines(0, step, 5) for step in (4, 4, 5))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert first.labels() != other.labels()


def test_a_line_is_read_the_same_beside_longer_ones() -> None:
    model = lines_model.Recogniser(8)
    made = held_out_lines(0, 6)
    shortest = int(made.lengths.argmin())
    n = lines_model.frames(int(made.lengths[shortest]))
    together = lines_model.log_posterior(model, made)[:n, shortest]
    alone = lines_model.log_posterior(model, made.part([shortest]))[:n, 0]
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-6)


def test_both_libraries_have_the_same_loss_and_gradients() -> None:
    arrays = lines_speed.inputs(np.random.default_rng(0), lines=4, hidden=8)
    (bench,) = lines_speed.BENCHES
    right = lines_speed.expected(*arrays)
    assert len(right) == 1 + len(list(lines_model.Recogniser(8).parameters()))
    for rival in bench.rivals:
        check_result(rival.prepare(*arrays)(), right, bench.tolerance)


def test_edits_are_those_of_levenshtein() -> None:
    words = ["", "kitten", "sitting", "flaw", "lawn", "intention", "execution"]
    known = [("kitten", "sitting", 3), ("flaw", "lawn", 2), ("intention", "execution", 5)]
    known += [case for word in words for case in ((word, "", len(word)), (word, word, 0))]
    found, right = ([[*map(ord, case[side])] for case in known] for side in (0, 1))
    assert lines_model.edits(found, right) == [distance for _, _, distance in known]
    assert lines_model.label_error([[1, 2], []], [[1], [3, 3]]) == 1.0


def test_decoding_and_alignment_find_what_the_frames_say() -> None:
    path = [0, 3, 3, 0, 3, 5, 5, 0]
    log_probs = torch.full((len(path), 1, 11), -9.0)
    log_probs[range(len(path)), 0, path] = 0.0
    log_probs = log_probs.log_softmax(2)
    length = np.array([len(path)], np.int32)
    assert lines_model.best_paths(log_probs, length) == [[3, 3, 5]]
    assert lines_model.beam_search(log_probs, length) == [[3, 3, 5]]
    assert lines_model.best_paths(log_probs, length - 4) == [[3]]
    ((first, second, third),) = lines_model.spans(log_probs, [[3, 3, 5]], length)
    assert [span[:2] for span in (first, second, third)] == [(1, 3), (4, 5), (5, 7)]
    assert min(first[2], second[2], third[2]) > 0.99


def states(training: Training) -> list[Any]:
    """All numbers of a training."""
    moments = training.optimizer.state_dict()["state"]
    kept = [value for own in moments.values() for value in own.values()]
    return [*training.model.state_dict().values(), *kept]


class PowerCutError(Exception):
    """What ends a training here."""


def interrupted_after(step: int) -> Any:
    def hear(text: str, share: float) -> None:
        if share >= step / TINY.steps:
            raise PowerCutError

    return hear


def test_interrupted_training_resumes_to_the_same_bits(tmp_path: Path) -> None:
    checkpoint = tmp_path / "training.pt"
    whole = train(TINY)
    for step in (1, 3, 5):  # before the first checkpoint, and twice between two
        with pytest.raises(PowerCutError):
            train(TINY, checkpoint, interrupted_after(step))
        assert checkpoint.exists() == (step > 1)
    kept = Training(TINY)
    kept.load(checkpoint)
    assert kept.losses == whole.losses[:4]
    resumed = train(TINY, checkpoint)
    assert resumed.resumed == 4
    assert resumed.losses == whole.losses
    for ours, theirs in zip(states(resumed), states(whole), strict=True):
        assert torch.equal(ours, theirs)
    assert [path.name for path in tmp_path.iterdir()] == ["training.pt"]


def test_a_checkpoint_is_never_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = tmp_path / "training.pt"
    training = Training(TINY)
    training.save(checkpoint)
    before = checkpoint.read_bytes()

    def cut_off(state: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(torch, "save", cut_off)
    with pytest.raises(OSError, match="no space left"):
        training.save(checkpoint)
    assert checkpoint.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    checkpoint = tmp_path / "training.pt"
    Training(TINY).save(checkpoint)
    with pytest.raises(ArgumentError, match=r"other settings: .*'hidden': 8") as caught:
        train(replace(TINY, hidden=16), checkpoint)
    assert "remove it, or name another file" in str(caught.value)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"text", b"PK\x03\x04"):
        checkpoint = tmp_path / "training.pt"
        checkpoint.write_bytes(content)
        with pytest.raises(ArgumentError, match="is no checkpoint of a training"):
            train(TINY, checkpoint)
    torch.save([1, 2], checkpoint)
    with pytest.raises(ArgumentError, match="is no checkpoint of a training"):
        train(TINY, checkpoint)


def test_quick_takes_fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert replace(lines.PLAN, steps=lines.SHORT.steps) == lines.SHORT
    assert lines.SHORT.steps < lines.PLAN.steps
    monkeypatch.setattr(lines, "SHORT", TINY)
    monkeypatch.setattr(lines, "HELD_OUT", 3)
    efforts = []
    monkeypatch.setattr(lines, "run", lambda bench, progress: efforts.append(bench.effort) or [])
    outcome = lines.demo(None, quick=True, progress=lambda text, share: None)
    assert outcome.training.plan == TINY
    assert outcome.training.step == TINY.steps
    assert efforts == [QUICK]


@pytest.mark.slow
def test_the_command_trains_reads_compares_and_draws(tmp_path: Path) -> None:
    """One test, as its minute of training should be spent once.

    With one thread: beside other tests PyTorch's wait for one another most of the time.
    """
    picture, page = tmp_path / "picture.png", tmp_path / "page.html"
    words = ["demo", "--output", str(picture), "--report", str(page)]
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with num_threads(1):
            result = CliRunner().invoke(app, words)
    finally:
        torch.set_num_threads(before)
    assert result.exit_code == 0, result.output
    _reads_98_of_100_digits(result.stdout)
    _compares_with_pytorch(result.stdout)
    assert min(imread(picture).shape[:2]) > 600
    _is_one_file(page.read_text(), result.stdout)
    assert {path.name for path in tmp_path.iterdir()} == {picture.name, page.name}  # no checkpoint


def _reads_98_of_100_digits(said: str) -> None:
    found = re.search(r"Label error .* ([\d.]+)% by best path, ([\d.]+)% by beam search", said)
    assert found
    assert max(map(float, found.groups())) <= 2


def _compares_with_pytorch(said: str) -> None:
    for name in ("nativeops", "torch.nn.LSTM and CTCLoss", "torch.nn.LSTM, our CTCLoss"):
        line = next(line for line in said.splitlines() if line.strip().startswith(name))
        assert re.search(r"[\d.]+ (ms|us|s) +[\d.]+ (ms|us|s) - [\d.]+ (ms|us|s) +[\d.]+x", line)


def _is_one_file(page: str, said: str) -> None:
    assert not re.search(r"(?:src|href)=\"(?!data:)|url\(|@import|<script|<link|https?://", page)
    assert page.count("data:image/png;base64,") == 1
    sentence = next(line for line in said.splitlines() if line.startswith("Label error"))
    assert sentence in page
    for name in ("nativeops", "torch.nn.LSTM and CTCLoss"):
        assert f"<td>{name}</td>" in page


def test_lines_with_mistakes_are_shown_first() -> None:
    made = held_out_lines(0, 4)
    right = made.labels()
    found = [right[0], right[1][:-2], right[2], right[3][:-1]]
    spans: list[Any] = [[]] * 4
    reading = lines.Reading(made, None, right, found, spans)
    first, *others = reading.shown()
    assert found[first] == right[first]
    assert others[:2] == [1, 3]
    assert reading.errors()["best path"] == 0
    assert reading.errors()["beam search"] == pytest.approx(3 / sum(map(len, right)))


def test_options_of_the_recogniser_are_refused_by_the_other_demo(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "l1", "--report", str(tmp_path / "page.html")])
    assert result.exit_code == 2
    assert "belong to the demo `lines`" in result.stderr


def test_a_command_that_is_interrupted_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(checkpoint: Path, **options: Any) -> None:
        checkpoint.write_bytes(b"a state")
        raise KeyboardInterrupt

    monkeypatch.setattr(lines, "demo", stopped)
    path = tmp_path / "picture.png"
    result = CliRunner().invoke(app, ["demo", "--output", str(path)])
    assert result.exit_code == 130
    assert f"goes on from {path.with_suffix('.pt')}" in result.stderr


def test_lines_can_be_taken_in_part() -> None:
    made = held_out_lines(0, 5)
    part = made.part(slice(1, 3))
    assert part.labels() == made.labels()[1:3]
    np.testing.assert_array_equal(part.pixels, made.pixels[:, 1:3])
