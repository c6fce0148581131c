"""Text in, batches out."""

import bz2
import gzip
import json
import lzma
import math
import os
import struct

import numpy as np
import pytest

from minidist import UsageError
from minidist.exchange.one_process import run_ranks
from minidist.mr.files import check_inputs
from minidist.nn.layers import micro_batches
from minidist.programs.chapter import find
from minidist.text import data
from tables import table

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


@pytest.mark.parametrize(("line", "rows"), table(__file__, "a_rank_reads_only_its_own_rows"))
def test_a_rank_reads_only_its_own_rows(line, rows, monkeypatch, capsys):
    """Of a batch of 8, on four ranks; inputs and targets."""
    read, whole = [], data.Sequences.__array__

    def seen(self, *how, **more):
        read.append(len(self))
        return whole(self, *how, **more)

    monkeypatch.setattr(data.Sequences, "__array__", seen)
    name, *options = f"{line} --batch 8 --layers 2 --width 16 --context 8 --steps 1 --validate 0 --no-prove".split()
    chapter = find(name)
    assert run_ranks(lambda comm: chapter.work(comm, chapter.prepared(options, comm)), 4) == [0] * 4
    assert set(read) == {rows}
    assert capsys.readouterr().out


def test_a_batch_is_cut_into_micro_batches(tmp_path):
    x, y = load(tmp_path, TEXT).batch(12, 8, key=(0, 1))
    parts = micro_batches(x, y, 4)
    np.testing.assert_array_equal(np.concatenate([part for part, _ in parts]), x)
    np.testing.assert_array_equal(parts[2][1], y[6:9])
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


def test_a_mark_at_the_beginning_is_no_character(tmp_path):
    """Windows writes one before UTF-8; within a text it is a character like any other."""
    marked, plain = (load(tmp_path, mark + (TEXT + "\ufeff.").encode()) for mark in (b"\xef\xbb\xbf", b""))
    assert marked.vocabulary == plain.vocabulary
    np.testing.assert_array_equal(marked.train, plain.train)


OTHERS = {  # what is no UTF-8 text: by its first bytes, its neighbor, or zeros
    "utf16": (TEXT.encode("utf-16"), "UTF-16 text: convert it"),
    "utf16 big": (b"\xfe\xff" + TEXT.encode("utf-16-be"), "UTF-16 text: convert it"),
    "utf16 unmarked": (("plain text, and a naïve one\n" * 20).encode("utf-16-le"), "UTF-16 text: convert it"),
    "utf16 unmarked big": (("plain text\n" * 20).encode("utf-16-be"), "UTF-16 text: convert it"),
    "utf32": (TEXT.encode("utf-32"), "UTF-32 text: convert it"),
    "utf32 unmarked": (("plain text\n" * 20).encode("utf-32-le"), "UTF-32 text: convert it"),
    "c.parquet": (b"PAR1" + bytes(range(256)) + b"PAR1", "Parquet: "),
    "c.jsonl.gz": (gzip.compress(TEXT.encode()), "compressed by gzip: "),
    "c.zst": (b"\x28\xb5\x2f\xfd" + bytes(100), "compressed by zstd: "),
    "c.xz": (lzma.compress(TEXT.encode()), "compressed by xz: "),
    "c.bz2": (bz2.compress(TEXT.encode()), "compressed by bzip2: "),
    "c.zip": (b"PK\x03\x04" + bytes(100), "a zip file: "),
    "c.arrow": (b"ARROW1\0\0" + bytes(100), "Arrow: "),
    "c.npy": (b"\x93NUMPY\x01\0" + bytes(100), "NumPy's array: "),
    "c.idx": (b"MMIDIDX\0\0" + bytes(100), "Megatron's index of tokens: "),
    "c.bin": (bytes([65, 0] * 500), "Megatron's tokens: "),
    "llmc.bin": (struct.pack("<3i", 20240520, 1, 500) + bytes(2000), "llm.c's tokens: "),
    "llmc-llama.bin": (struct.pack("<3i", 20240801, 7, 500) + bytes(2000), "llm.c's tokens: "),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_text_is_named(tmp_path, name):
    """In one line that says what to do, for training and for MapReduce."""
    content, says = OTHERS[name]
    path = tmp_path / name
    path.write_bytes(content)
    if name == "c.bin":
        (tmp_path / "c.idx").write_bytes(b"MMIDIDX\0\0")
    for read in (lambda: data.load(str(path), 8), lambda: check_inputs([str(path)])):
        with pytest.raises(UsageError) as error:
            read()
        assert f"{path}: it is {says}" in str(error.value)
        assert "\n" not in str(error.value)


def test_text_has_no_zeros(tmp_path):
    with pytest.raises(UsageError, match=r"my.txt: it is no text: there is a zero byte in its line 3"):
        load(tmp_path, b"a\r\na\na\0" + b"a" * 90)


def lines_of(*documents):
    return "".join(json.dumps(document) + "\n" for document in documents)


def test_lines_of_json_are_documents(tmp_path):
    """Their field `text`, or another; told so; and the same text however its line ends are written."""
    parts = ["Kaum hört er's\n" * 20, "α→ω \u2028 😀 \ud800" * 20, "windows\r\n" * 20]
    path = tmp_path / "c.jsonl"
    path.write_text("\n" + lines_of(*({"text": part, "content": "b" * 99, "n": 1} for part in parts)))
    corpus = data.load(str(path), 8)
    read = corpus.decode(np.concatenate([corpus.train, corpus.validation]))
    assert read == "\n".join(parts).replace("\r\n", "\n").replace("\ud800", "\ufffd")
    assert (
        corpus.note
        == "c.jsonl has 3 documents, one in each line: the field 'text' is used (--text-field NAME: another)"
    )
    assert data.load(str(path), 8, "content").vocabulary == "\nb"
    assert load(tmp_path, TEXT).note == ""
    path.rename(tmp_path / "c.json")  # JSON, or a text: the option decides
    assert "{" in data.load(str(tmp_path / "c.json"), 8).vocabulary
    assert data.load(str(tmp_path / "c.json"), 8, "content").vocabulary == "\nb"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            lines_of({"text": "a"}, {"content": "b", "id": 1}),
            "line 2 has no text in a field 'text': use --text-field content",
        ),
        (lines_of({"text": "a"}, {"id": 1, "n": 2}), "line 2 has no text in a field 'text', nor in another"),
        (lines_of({"text": ["a"]}), "line 1 has no text in a field 'text', nor in another"),
        ('{"text": "a"}\n[1]\n', "line 2 is no JSON object"),
        ('{\n"text": "a"}\n', "line 1 is no JSON object"),
        ('{"text": ' + "[" * 100_000, "line 1 is no JSON object"),
        ("\n\n", "has no document"),
    ],
)
def test_lines_that_are_no_documents(tmp_path, text, says):
    path = tmp_path / "c.ndjson"
    path.write_text(text)
    with pytest.raises(UsageError) as error:
        data.load(str(path), 8)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


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
