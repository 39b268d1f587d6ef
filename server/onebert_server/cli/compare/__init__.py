"""Two versions held against each other: `onebert diff`."""
