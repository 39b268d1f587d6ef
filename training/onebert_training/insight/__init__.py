"""Evaluates a delta on labeled rows: classes, confusion, reliability, slices, worst rows, calibration, suspects."""
