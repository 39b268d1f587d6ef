"""Text files of rows: which encoding and separator they have, and their rows one by one."""
