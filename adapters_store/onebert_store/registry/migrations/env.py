"""Alembic's entry: runs the revisions on the connection that `schema.migrate` hands over, inside its transaction.

A new revision is a file in `versions/` like the last one, with the next number, and `SCHEMA` one higher. Tables are
written out there and not imported: a revision keeps meaning what it meant when the code's tables move on.
"""

from alembic import context

# The caller's transaction is used as it is; batch operations rewrite a table where SQLite cannot alter it.
context.configure(connection=context.config.attributes["connection"], transactional_ddl=True, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
