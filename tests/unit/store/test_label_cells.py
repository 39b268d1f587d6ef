"""Cells of labels as people's programs write them: what they are is decided by the whole column, and said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_store.errors import InvalidData
from onebert_store.tables.cells import BadRow, Nested, find_form, parse_list


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ('["late", "size"]', ["late", "size"]),
        ("['late', 'size']", ["late", "size"]),
        ("['it\\'s', \"a 'b'\", 'x, y']", ["it's", "a 'b'", "x, y"]),
        ("array(['late', 'size'], dtype=object)", ["late", "size"]),
        ("[np.str_('late'), np.str_('size')]", ["late", "size"]),
        ("{'late', 'size'}", ["late", "size"]),
        ("('late',)", ["late"]),
        ("[very late, size]", ["very late", "size"]),
        ("[1. 0.]", ["1", "0"]),
        ("[3, 0]", [3, 0]),
        ("[]", []),
        ("['a', None]", ["a", None]),
        ("['a \"b\" \"c\"', 'd']", ['a "b" "c"', "d"]),
        ("['a', 'b'", None),
        ("['a'] is a list", None),
    ],
)
def test_a_list_is_read_as_whichever_program_wrote_it(text, items):
    assert parse_list(text) == items


@pytest.mark.parametrize(
    "text",
    ['[[5, 9, "city"]]', "[(5, 9, 'city')]", "[{'start': 5, 'label': 'city'}]", '{"choices": ["a"]}', "{'a': 1}"],
)
def test_lists_in_lists_and_objects_are_no_labels(text):
    with pytest.raises(Nested):
        parse_list(text)
    with pytest.raises(InvalidData, match="hold lists in lists, or objects"):
        find_form(["[]", text], None)


def test_a_number_for_each_label_is_no_list_of_names():
    for cells in ([[0, 1, 0], [1, 0, 0]], ["[0, 1, 0]", "[1, 0, 0]"], ["[0 1 0]", "[1 0 0]"]):
        with pytest.raises(InvalidData, match="a 0 or 1 for each label"):
            find_form(cells, None)
    assert find_form(["[0 1 0]", "[1 0 0]"], "token").names("[0 1 0]") == ["0", "1", "0"]
    assert find_form([[0], [1, 2]], None).names([1, 2]) == [1, 2]


@pytest.mark.parametrize("task_type", [None, "single_label", "multi_label"])
@pytest.mark.parametrize(
    ("cells", "noted"),
    [
        (["order", "cancel", "status", "cancel order", "order status", "return", "return order"], None),
        (["cash", "card", "cash/card"], None),
        (["New York, NY", "Buffalo, NY", "Reno, NV"], None),
        (["(unknown)", "[bug]", "a"], None),
        (["late", "size", "late|size"], "'|'"),
        (["late; size", "size", "late"], "';'"),
        (["late, size", "size, lost", "size"], "','"),
    ],
)
def test_a_text_is_one_name_unless_the_user_says_its_separator(cells, noted, task_type):
    form = find_form(cells, task_type)
    assert [form.names(cell) for cell in cells] == [[cell] for cell in cells]
    assert (noted is None) == (form.note == "")
    assert noted is None or f"--label-separator {noted}" in form.note


@pytest.mark.parametrize("separator", ["|", ";", ",", "#", "/", "+", " ", " ; "])
def test_the_separator_of_the_user_is_between_names(separator):
    form = find_form(["late", f"late{separator}very size"], None, separator)
    assert form.names(f" late{separator}size{separator}") == ["late", "size"]
    assert not form.note


def test_names_that_a_task_has_are_no_lists_and_not_noted():
    assert not find_form(["a, b", "a", "b"], "multi_label", known={"a, b", "a", "b"}).note
    # A file may have rows of this label alone.
    for name in ("(none)", "[other]", "{x}"):
        assert find_form([name, name], "single_label", known={name, "refund"}).names(name) == [name]


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

    read = form(cells)
    random.shuffle(cells)
    assert form(cells) == read
