"""The meaning of an alias: its rules, its text in the registry, and its tag."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onebert_store.errors import InvalidInput
from onebert_store.registry.target import MAX_VERSIONS, Shadow, Target, alone, check_target

SPLIT = Target(((7, 95), (8, 5)), "header:X-User", (Shadow(9, 50),))


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (Target(((7, 95), (8, 4))), "100 together"),
        (Target(((7, 0), (8, 100))), "100 together"),
        (Target(((7, 120), (8, -20))), "100 together"),
        (Target(()), "100 together"),
        (Target(((7, 50), (7, 50))), "stands twice"),
        (Target(((7, 100),), None, (Shadow(7, 100),)), "stands twice"),
        (Target(((7, 100),), None, (Shadow(8, 0),)), "1 to 100 percent"),
        (Target(((7, 100),), None, (Shadow(8, 101),)), "1 to 100 percent"),
        (Target(((7, 50), (8, 50)), "cookie:x"), "principal or header:NAME"),
        (Target(((7, 50), (8, 50)), "header:a b"), "principal or header:NAME"),
        *(
            (Target(((7, 50), (8, 50)), f"header:{name}"), "changes for one user; take principal")
            for name in ("Authorization", "cookie", "PROXY-AUTHORIZATION", "X-Request-Id", "traceparent")
        ),
        (Target(((7, 100),), "principal"), "for a split"),
        (Target(((1, 100),), None, tuple(Shadow(n, 1) for n in range(2, MAX_VERSIONS + 2))), "at most 16"),
    ],
)
def test_a_target_that_breaks_a_rule_is_refused(target, why):
    with pytest.raises(InvalidInput, match=why):
        check_target(target)


def test_a_target_keeps_the_rules_and_says_which_version_answers_most():
    for target in (SPLIT, alone(3), Target(((7, 50), (8, 50)), "principal")):
        check_target(target)
    assert [SPLIT.version, Target(((7, 5), (8, 95))).version, Target(((7, 50), (8, 50))).version] == [7, 8, 7]
    assert SPLIT.numbers == (7, 8, 9)


@given(
    st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=5, unique=True),
    st.sampled_from([None, "principal", "header:X-User"]),
    st.integers(0, 5),
)
def test_what_is_written_is_read_and_no_two_targets_have_one_tag(numbers, sticky, answering):
    shares = tuple((n, i + 1) for i, n in enumerate(sorted(numbers[: answering + 1])))
    target = Target(shares, sticky, tuple(Shadow(n, 9) for n in sorted(numbers[answering + 1 :])))
    text = target.dumps()
    assert Target.loads(text) == target
    assert target.tag.startswith(f"{target.version}.")
    assert target._replace(sticky="header:other").tag != target.tag


def test_one_version_alone_has_no_text_and_its_number_as_its_tag():
    assert (alone(7).dumps(), alone(7).tag) == (None, "7")


def test_an_older_target_is_read():
    assert Target.loads('[[[1,90],[2,10]],"principal",[],0.05]') == Target(((1, 90), (2, 10)), "principal")
    assert Target.loads("[[[1,100]],null,[[2,50]],0.05]") == Target(((1, 100),), None, (Shadow(2, 50),))
