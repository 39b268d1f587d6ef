"""The rows of each base on the device: their bank, the bytes of all banks, and who uses a row."""
