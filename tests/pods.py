"""A process as a pod without rights has it: another user, no capabilities, a read-only root, few folders to write to.

Namespaces of Linux do that without a container engine; they want root.
"""

import os
import shlex
import subprocess
from functools import cache
from pathlib import Path

import pytest

# What programs find in every image.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev")


@cache
def pods_work() -> bool:
    """Whether this machine lets tests make namespaces."""
    command = ["unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


needs_pods = pytest.mark.skipif(not pods_work(), reason="namespaces want root, and a container that may mount")


def in_a_pod(command, user, root, read, write):
    """The command line that runs a command so.

    Args:
        command: to run, by absolute path.
        user: number of the user and of the group.
        root: an empty folder; the pod's root is mounted there.
        read: folders of this machine that the pod has at the same place, besides the system's.
        write: folders of this machine by the path that the pod has them at.
    """
    lines = ["of_the_pod=$PATH", "export PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"mount -t tmpfs tmpfs {root}"]
    for path, folder in write.items():
        os.chown(folder, user, user)
        lines += [f"mkdir -p {root}{path}", f"mount --bind {folder} {root}{path}"]
    for path in map(Path, (*SYSTEM, *read)):
        if path.is_symlink() and path.parent == Path("/"):
            lines.append(f"ln -s {path.readlink()} {root}{path}")
        elif path.exists():
            lines += [f"mkdir -p {root}{path}", f"mount --rbind {path} {root}{path}"]
            lines.append(f"mount -o remount,bind,ro {root}{path}")
    lines.append(f"mount -o remount,ro {root}")
    drop = ["--reuid", user, "--regid", user, "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
    run = ["/usr/sbin/chroot", root, "/usr/bin/setpriv", *drop, "--no-new-privs", *command]
    lines.append(f"PATH=$of_the_pod exec {shlex.join(map(str, run))}")
    return ["/usr/bin/unshare", "--mount", "--propagation", "private", "/bin/sh", "-eu", "-c", "\n".join(lines)]
