"""`onebert card` as a user meets it: of a file, of a task on a server."""

from huggingface_hub import ModelCard

from ended import refused, succeeded
from onebert_store.file.format import save
from servers import Task
from tiny_delta import make_delta


def test_a_file_has_a_card(onebert, tmp_path):
    save(tmp_path / "tone.safetensors", make_delta())
    out = tmp_path / "README.md"
    status, printed, error = onebert("card", tmp_path / "tone.safetensors")
    assert (status, error) == (0, "")
    assert ModelCard(printed).data.model_name == "tone"
    said, _ = succeeded(onebert("card", tmp_path / "tone.safetensors", "--out", out))
    assert out.read_text() == printed
    assert f"{len(printed.encode()):,} bytes" in said
    for arguments, words in (
        ((tmp_path / "tone.safetensors", "--out", out), "exists; name another place"),
        ((tmp_path / "none.safetensors",), "none.safetensors cannot be read"),
        ((out,), "this is no delta file"),
    ):
        error = refused(onebert("card", *arguments))
        assert words in error


def test_a_version_on_a_server_has_a_card(onebert, server, client):
    for seed in (1, 2):
        client.push("tone", Task(seed=seed).file)
    for ref, version in (("tone", 1), ("tone@2", 2)):
        printed, _ = succeeded(onebert("card", ref, "--url", server.url))
        assert f"onebert push tone-{version}.safetensors --task tone" in printed
    assert onebert("card", "weather", "--url", server.url)[2] == "error: there is no task weather\n"
