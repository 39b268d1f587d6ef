"""Blob stores: immutable bytes by their digest, in a folder or in a bucket."""
