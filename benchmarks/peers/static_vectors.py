"""Distills static vectors from a base by model2vec, with its defaults; arguments: BASE OUT."""

import sys
from pathlib import Path

from model2vec.distill import distill

base, out = sys.argv[1:]
# Under another name until all files are there: a folder's name means that it is complete.
unfinished = Path(out).with_suffix(".unfinished")
distill(base).save_pretrained(unfinished)
unfinished.rename(out)
