"""A Debian that boots under User Mode Linux: its disk, made once from Debian's packages and kept outside the clone.

It has systemd and what its units need, and no Python.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "basestation-runner" / "vm"

_HERE: Final = Path(__file__).parent
_PACKAGES: Final = (
    *("systemd", "systemd-sysv", "dbus", "udev", "kmod"),
    *("libcap2", "zlib1g", "libcap2-bin", "procps", "logrotate", "bubblewrap", "util-linux", "bash"),
)
# What only slows a boot down, or waits for hardware that is not there. What the tests are about is not in it.
_MASKED: Final = (_HERE / "masked-units").read_text().split()
_FILES: Final = {
    "etc/fstab": "",
    "etc/hostname": "vm\n",
    "etc/hosts": "127.0.0.1 localhost vm\n",
    "etc/machine-id": "0123456789abcdef" * 2 + "\n",
    "etc/systemd/journald.conf.d/vm.conf": "[Journal]\nStorage=volatile\nRateLimitBurst=0\n",
    "etc/systemd/system.conf.d/vm.conf": "[Manager]\nDefaultTimeoutStartSec=300\n",
    "etc/systemd/system/agent.service": (_HERE / "agent.service").read_text(),
    "usr/lib/agent": (_HERE / "agent.sh").read_text(),
}


def disk(suite: str) -> Path:
    """Return the disk of a release of Debian, made unless that was done before. It is never written to afterwards."""
    recipe = repr((suite, _MASKED, _FILES)).encode() + Path(__file__).read_bytes()
    return _kept(f"{suite}-{hashlib.sha256(recipe).hexdigest()[:16]}", lambda fresh: _make_disk(suite, fresh))


def shim() -> Path:
    """Return the library that linux.uml needs on some processors."""
    source = _HERE / "xstate.c"

    def compile_shim(fresh: Path) -> None:
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", fresh, source, "-ldl"], check=True)

    return _kept(f"xstate-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so", compile_shim)


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """Return the cache's entry `name`, made in a temporary place first, so that it is whole or not there."""
    entry = CACHE / name
    if not entry.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            fresh = Path(folder) / "fresh"
            make(fresh)
            fresh.rename(entry)
    return entry


def _make_disk(suite: str, fresh: Path) -> None:
    root = fresh.with_name("root")
    leave_out = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "locale", "man")]
    checks = [f'--aptopt=Acquire::{check} "false"' for check in ("Check-Valid-Until", "Check-Date")]
    options = ["--quiet", "--mode=root", "--variant=minbase", f"--include={','.join(_PACKAGES)}"]
    subprocess.run(["mmdebstrap", *options, *leave_out, *checks, "--dpkgopt=force-unsafe-io", suite, root], check=True)
    # Of the package itself nothing is to be left out.
    (root / "etc/dpkg/dpkg.cfg.d/99mmdebstrap").write_text("force-unsafe-io\n")
    for name, text in _FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "usr/lib/agent").chmod(0o755)
    units = root / "etc/systemd/system"
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    (units / "multi-user.target.wants/agent.service").symlink_to("../agent.service")
    (units / "default.target").unlink(missing_ok=True)
    (units / "default.target").symlink_to("/usr/lib/systemd/system/multi-user.target")
    for unit in _MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-m", "0", "-d", root, fresh, "2G"], check=True)
    shutil.rmtree(root)
