"""`onebert score` reads objects of a bucket of a real S3 server as it reads files, and leaves its answers there."""

from concurrent.futures import ThreadPoolExecutor

import obstore
import pyarrow
import pyarrow.parquet
import pytest
from pyarrow import fs

from object_server import BUCKET, environment
from offline import bytes_of, kill_and_go_on, rows_of, score_here
from onebert_store.blobs.bucket import open_bucket
from onebert_store.errors import BlobsAway, InvalidSettings
from servers import Task, wait_until
from tcp_proxy import TcpProxy

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


# Parts of 50 rows: small enough that a kill comes in the middle of many of them.
ROWS = 4000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A task, rows for it, and the answers as a folder has them."""
    made = tmp_path_factory.mktemp("score")
    (made / "mood.safetensors").write_bytes(Task("lora", "mean", labels=3, seed=1).file)
    texts = [" " if i % 50 == 7 else f"parcel {i % 701} was broken" for i in range(ROWS)]
    (made / "rows.csv").write_text("id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(texts)))
    score_here(made / "out", made / "mood.safetensors", made / "rows.csv", part_rows=50)
    return made


def score_into(out, folder, **asked):
    score_here(out, folder / "mood.safetensors", folder / "rows.csv", **({"part_rows": 50} | asked))


def answers_in(folder):
    return {name: data for name, data in bytes_of(folder / "out").items() if not name.startswith(".")}


@pytest.fixture
def out(bucket_prefix):
    """A client of an empty place for answers, and its address."""
    return open_bucket(BUCKET, f"{bucket_prefix}/out"), f"s3://{BUCKET}/{bucket_prefix}/out/"


def objects(client):
    return {
        entry["path"]: bytes(obstore.get(client, entry["path"]).bytes()) for entry in obstore.list(client).collect()
    }


def written(client):
    """When each object was written."""
    return {entry["path"]: entry["last_modified"] for entry in obstore.list(client).collect()}


def test_answers_in_a_bucket_are_those_in_a_folder(folder, out, capsys):
    client, url = out
    score_into(url, folder)
    assert f"4,000 rows in 80 files in {url}, 80 without an answer\n" in capsys.readouterr().out
    assert objects(client) == answers_in(folder)
    before = written(client)
    score_into(url, folder)
    assert written(client) == before
    with pytest.raises(InvalidSettings, match="holds another job: scores differ"):
        score_into(url, folder, all_scores=True)
    assert objects(client) == answers_in(folder)


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_to_the_same_objects(folder, out):
    client, url = out
    asked = ["--task", folder / "mood.safetensors", "--data", folder / "rows.csv", "--out", url, "--part-rows", 50]
    kill_and_go_on(["score", *map(str, asked)], (1, 30), lambda: written(client))
    assert objects(client) == answers_in(folder)


def test_a_bucket_that_goes_away_for_a_while_ends_nothing(object_server, folder, out, monkeypatch):
    client, url = out
    with TcpProxy(object_server.connect) as proxy, ThreadPoolExecutor(1) as pool:
        for name, value in environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        job = pool.submit(score_into, url, folder)
        try:
            wait_until(lambda: len(written(client)) > 3 or job.done())
            proxy.refuse()
            assert not job.done()
        finally:
            proxy.accept()
        job.result()
        assert objects(client) == answers_in(folder)
        proxy.refuse()
        with pytest.raises(BlobsAway, match="the bucket of the answers does not work: it cannot be reached"):
            score_into(url, folder)


def test_what_is_no_place_for_answers_is_one_sentence(folder, out):
    client, url = out
    obstore.put(client, "notes.txt", b"mine")
    with pytest.raises(InvalidSettings, match=r"has notes\.txt in it, and no _job\.json"):
        score_into(url, folder)
    for wrong in ("s3://", "s3://Bucket!/x", "s3://bucket/x?key=secret"):
        with pytest.raises(InvalidSettings, match="answers in a bucket are s3://BUCKET/PREFIX"):
            score_into(wrong, folder)
    with pytest.raises(BlobsAway, match="there is no such bucket"):
        score_into("s3://no-such-bucket/out", folder)
    assert objects(client) == {"notes.txt": b"mine"}
