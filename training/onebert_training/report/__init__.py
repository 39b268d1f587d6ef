"""`onebert report`: records of runs to tables, pictures and one page."""
