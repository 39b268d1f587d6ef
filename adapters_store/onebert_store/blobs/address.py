"""Addresses of buckets: `s3://BUCKET/PREFIX`. Whoever reads one has also seen that the package for buckets is there."""

import re
from importlib import import_module

from onebert_store.errors import InvalidSettings

BUCKET = "s3://"
_S3 = re.compile(r"s3://([a-z0-9][a-z0-9.-]+[a-z0-9])/*([\w!.*'()/-]*?)/*")


def bucket_of(url: str, what: str) -> tuple[str, str]:
    """The bucket and the prefix that an address names; credentials, region and endpoint are in the environment.

    Args:
        url: the address.
        what: what is to be there, for messages.

    Raises:
        InvalidSettings: the address is none, or obstore, which the default needs not, is not installed.
    """
    found = _S3.fullmatch(url)
    if not found:
        raise InvalidSettings(f"{what} in a bucket are s3://BUCKET/PREFIX; credentials are in the environment (AWS_…)")
    try:
        import_module("obstore")
    except ImportError as error:
        raise InvalidSettings(f"{what} in a bucket need obstore: pip install 'onebert[s3]'") from error
    bucket, prefix = found.groups()
    return bucket, prefix
