"""Rows of binary files: Parquet, Arrow, workbooks."""
