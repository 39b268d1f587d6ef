"""What labeled rows say of a delta: classes, confusion, reliability, slices, the worst rows; calibration, suspects."""
