"""The words of SQL texts: what is one, where it is, and what takes its place."""

from __future__ import annotations

import pytest

from asyncstate.errors import SqlError
from asyncstate.sql_words import Words, tokens

STATEMENT = """EXPLAIN select `a b`.c, 'it''s' /* not /* this */ */, r"\\"  -- 'nor this
from t /*+ STATE_TTL('t' = '1 d') */ where x <=> 10L |> order by f(a, (b, c)) desc nulls last"""


def test_strings_names_and_hints_are_one_word_and_comments_are_none() -> None:
    assert Words(STATEMENT).words == [
        *("EXPLAIN", "SELECT", "`a b`", ".", "C", ",", "'it''s'", ",", 'r"\\"', "FROM", "T"),
        *("/*+ STATE_TTL('t' = '1 d') */", "WHERE", "X", "<=>", "10L", "|>", "ORDER", "BY", "F", "(", "A"),
        *(",", "(", "B", ",", "C", ")", ")", "DESC", "NULLS", "LAST"),
    ]
    assert [one.value for one in tokens(r"'a\nb' `c``d` R'\n' e")] == ["a\nb", "c`d", "\\n", "e"]


def test_words_know_their_lines_brackets_and_parts() -> None:
    words = Words(STATEMENT)
    call = words.words.index("F")
    close = words.close(call + 1)
    assert [words.cut(*one) for one in words.split(call + 2, close)] == ["a", "(b, c)"]
    assert (words.line(0), words.line(call)) == (1, 2)
    after, direction, nulls = words.ordered(call, len(words))
    assert (words.cut(call, after), direction, nulls) == ("f(a, (b, c))", "DESC", "LAST")
    assert words.replaced((call, close + 1, "g")).splitlines()[1].endswith("order by g desc nulls last")
    with pytest.raises(SqlError, match=r"line 2: .*not closed"):
        Words("a\n(b").close(1)


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a `b", "a /* b", "a /* b /* c */"])
def test_what_does_not_end_is_said(text: str) -> None:
    assert [(one.kind, one.start) for one in tokens(text)] == [("word", 0), ("open", 2)]
    assert Words(text).words == []
