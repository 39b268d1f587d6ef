"""Changes of a registry, made up by hypothesis: a method's name and what it is given of few tasks and versions."""

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "c"])
ALIASES = st.sampled_from(["live", "next"])
NUMBERS = st.integers(1, 4)
MUTATIONS = st.one_of(
    st.tuples(st.just("add"), NAMES, st.integers(0, 3)),
    st.tuples(st.just("move_alias"), NAMES, ALIASES, NUMBERS, st.none() | NUMBERS),
    st.tuples(st.just("delete_alias"), NAMES, ALIASES, NUMBERS),
    st.tuples(st.just("delete_version"), NAMES, NUMBERS),
    st.tuples(st.just("delete_task"), NAMES),
    st.tuples(st.just("rename_task"), NAMES, NAMES),
)
