"""Tables that people have: files, folders and Hub data sets to columns of cells, for training and for answering."""
