"""An exported folder is complete or does not exist, and replaces nothing."""

import errno
import os

import pytest
import torch
from safetensors.torch import load_file

from onebert_store.errors import InvalidSettings, StorageFull
from onebert_training.interop.folders import whole_folder, write_json, write_tensors


def fill(folder):
    with whole_folder(folder) as filling:
        write_json(filling / "config.json", {"label": "größer"})
        write_tensors(filling / "model.safetensors", {"x": torch.ones(2, 3, dtype=torch.float64).T})


@pytest.mark.parametrize("exists", [False, True])
def test_a_new_or_empty_folder_is_filled(tmp_path, exists):
    folder = tmp_path / "out"
    if exists:
        folder.mkdir()
    fill(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert list(tmp_path.iterdir()) == [folder]
    assert "größer" in (folder / "config.json").read_text(encoding="utf-8")
    tensor = load_file(folder / "model.safetensors")["x"]
    assert (tensor.dtype, tuple(tensor.shape)) == (torch.float32, (3, 2))


def test_others_may_read_it_as_the_umask_says(tmp_path):
    mask = os.umask(0o027)
    try:
        fill(tmp_path / "out")
    finally:
        os.umask(mask)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "out" / "config.json").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("kind", ["file", "full folder", "broken link", "no parent"])
def test_a_place_that_is_not_free_is_refused_and_left_as_it_is(tmp_path, kind):
    folder = tmp_path / "out"
    if kind == "file":
        folder.write_text("mine")
    elif kind == "full folder":
        folder.mkdir()
        (folder / "mine").write_text("mine")
    elif kind == "broken link":
        folder.symlink_to(tmp_path / "nothing")
    else:
        folder = tmp_path / "no" / "out"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InvalidSettings):
        fill(folder)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_full_disk_is_typed_and_leaves_nothing(tmp_path, monkeypatch, call):
    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StorageFull):
        fill(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_whatever_goes_wrong_while_filling_leaves_nothing(tmp_path):
    def fill_halfway():
        with whole_folder(tmp_path / "out") as filling:
            write_json(filling / "config.json", {})
            write_tensors(filling / "model.safetensors", {"x": torch.ones(2).to_sparse()})

    with pytest.raises(RuntimeError):
        fill_halfway()
    assert list(tmp_path.iterdir()) == []
