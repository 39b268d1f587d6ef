"""Parses bucket addresses, `s3://BUCKET/PREFIX`, and checks that the package for buckets is installed."""

import re
from importlib import import_module

from onebert_store.errors import InvalidSettings

BUCKET = "s3://"
_S3 = re.compile(r"s3://([a-z0-9][a-z0-9.-]+[a-z0-9])/*([\w!.*'()/-]*?)/*")


def bucket_of(url: str, kind: str) -> tuple[str, str]:
    """Returns a bucket's name and prefix; raises InvalidSettings for a bad address, or if obstore is not installed."""
    match = _S3.fullmatch(url)
    if not match:
        raise InvalidSettings(f"{kind} in a bucket are s3://BUCKET/PREFIX; credentials are in the environment (AWS_…)")
    try:
        import_module("obstore")
    except ImportError as error:
        raise InvalidSettings(f"{kind} in a bucket need obstore: pip install '.[s3]' in the checkout") from error
    bucket, prefix = match.groups()
    return bucket, prefix
