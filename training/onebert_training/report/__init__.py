"""`onebert report`: makes tables, pictures and one page from records of runs."""
