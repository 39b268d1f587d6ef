"""What a delta is: its file, its rules, its versions. Imports no torch."""
