"""What is measured of OneBERT alone, without peers."""
