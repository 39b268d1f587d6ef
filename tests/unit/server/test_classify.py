"""`onebert classify`: the lines of standard input, and the table of answers."""

import io

import pytest

from onebert_server.cli.classify.results import ResultTable
from onebert_server.cli.classify.texts import TextRow, from_lines
from onebert_server.client import Explanation, TaskResult, WordEffect
from onebert_store.errors import InvalidInput


def lines(content, pair=False):
    return [(row.line, row.input) for row in from_lines(io.BytesIO(content), pair)]


def test_lines_end_as_those_of_tables_do():
    content = "one\rtwo\r\n\r\n\u200b\n\u00a0\nthree\u2028still\u0085three\n".encode()
    assert lines(content) == [(1, "one"), (2, "two"), (6, "three\u2028still\u0085three")]
    assert lines("\ufefföne\n".encode()) == [(1, "öne")]


def test_results_come_before_the_line_that_cannot_be_read():
    taken = from_lines(io.BytesIO(b"one\n\ntwo\n\xff\nthree\n"), False)
    assert [next(taken).input, next(taken).input] == ["one", "two"]
    with pytest.raises(InvalidInput, match=r"^line 4 is not UTF-8$"):
        next(taken)


def test_pairs_are_split_at_their_tab():
    assert lines(b"a\tb\n", pair=True) == [(1, ("a", "b"))]
    for bad in (b"a\n", b"a\t \n", b"a\tb\tc\n", "a\t\u200b\n".encode()):
        with pytest.raises(InvalidInput, match=r"line 1.* does not hold two texts"):
            lines(bad, pair=True)


def printed(capsys, asked, *words):
    explanation = Explanation("occlusion", "good", [WordEffect(*word) for word in words])
    result = TaskResult(task="tone", version=1, digest="", label="good", score=0.9, explanation=explanation)
    given = [TextRow(asked)]
    ResultTable(given, [result], None).print(given, [result])
    return " ".join(capsys.readouterr().out.split())


def test_words_of_a_pair_say_which_text_they_are_from(capsys):
    shown = printed(capsys, ("late again", "again"), ("text", 5, 10, 0.25), ("text_pair", 0, 5, -0.5))
    assert shown.endswith("again (second text) -0.500, again +0.250")


def test_what_rounds_to_nothing_has_no_minus(capsys):
    assert printed(capsys, "late again", ("text", 0, 4, -1e-6)).endswith("late +0.000")
