"""Routes of kept answers, feedback, the review queue and verdicts."""
