"""Schema 3: the feed (numbered changes, also the audit trail) and the replicas that follow it."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

NAME = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    """Adds the tables; earlier changes are not recorded."""
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
    """Drops the feed; tasks, versions and aliases stay."""
    for table in ("replicas", "feed", "changes"):
        op.drop_table(table)
