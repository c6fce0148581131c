"""Text in, batches out."""

import math
import os

import numpy as np
import pytest

from minidist import UsageError, data
from minidist.nn.layers import micro_batches

TEXT = "Kaum hört er's nicht: α→ω, 😀\n\tdann still. " * 30


def load(tmp_path, text, context=8):
    path = tmp_path / "my.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return data.load(str(path), context)


def test_every_character_is_a_token_and_comes_back(tmp_path):
    corpus = load(tmp_path, TEXT)
    assert corpus.name == "my.txt"
    assert corpus.decode(np.concatenate([corpus.train, corpus.validation])) == TEXT
    assert corpus.vocabulary == "".join(sorted(set(TEXT)))
    assert len(corpus.train) == len(TEXT) * 9 // 10


def test_line_ends_do_not_matter(tmp_path):
    unix, windows = (load(tmp_path, (f"one{end}two{end}" * 40).encode()) for end in ("\n", "\r\n"))
    assert "\r" not in windows.vocabulary
    np.testing.assert_array_equal(unix.train, windows.train)


def test_targets_are_the_next_characters(tmp_path):
    corpus = load(tmp_path, TEXT)
    train, validation = corpus.decode(corpus.train), corpus.decode(corpus.validation)
    for part, drawn in ((train, corpus.batch(50, 8, key=(0, 1))), (validation, corpus.validation_batch(50, 8))):
        x, y = map(np.asarray, drawn)
        assert x.shape == y.shape == drawn[0].shape == (50, 8)
        for before, after in zip(x, y, strict=True):
            np.testing.assert_array_equal(before[1:], after[:-1])
            assert corpus.decode(before) + corpus.decode(after[-1:]) in part


def test_a_batch_depends_on_its_key_alone(tmp_path):
    corpus = load(tmp_path, TEXT)
    first = np.asarray(corpus.batch(16, 8, key=(0, 1)))
    np.testing.assert_array_equal(first, corpus.batch(16, 8, key=(0, 1)))
    for key in ((0, 2), (1, 1)):
        assert (first != np.asarray(corpus.batch(16, 8, key=key))).any()


def test_batches_reach_every_character_and_validation_is_apart(tmp_path):
    """A text of all different characters tells where a sequence is from."""
    text = "".join(map(chr, range(1000, 1100)))
    corpus = load(tmp_path, text, context=9)
    x, y = map(np.asarray, corpus.batch(2000, 9, key=(3,)))
    assert set(corpus.decode(x.ravel())) == set(text[:89])  # the last one is only ever predicted
    assert set(corpus.decode(y.ravel())) == set(text[1:90])
    x, y = map(np.asarray, corpus.validation_batch(3, 9))  # a tenth holds one sequence and its last target, and no more
    assert {corpus.decode(row) for row in x} == {text[90:99]}
    assert {corpus.decode(row) for row in y} == {text[91:]}


def test_rows_of_a_batch_are_read_when_they_are_asked_for(tmp_path):
    """By slices or by numbers; and a batch can be cut into micro-batches before any row is read."""
    corpus = load(tmp_path, TEXT)
    x, y = corpus.batch(12, 8, key=(0, 1))
    whole, shifted = np.asarray(x), np.asarray(y)
    assert (len(x), x.size, whole.dtype) == (12, 96, corpus.train.dtype)
    np.testing.assert_array_equal(x[3:5], whole[3:5])
    np.testing.assert_array_equal(y[np.array([7, 1])], shifted[[7, 1]])
    parts = micro_batches(x, y, 4)
    np.testing.assert_array_equal(np.concatenate([part for part, _ in parts]), whole)
    np.testing.assert_array_equal(parts[2][1][1:], shifted[7:9])
    np.testing.assert_array_equal(micro_batches(whole, shifted, 4)[1][0], whole[3:6])
    with pytest.raises(ValueError, match="12 sequences cannot be divided into 5 equal micro-batches"):
        micro_batches(x, y, 5)


def test_a_text_is_read_once_in_a_process_and_again_if_it_has_changed(tmp_path):
    first = load(tmp_path, TEXT)
    assert data.load(str(tmp_path / "my.txt"), 4).train is first.train
    with pytest.raises(ValueError, match="read-only"):  # ranks of one process share it
        first.train[0] = 1
    second = load(tmp_path, TEXT[::-1])
    assert second.decode(second.train[:9]) == TEXT[:-10:-1]


def test_validation_sequences_are_spread_over_their_part(tmp_path):
    corpus = load(tmp_path, "".join(map(chr, range(1000, 2000))), context=9)
    x, _ = map(np.asarray, corpus.validation_batch(4, 9))
    assert [corpus.vocabulary.index(corpus.decode(row[:1])) for row in x] == [900, 930, 960, 990]


def test_unigram_entropy(tmp_path):
    """A quarter each of four characters is 2 bits; half, quarter, quarter is 1.5."""
    assert load(tmp_path, "abcd" * 50).unigram_entropy() == pytest.approx(2 * math.log(2))
    assert load(tmp_path, "aabc" * 50).unigram_entropy() == pytest.approx(1.5 * math.log(2))
    assert load(tmp_path, "a" * 200).unigram_entropy() == pytest.approx(0)


def test_bad_files_are_refused_in_one_line(tmp_path):
    cases = {
        "is empty": b"",
        r"has 89 characters; --context 8 needs at least 90": b"a" * 89,
        r"is not UTF-8 text \(byte 100\)": b"a" * 100 + b"\xff" + b"a" * 100,
    }
    for message, content in cases.items():
        with pytest.raises(UsageError, match=message) as error:
            load(tmp_path, content)
        assert "my.txt" in str(error.value)
        assert "\n" not in str(error.value)
    with pytest.raises(UsageError, match=r"cannot read --data .*: No such file"):
        data.load(str(tmp_path / "missing.txt"), 8)
    with pytest.raises(UsageError, match=r"cannot read --data .*: Is a directory"):
        data.load(str(tmp_path), 8)
    assert len(load(tmp_path, b"a" * 90).validation) == 9


def test_without_a_file_there_is_the_same_text_whatever_the_python():
    corpus = data.load(None, 64)
    assert corpus.name == "python_help.txt"
    assert (len(corpus.train) + len(corpus.validation), len(corpus.vocabulary)) == (465_048, 103)
    assert "lambda" in corpus.decode(corpus.train)
    with pytest.raises(UsageError, match=r"python_help\.txt has .* use a longer text or a shorter context"):
        data.load(None, 10**6)


def test_what_has_no_end_is_refused(tmp_path):
    """A pipe would wait for a writer, and be read by one rank alone; /dev/zero never ends."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(UsageError, match=r"cannot read --data .*: it is not a file"):
            data.load(str(path), 8)
    with open(tmp_path / "huge", "wb") as file:
        file.truncate(10**12)
    with pytest.raises(UsageError, match="has 1,000,000 MB, and 200 may be read: use a part of it"):
        data.load(str(tmp_path / "huge"), 8)
