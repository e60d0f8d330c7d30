"""Which filesystem something is on, by the kernel's own table, and whether inotify tells of everything there."""

from __future__ import annotations

import os
import re
from typing import Final

# Where other hosts, or a program, can change files without this kernel's knowledge.
_REMOTE: Final = re.compile(
    r"nfs4?|cifs|smb3|smbfs|fuse.*|9p|virtiofs|ceph|afs|coda|lustre|gpfs|beegfs|ocfs2|gfs2?|orangefs|vboxsf"
)


def may_be_silent(kind: str) -> bool:
    """Tell whether files on a filesystem of this type can come without an inotify event."""
    return _REMOTE.fullmatch(kind) is not None


def kind(descriptor: int) -> str:
    """Return the type of the filesystem that an open file is on, "" if it is not known. Asks the kernel alone."""
    with open(f"/proc/self/fdinfo/{descriptor}", "rb") as info:  # noqa: PTH123 - of a descriptor
        facts = dict(line.split(b":\t", 1) for line in info.read().splitlines() if b":\t" in line)
    with open("/proc/self/mountinfo", "rb") as mounts:  # noqa: PTH123 - beside its sibling
        for line in mounts:
            before, _, after = line.partition(b" - ")
            if before.split(b" ", 1)[0] == facts.get(b"mnt_id"):
                return os.fsdecode(after.split()[0])
    return ""
