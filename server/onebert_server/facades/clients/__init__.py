"""One file per kind of client, and files that several of them share."""
