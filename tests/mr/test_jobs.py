"""The shipped jobs of MapReduce."""

from collections import Counter
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from minidist.mr import fast_words
from minidist.mr.fast_words import FastWordCount
from minidist.mr.files import pairs_and_bytes
from minidist.mr.jobs import Sort, WordCount

STRANGE = st.text(
    st.one_of(st.sampled_from("aB_ 9\r\n.ßİΣ\u0301é٣\U0001d54f"), st.characters(exclude_categories=["Cs"])), max_size=60
)
# Words with long common beginnings, of 1 to 20 characters: up to 7 are counted as a number, up to 15 as two.
ASCII_WORDS = st.lists(st.tuples(st.integers(0, 19), st.sampled_from("xY_7"), st.sampled_from(" \n\r\n.\0"))).map(
    lambda words: "".join("a" * length + last + after for length, last, after in words)
)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.one_of(STRANGE, ASCII_WORDS), max_size=3).map("\n".join),
    st.sampled_from([r"\w+", r"\w+", r"[^ ]+", r"(a)|\s", r"\w*"]),
)
def test_counting_a_block_is_counting_its_lines(text: str, pattern: str) -> None:
    job, fast = WordCount(pattern), FastWordCount(pattern)
    with patch.object(fast_words, "PART", 5):
        pairs = list(fast.map("", text))
    block: Counter[str] = Counter()
    for word, count in pairs:
        block[word] += int(count)
    each = [pair for line in text.split("\n") for pair in job.map("", line.removesuffix("\r"))]
    assert block == Counter(word for word, _ in each)
    assert fast.measure(pairs) == pairs_and_bytes(each)


def test_sort_shares_the_lines_evenly() -> None:
    lines = [f"{i * 7919 % 10_007:05}" for i in range(10_007)]
    job = Sort()
    job.plan(lines[::10], 8)
    share = Counter(job.partition(line, 8) for line in lines)
    assert sorted(share) == list(range(8))
    assert max(share.values()) < 1.5 * len(lines) / 8
