"""The one-file program, as it was built, on hosts without Python: what it is, and what it makes of a host."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.binary.copy_of_host import FILE
from tests.patience import until
from tests.release.form import check_form

if TYPE_CHECKING:
    from tests.binary.copy_of_host import CopyOfHost

NOBODY: Final = 65534
LIBRARY: Final = "/usr/lib/basestation-runner"
BOTH: Final = ("--inh-caps=+setuid,+setgid", "--ambient-caps=+setuid,+setgid")
BOTH_SET: Final = "00000000000000c0"


def folder_of(host: CopyOfHost) -> str:
    """Return the folder of the installed program."""
    return host.check("readlink", "-f", "/usr/bin/runner").strip().removesuffix("/runner")


def as_helper(host: CopyOfHost, *words: str) -> subprocess.CompletedProcess[str]:
    """Run something as the helper's unit would start it."""
    account = ("--reuid=baserunner-exec", "--regid=baserunner-exec", "--init-groups")
    return host.run("setpriv", *account, *BOTH, *words)


def test_it_needs_no_python_and_says_what_it_was_made_of(host: CopyOfHost) -> None:
    assert host.run("sh", "-c", "command -v python3").returncode != 0
    pattern = r"runner \S+ \(commit [0-9a-f]{12}(-dirty)?, Python 3\.\d+\.\d+, Nuitka \d+\.\d+\.\d+\)\n"
    assert re.fullmatch(pattern, host.check(FILE, "--version"))


def test_a_daemon_is_the_one_process_that_was_started_and_ends_by_its_signal(host: CopyOfHost) -> None:
    host.sh(f"""
        mkdir -p /etc/baserunner /srv/state && chmod 700 /srv/state && chown {NOBODY} /srv/state
        printf 'one:\\n  watch_dir: /srv/nothing\\n  runner_user: nobody\\n' >/etc/baserunner/sites.yaml
    """)
    cache = "XDG_CACHE_HOME=/srv/state"
    options = ("--state-dir", "/srv/state", "--control-socket", "/srv/state/control.sock")
    before = host.sh("ls /tmp")
    daemon = subprocess.Popen(
        host.command(cache, FILE, "watch", *options, user=NOBODY), stderr=subprocess.PIPE, text=True
    )
    control = Path(f"/proc/{daemon.pid}/root/srv/state/control.sock")
    until(lambda: control.exists() or daemon.poll() is not None)
    assert daemon.poll() is None, daemon.stderr
    executable = str(Path(f"/proc/{daemon.pid}/exe").readlink())
    assert re.search(r"/srv/state/basestation-runner/[^/]+/runner$", executable)
    assert Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text() == ""
    assert host.sh("ls /tmp") == before
    daemon.send_signal(signal.SIGTERM)
    daemon.communicate(timeout=60)
    assert daemon.returncode == 0


def test_installed_it_is_roots_has_all_files_and_does_not_need_the_one_file_any_more(host: CopyOfHost) -> None:
    said = host.check(FILE, "install")
    folder = folder_of(host)
    assert said.startswith(f"installed: {folder}, as /usr/bin/runner\n")
    assert "systemd does not run there: it was not told of the units\n" in said
    host.check("rm", FILE)
    assert host.sh("ls /var/cache/basestation-runner").split() == []
    assert host.check("runner", "--version", user=NOBODY).startswith("runner ")
    assert host.sh(f"find {LIBRARY} ! -user root -o ! -type l -perm /022") == ""
    host.sh(f"cd / && sha256sum --check --quiet {LIBRARY}/manifest")
    for unit in ("baserunner-exec.service", "baserunner-watch.service", "baserunner.slice"):  # for `runner doctor`
        host.check("cmp", f"{folder}/basestation_runner/doctor/{unit}", f"/usr/lib/systemd/system/{unit}")
    for path in (
        "/usr/lib/systemd/system/baserunner-exec.service",
        "/usr/lib/systemd/system/baserunner-watch.service",
        "/usr/lib/systemd/system/baserunner.slice",
        "/usr/lib/sysusers.d/basestation-runner.conf",
        "/etc/logrotate.d/basestation-runner",
        "/usr/share/man/man1/runner-install.1.gz",
        "/usr/share/bash-completion/completions/runner",
        "/usr/share/zsh/vendor-completions/_runner",
        "/usr/share/fish/vendor_completions.d/runner.fish",
        "/usr/share/doc/basestation-runner/examples/sites.yaml",
        "/usr/share/doc/basestation-runner/licenses/pyzmq.txt",
    ):
        host.check("test", "-s", path)
    assert host.check("id", "-nG", "baserunner-exec").split() == ["baserunner-exec", "baserunner"]


def test_with_capabilities_it_starts_from_what_is_installed(host: CopyOfHost) -> None:
    host.check(FILE, "install")
    for program in ("runner", FILE):
        done = as_helper(host, program, "privexec", "--watcher-user", "baserunner")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "/etc/baserunner/sites.yaml" in done.stderr  # it went as far as to read its configuration


@pytest.mark.parametrize("what", ["a library", "the folder"])
def test_with_capabilities_it_does_not_start_from_files_that_its_account_could_change(
    host: CopyOfHost, what: str
) -> None:
    host.check(FILE, "install")
    folder = folder_of(host)
    harmed = folder if what == "the folder" else host.sh(f"ls {folder}/*.so* | head -n 1").strip()
    host.check("chown", "baserunner-exec", harmed)
    done = as_helper(host, "runner", "privexec", "--watcher-user", "baserunner")
    assert done.returncode == 1
    assert f"{harmed}: the helper uses it, but it belongs to uid" in done.stderr
    done = as_helper(host, "env", "XDG_CACHE_HOME=/srv", FILE, "--version")
    assert done.returncode == 1
    assert "with capabilities it runs only from files that root alone can write" in done.stderr


def test_what_a_user_has_unpacked_is_nothing_to_run_with_capabilities(host: CopyOfHost) -> None:
    host.check(FILE, "install")
    host.sh("cp -r $(readlink -f /usr/bin/runner | xargs dirname) /srv/own && chown -R baserunner-exec /srv/own")
    done = as_helper(host, "/srv/own/runner", "privexec", "--watcher-user", "baserunner")
    assert done.returncode == 1
    assert "/srv/own: the helper uses it, but it belongs to uid" in done.stderr


def test_a_second_installation_changes_nothing(host: CopyOfHost) -> None:
    host.check(FILE, "install")
    written = host.written()
    for program in (FILE, "runner"):
        assert host.check(program, "install").startswith("nothing to do: it is already installed: ")
    assert host.written() == written


def test_uninstalled_nothing_is_left_but_configuration_and_accounts(host: CopyOfHost) -> None:
    host.sh("mkdir -p /etc/baserunner && echo '{}' >/etc/baserunner/sites.yaml && mkdir /var/lib/baserunner")
    before = host.written()
    host.check(FILE, "install")
    assert "kept: /etc/baserunner, and the accounts\n" in host.check("runner", "uninstall")
    accounts = re.compile(r"etc/(\.pwd\.lock|g?shadow-?|passwd-?|group-?)")
    assert {name for name in host.written() - before if not accounts.fullmatch(name)} == set()
    assert host.check(FILE, "uninstall", "--purge").startswith("nothing is installed\n")
    assert host.run("ls", "/var/lib/baserunner").returncode != 0


def test_the_debian_package_is_not_installed_over_it(host: CopyOfHost) -> None:
    script = str(Path(__file__).parents[2] / "packaging/deb/preinst")
    assert host.run("sh", script, "install").returncode == 0
    host.check(FILE, "install")
    done = host.run("sh", script, "install")
    assert (done.returncode, done.stderr.count("runner uninstall")) == (1, 1)


def test_the_bill_of_materials_has_the_prescribed_form_and_names_what_matters(host: CopyOfHost) -> None:
    host.check(FILE, "install")
    bom = json.loads(host.check("cat", "/usr/share/doc/basestation-runner/sbom.cdx.json"))
    check_form(bom)
    names = {component["name"] for component in bom["components"]}
    assert names >= {
        "CPython",
        "Nuitka",
        "attrs",
        "click",
        "python-prctl",
        "pyzmq",
        "libzmq",
        "ruamel.yaml",
        "structlog",
    }
    assert not names & {"pip", "setuptools", "Pygments"}
    version = host.check("runner", "--version").split()
    assert bom["metadata"]["component"]["version"] == version[1]
