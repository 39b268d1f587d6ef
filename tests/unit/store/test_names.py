"""Names of tasks and aliases: what is one, and what a reference means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_store.errors import InvalidInput
from onebert_store.registry.names import TaskRef, check_alias, check_name, parse_ref


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("spam", TaskRef("spam", None, "live")),
        ("spam@3", TaskRef("spam", 3, None)),
        ("spam@live", TaskRef("spam", None, "live")),
        ("a.b_c-9@v2", TaskRef("a.b_c-9", None, "v2")),
        ("0" * 63, TaskRef("0" * 63, None, "live")),
    ],
)
def test_references(text, ref):
    assert parse_ref(text) == ref


@pytest.mark.parametrize("text", ["", "@", "spam@", "@3", "spam@0", "spam@03", "spam@1@2", "spam@9999999999", "Spam"])
def test_what_is_no_reference(text):
    with pytest.raises(InvalidInput):
        parse_ref(text)


PATHS = [".", "..", "../x", "a/b", "a\\b", "/abs", "C:", "%2e%2e%2f"]
ODD = ["", "a\0", "a\n", "-a", "_a", "A", "a" * 64, "a b"]
FOREIGN = ["\u0430", "\uff0e\uff0e\uff0f", "\u202ea", "e\u0301", "\u00e9", "\u0661", "a\u200b"]


@pytest.mark.parametrize("name", [*PATHS, *ODD, *FOREIGN])
def test_what_is_no_name(name):
    with pytest.raises(InvalidInput) as caught:
        check_name(name)
    assert caught.value.detail.isprintable()


def test_an_alias_is_not_a_number():
    check_alias("v1")
    with pytest.raises(InvalidInput, match="version numbers"):
        check_alias("12")


@given(st.text())
def test_a_name_is_plain_ascii_and_never_a_path(name):
    try:
        check_name(name)
    except InvalidInput:
        return
    assert name.isascii()
    assert name == name.lower()
    assert not set(name) & set("/\\:%\0 \n")
    assert not name.startswith(".")
