"""The engine: one thread owns the device, its queue, its batches and the bank of resident rows."""
