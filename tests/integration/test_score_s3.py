"""`onebert score` reads objects of a bucket of a real S3 server as it reads files."""

import pyarrow
import pyarrow.parquet
import pytest
from pyarrow import fs

from object_server import BUCKET
from offline import rows_of, score_here
from onebert_server.score.sources import find_sources
from onebert_store.errors import InvalidData
from servers import Task

TEXTS = [f"parcel {i} was broken" for i in range(250)]


@pytest.fixture
def bucket(bucket_prefix):
    """Address of a folder with a Parquet file and a CSV of the same rows."""
    system, _ = fs.FileSystem.from_uri(f"s3://{BUCKET}")
    folder = f"{BUCKET}/{bucket_prefix}/in"
    table = pyarrow.table({"id": [str(i) for i in range(250)], "text": TEXTS})
    with system.open_output_stream(f"{folder}/a.parquet") as stream:
        pyarrow.parquet.write_table(table, stream, row_group_size=60)
    with system.open_output_stream(f"{folder}/b.csv") as stream:
        stream.write(b"id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(TEXTS)).encode())
    return f"s3://{folder}"


def test_objects_are_read_as_files_are(bucket, tmp_path):
    (tmp_path / "mood.safetensors").write_bytes(Task("lora", "mean", labels=3, seed=1).file)
    here = tmp_path / "a.csv"
    here.write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(TEXTS)))
    score_here(tmp_path / "here", tmp_path / "mood.safetensors", here)
    score_here(tmp_path / "there", tmp_path / "mood.safetensors", bucket)
    assert rows_of(tmp_path / "there") == rows_of(tmp_path / "here") * 2


def test_what_is_not_in_the_bucket_is_one_sentence(bucket):
    with pytest.raises(InvalidData, match="there is no data at s3://"):
        find_sources([f"{bucket}/nothing.csv"])
