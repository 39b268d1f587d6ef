"""What an image is built from holds every package that the wheel needs."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_images_context_holds_every_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    needed |= {
        "plugins",
        "pyproject.toml",
        "hatch_build.py",
        "constraints.txt",
        *project["project"]["license-files"],
        project["project"]["readme"],
    }
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"]
    assert {name for name in needed if not any(f"{name}/".startswith(f"{folder}/") for folder in kept)} == set()


def test_the_image_takes_a_compiled_wheel_and_has_no_compiler() -> None:
    *_, building, running = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").split("\nFROM ")
    assert "g++" in building
    assert "pip wheel" in building
    assert "g++" not in running
    assert "manylinux" in running


def test_added_bases_move_to_a_folder_of_root_in_the_lean_image_alone() -> None:
    """There the build adds the base; in any other image the server's user adds bases in its own home."""
    *_, running = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").split("\nFROM ")
    assert running.count("XDG_DATA_HOME=") == 2
    assert "XDG_DATA_HOME=/usr/local/share onebert base add" in running
    assert "XDG_DATA_HOME=${LEAN:+/usr/local/share}\n" in running


def test_the_image_installs_the_plugins_of_this_repository_by_its_extras() -> None:
    *_, running = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8").split("\nFROM ")
    core = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    files = ROOT.glob("plugins/*/pyproject.toml")
    found = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]
    assert found
    for plugin in found:
        assert f"/dist/{plugin['name'].replace('-', '_')}-*.whl" in running
        bound = ">=0.1,<0.2"
        assert (plugin["version"], f"onebert{bound}" in plugin["dependencies"]) == (core["version"], True)
        assert any(f"{plugin['name']}{bound}" in extra for extra in core["optional-dependencies"].values())
    assert "--find-links" not in running, "an index could have a newer one of that name"
    assert "/tmp/wheel/onebert_semantic_router-*.whl" in running
    assert 'case ",$EXTRAS," in *,ray,*) ls /tmp/wheel/onebert_ray-*.whl;; esac' in running


def test_every_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    named = [*project["dependencies"], *extras["minilm"], *extras["ray"], *extras["dev"]]
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    names = {one.partition(";")[0].split("[")[0].split(">")[0].split("=")[0].split("<")[0].strip() for one in named}
    assert {name for name in names if name not in pinned} <= {"onebert"}
