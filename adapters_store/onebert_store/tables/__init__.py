"""Reads users' tables: files, folders and Hub data sets become columns of cells, for training and for answering."""
