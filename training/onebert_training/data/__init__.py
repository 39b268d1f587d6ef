"""From labeled files to examples."""
