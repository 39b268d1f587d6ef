"""Gates: their rules, their counting, their report. A gate decides whether an alias may move to a version."""
