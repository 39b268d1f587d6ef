"""Changes of a registry, made up by hypothesis, and the renames that earlier releases made."""

from hypothesis import strategies as st
from sqlalchemy import text

from onebert_store.registry.records import CLI, Action

NAMES = st.sampled_from(["a", "b", "c"])
ALIASES = st.sampled_from(["live", "next"])
NUMBERS = st.integers(1, 4)
# A method's name and its arguments, of few tasks and versions.
MUTATIONS = st.one_of(
    st.tuples(st.just("add"), NAMES, st.integers(0, 3)),
    st.tuples(st.just("move_alias"), NAMES, ALIASES, NUMBERS, st.none() | NUMBERS),
    st.tuples(st.just("delete_alias"), NAMES, ALIASES, NUMBERS),
    st.tuples(st.just("delete_version"), NAMES, NUMBERS),
    st.tuples(st.just("delete_task"), NAMES),
)

# As revision c61783e4 did it.
_RENAME = [
    "INSERT INTO tasks (name, last_version) SELECT :name, last_version FROM tasks WHERE name = :task",
    """
    INSERT INTO versions (task, version, digest, size, created_at, manifest)
    SELECT :name, version, digest, size, created_at, manifest FROM versions WHERE task = :task
    """,
    "UPDATE aliases SET task = :name WHERE task = :task",
    "DELETE FROM versions WHERE task = :task",
    *(
        f"UPDATE {table} SET task = :name WHERE task = :task"
        for table in ("holdings", "documents", "keepings", "identities")
    ),
]


def rename_as_before(registry, task, name):
    """Renames a task as an earlier release did."""
    with registry.database.writing() as connection:
        for statement in _RENAME:
            connection.execute(text(statement), {"task": task, "name": name})
        seq = registry.feed.write(connection, CLI, Action.RENAME_TASK, task)
        connection.execute(text("UPDATE changes SET name = :name WHERE seq = :seq"), {"name": name, "seq": seq})
