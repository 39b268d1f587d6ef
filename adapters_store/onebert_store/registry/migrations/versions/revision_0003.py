"""Schema 3: every change with its number, for replicas to follow and as the audit trail; the replicas that do."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

NAME = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the tables; what was changed before is in none of them."""
    op.create_table(
        "changes",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.DateTime, nullable=False),
        sa.Column("action", sa.String, nullable=False),
        sa.Column("task", NAME),
        sa.Column("version", sa.Integer),
        sa.Column("alias", NAME),
        sa.Column("before", sa.Integer),
        sa.Column("principal", sa.String, nullable=False),
        sa.Column("request", sa.String, nullable=False),
    )
    feed = op.create_table("feed", sa.Column("last", sa.BigInteger, nullable=False))
    op.execute(feed.insert().values(last=0))
    op.create_table(
        "replicas",
        sa.Column("id", NAME, primary_key=True),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )


def downgrade() -> None:
    """Forgets what was changed; tasks, versions and aliases stay as they are."""
    for table in ("replicas", "feed", "changes"):
        op.drop_table(table)
