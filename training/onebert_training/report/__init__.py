"""`onebert report`: makes tables, pictures and one page from the records of runs."""
