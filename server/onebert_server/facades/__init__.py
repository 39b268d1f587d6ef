"""Other people's clients: their wire formats as thin mappings onto what this server answers; one file for each."""
