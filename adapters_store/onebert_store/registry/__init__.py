"""Where versions live: tasks, versions and aliases in a database, contents as blobs."""
