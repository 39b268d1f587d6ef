"""Alembic's entry: runs the revisions on the connection of `schema.migrate`, inside its transaction.

A new revision is a file in `versions/` with the next number; raise `SCHEMA` by one. Revisions spell out their tables
instead of importing them, so that they keep their meaning when the code's tables change.
"""

from alembic import context

# Runs in the caller's transaction; batch operations rebuild a table that SQLite cannot alter.
context.configure(connection=context.config.attributes["connection"], transactional_ddl=True, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
