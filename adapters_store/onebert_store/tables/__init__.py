"""Reads users' tables: files, folders and Hub data sets become columns of cells, for training and for answering.

Every reader raises InvalidData for a file that it cannot read, also while its rows are taken, with the line if there is
one; readers with an argument `encoding` raise InvalidSettings if there is no such encoding.
"""
