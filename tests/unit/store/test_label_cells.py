"""Cells of labels as people's programs write them: what they are is decided by the whole column, and said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_store.errors import InvalidData
from onebert_store.tables.cells import SEPARATORS, BadRow, Nested, find_form, parse_list


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ('["late", "size"]', ["late", "size"]),
        ("['late', 'size']", ["late", "size"]),
        ("['it\\'s', \"a 'b'\", 'x, y']", ["it's", "a 'b'", "x, y"]),
        ("['late' 'size']", ["late", "size"]),
        ("['late'\n 'size']", ["late", "size"]),
        ("array(['late', 'size'], dtype=object)", ["late", "size"]),
        ("[np.str_('late'), np.str_('size')]", ["late", "size"]),
        ("{'late', 'size'}", ["late", "size"]),
        ("frozenset({'late'})", ["late"]),
        ("('late', 'size')", ["late", "size"]),
        ("('late',)", ["late"]),
        ("{late,size}", ["late", "size"]),
        ("[very late, size]", ["very late", "size"]),
        ("[3 0 0]", ["3", "0", "0"]),
        ("[1. 0.]", ["1", "0"]),
        ("[3, 0]", [3, 0]),
        ("[]", []),
        ("set()", []),
        ("['a', None]", ["a", None]),
        ("['a' ... 'z']", None),
        ("['a \"b\" \"c\"', 'd']", ['a "b" "c"', "d"]),
        ("['a', 'b'", None),
        ("late", None),
        ("[see (a)]", None),
        ("['a'] is a list", None),
    ],
)
def test_a_list_is_read_as_whichever_program_wrote_it(text, items):
    assert parse_list(text) == items


@pytest.mark.promise("labels-not-misread")
@pytest.mark.parametrize(
    "text",
    ['[[5, 9, "city"]]', "[(5, 9, 'city')]", "[{'start': 5, 'label': 'city'}]", '{"choices": ["a"]}', "{'a': 1}"],
)
def test_lists_in_lists_and_objects_are_no_labels(text):
    with pytest.raises(Nested):
        parse_list(text)
    with pytest.raises(InvalidData, match="hold lists in lists, or objects"):
        find_form(["[]", text], None)


@pytest.mark.parametrize("cell", [[[5, 9, "city"]], [{"start": 5}], {"choices": ["a"]}, [("a", 1)]])
def test_decoded_cells_are_refused_alike(cell):
    for task_type in (None, "multi_label", "single_label", "token"):
        with pytest.raises(InvalidData, match="neither names nor spans"):
            find_form([["a"], cell], task_type)


def test_a_number_for_each_label_is_no_list_of_names():
    for cells in ([[0, 1, 0], [1, 0, 0]], ["[0, 1, 0]", "[1, 0, 0]"], ["[0 1 0]", "[1 0 0]"]):
        with pytest.raises(InvalidData, match="a 0 or 1 for each label"):
            find_form(cells, None)
    assert find_form(["[0 1 0]", "[1 0 0]"], "token").names("[0 1 0]") == ["0", "1", "0"]
    assert find_form([[0], [1, 2]], None).names([1, 2]) == [1, 2]


@pytest.mark.promise("labels-not-misread")
@pytest.mark.parametrize("separator", SEPARATORS)
@pytest.mark.parametrize("blank", ["", " "])
def test_a_separator_is_found_where_the_parts_are_labels_of_their_own(separator, blank):
    joined = [
        f"{one}{separator}{blank}{other}" for one, other in (("late", "size"), ("size", "lost"), ("late", "lost"))
    ]
    form = find_form(["late", "size", "lost", *joined, "late"], None)
    assert form.separator == separator
    assert form.names(joined[0]) == ["late", "size"]
    assert form.names("late") == ["late"]
    assert repr(separator) in form.note
    assert find_form([*joined, "lost", "size", "late"], None) == form


@pytest.mark.promise("labels-not-misread")
def test_a_name_of_words_that_are_labels_too_is_one_label_and_doubted():
    intents = ["cancel", "order", "cancel order", "refund"]
    form = find_form(intents, None)
    assert [form.names(intent) for intent in intents] == [[intent] for intent in intents]
    assert "the label 'cancel order' is taken for one name" in form.note
    assert "--label-separator ' ' reads it so" in form.note
    for asked in (find_form(intents, None, " "), find_form(intents, "multi_label")):
        assert asked.names("cancel order") == ["cancel", "order"]


def test_parts_that_never_stand_alone_may_recur():
    cells = ["a, b", "b, c", "a, c", "a", "b"]
    assert find_form(cells, None).separator == ","
    # Names like these are one label each, whatever is in them.
    for names in (
        ["New York, NY", "Buffalo, NY", "Reno, NV"],
        ["credit card", "debit card", "card", "gift"],
        ["very good", "good", "very bad", "bad"],
        ["AT&T", "C++", "C", "n/a", "and/or"],
        ["1,5", "2", "2,5", "1", "5"],
        ["(unknown)", "[bug]", "a"],
        ["2024/01/02", "2024/03/04"],
    ):
        assert find_form(names, None).separator is None, names
        assert not find_form(names, None).lists


@pytest.mark.promise("labels-not-misread")
def test_what_looks_like_several_labels_without_evidence_is_said():
    form = find_form(["Sports, indoor", "Sports, outdoor", "Food, indoor"], None)
    assert form.separator is None
    assert "the label 'Sports, indoor' is taken for one name" in form.note
    assert "--label-separator ','" in form.note
    asked = find_form(["Sports, indoor", "Sports, outdoor", "Food, indoor"], None, ",")
    assert asked.names("Food, indoor") == ["Food", "indoor"]
    assert find_form(["Sports, indoor", "Sports, outdoor", "Food, indoor"], "multi_label").separator == ","
    assert find_form(["a, b", "a", "b"], "single_label").names("a, b") == ["a, b"]


def test_names_that_a_task_has_are_not_taken_apart():
    assert find_form(["a, b", "a", "b"], "multi_label", known={"a, b", "a", "b"}).names("a, b") == ["a, b"]
    # A file may have rows of this label alone.
    for name in ("(none)", "[other]", "{x}"):
        assert find_form([name, name], "single_label", known={name, "refund"}).names(name) == [name]
    # Of few rows the task's own labels are the evidence.
    assert find_form(["late, size"], "multi_label", known={"late", "size"}).names("late, size") == ["late", "size"]


def test_a_list_that_is_cut_short_is_a_bad_row():
    form = find_form(["['a', 'b']", "['a', 'b"], None)
    with pytest.raises(BadRow, match="the list of labels cannot be read"):
        form.names("['a', 'b")


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["40,00", "1.234,5", "7"], [40, 1234.5, 7]),
        (["-0,5", "3,25"], [-0.5, 3.25]),
        (["1.5", "2"], [1.5, 2]),
    ],
)
def test_decimal_commas_are_read_where_the_whole_column_has_them(cells, numbers):
    form = find_form(cells, "regression")
    assert [form.number(cell) for cell in cells] == numbers


def test_a_comma_between_thousands_is_no_decimal_comma():
    assert not find_form(["1,234", "5,678"], "regression").comma
    assert not find_form(["40,00", "1.5"], "regression").comma


@given(
    st.lists(st.text(max_size=12) | st.sampled_from(["['a']", "[1", "{", "a|b", "a, b", "(", "[[", "set()"])),
    st.randoms(),
)
def test_whatever_is_in_the_cells_their_order_does_not_matter(cells, random):
    def form(order):
        try:
            return find_form(order, None)
        except InvalidData as error:
            return error.detail.split(",")[0]

    found = form(cells)
    random.shuffle(cells)
    assert form(cells) == found
