"""The registry: tasks, versions and aliases in a database, contents as blobs."""
