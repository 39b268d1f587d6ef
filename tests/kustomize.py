"""What `kustomize build` makes of a folder, for the features that our manifests use; anything else is refused.

No package registry has kustomize itself. Where `kubectl` is installed, tests compare the two.
"""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

FIELDS = {"apiVersion", "kind", "namespace", "resources", "components", "patches", "configMapGenerator", "images"}
# Lists whose items a patch changes by this field of theirs.
MERGED = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}
# Lists that a patch replaces.
REPLACED = {"egress"}


def render(folder: Path) -> list[Manifest]:
    """The manifests of a folder with a kustomization.

    Raises:
        ValueError: a feature is used that only the real kustomize has, or a patch fits nothing.
    """
    return _applied(folder, [])


def by_name(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    """The manifests by kind and name, of which there is one each."""
    of_names = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests}
    assert len(of_names) == len(manifests)
    return of_names


def _applied(folder: Path, manifests: list[Manifest]) -> list[Manifest]:
    """The manifests with all that the folder's kustomization adds to them and changes of them."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    if unknown := kustomization.keys() - FIELDS:
        raise ValueError(f"{folder}: not known here: {sorted(unknown)}")
    for name in kustomization.get("resources", ()):
        path = folder / name
        manifests = manifests + (render(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text())))
    manifests += [_config_map(folder, entry) for entry in kustomization.get("configMapGenerator", ())]
    for name in kustomization.get("components", ()):
        manifests = _applied(folder / name, manifests)
    for entry in kustomization.get("patches", ()):
        [key] = entry.keys() - {"target"}
        text = (folder / entry["path"]).read_text(encoding="utf-8") if key == "path" else entry["patch"]
        manifests = _patched(manifests, yaml.safe_load(text), entry.get("target"))
    for manifest in manifests:
        if "namespace" in kustomization:
            manifest["metadata"]["namespace"] = kustomization["namespace"]
        for container in containers(manifest):
            container["image"] = _image(container["image"], kustomization.get("images", ()))
    return manifests


def _config_map(folder: Path, entry: Manifest) -> Manifest:
    if entry.keys() != {"name", "files", "options"} or entry["options"].keys() != {"disableNameSuffixHash", "labels"}:
        raise ValueError(f"{folder}: a ConfigMap of another kind")
    data = {}
    for file in entry["files"]:
        name, _, path = file.rpartition("=")
        data[name or path] = (folder / path).read_text(encoding="utf-8")
    metadata = {"name": entry["name"], "labels": entry["options"]["labels"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _patched(manifests: list[Manifest], patch: Manifest, target: Manifest | None) -> list[Manifest]:
    """The manifests with the one changed that the patch names, or with every one of the target's kind changed."""
    if target:
        if target.keys() != {"kind"} or not any(manifest["kind"] == target["kind"] for manifest in manifests):
            raise ValueError(f"a patch of {target} fits nothing")
        patch = {field: value for field, value in patch.items() if field != "metadata"}
        return [_merged(manifest, patch) if manifest["kind"] == target["kind"] else manifest for manifest in manifests]

    def fits(manifest: Manifest) -> bool:
        return all(manifest[field] == patch[field] for field in ("apiVersion", "kind")) and (
            manifest["metadata"]["name"] == patch["metadata"]["name"]
        )

    if sum(map(fits, manifests)) != 1:
        raise ValueError(f"the patch of {patch['kind']} {patch['metadata']['name']} fits nothing")
    if patch.get("$patch") == "delete":
        return [manifest for manifest in manifests if not fits(manifest)]
    return [_merged(manifest, patch) if fits(manifest) else manifest for manifest in manifests]


def _merged(old: Any, patch: Any, name: str = "") -> Any:
    """A strategic merge: objects by their fields, some lists by a field of their items; null removes."""
    if isinstance(old, dict) and isinstance(patch, dict):
        merged = {key: _merged(old.get(key), value, key) for key, value in patch.items() if value is not None}
        return {key: value for key, value in old.items() if key not in patch} | merged
    if isinstance(old, list) and old and name not in REPLACED:
        key = MERGED[name]
        items = {item[key]: item for item in old}
        changed = {item[key]: _merged(items.get(item[key]), item) for item in patch}
        return list((items | changed).values())
    return deepcopy(patch)


def containers(value: Any) -> Iterator[Manifest]:
    """Every container in a manifest, also in one of a kind that Kubernetes does not know."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key in ("initContainers", "containers"):
                yield from part
            else:
                yield from containers(part)
    elif isinstance(value, list):
        for part in value:
            yield from containers(part)


def _image(image: str, replacements: list[Manifest]) -> str:
    name, _, tag = image.partition(":")
    for entry in replacements:
        if entry["name"] == name:
            return f"{entry.get('newName', name)}:{entry.get('newTag', tag)}"
    return image
