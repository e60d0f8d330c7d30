"""Legacy units as administrators have written them, and what `systemctl show` says of each."""

from __future__ import annotations

from typing import Final

ZERO: Final = "start_time=[n/a] ; stop_time=[n/a] ; pid=0 ; code=(null) ; status=0/0"


def shown(argv: str, **values: str) -> str:
    """Return what `show` prints about a unit with this command."""
    known = {
        "Id": "baserunner-alpha@runner-alpha.service",
        "LoadState": "loaded",
        "ActiveState": "active",
        "UnitFileState": "enabled",
        "FragmentPath": "/etc/systemd/system/baserunner-alpha@.service",
        "Type": "notify",
        "MainPID": "4711",
        "ControlGroup": "/system.slice/system-baserunner.slice/baserunner-alpha@runner-alpha.service",
        "ActiveEnterTimestampMonotonic": "5000000",
        "InactiveEnterTimestampMonotonic": "0",
        "KillMode": "control-group",
        "ExecStart": f"{{ path={argv.split(' ', 1)[0]} ; argv[]={argv} ; ignore_errors=no ; {ZERO} }}",
        "User": "runner-alpha",
        "Group": "",
        "SupplementaryGroups": "",
        "Environment": "",
        "CPUQuotaPerSecUSec": "infinity",
        "CPUWeight": "[not set]",
        "MemoryHigh": "infinity",
        "MemoryMax": "infinity",
        "TasksMax": "4915",
        "NeedDaemonReload": "no",
        **values,
    }
    return "".join(f"{name}={value}\n" for name, value in known.items())


JAILED: Final = """\
# /etc/systemd/system/baserunner-alpha@.service
[Unit]
Description=Runner of alpha, in a jail
After=network.target

[Service]
Environment=PYTHONUNBUFFERED=true
User=%i
ExecStart=/opt/basestation/bin/python /usr/local/basestation3/BaseRunner.py --jail_root /home/alpha --base_log \
/home/alpha/home/rundir/baserunner.log /home/alpha/home/rundir
WatchdogSec=30
Restart=always
RuntimeMaxSec=86400
TimeoutStopSec=10
Type=notify

[Install]
WantedBy=multi-user.target
"""
JAILED_ARGV: Final = (
    "/opt/basestation/bin/python /usr/local/basestation3/BaseRunner.py --jail_root /home/alpha"
    " --base_log /home/alpha/home/rundir/baserunner.log /home/alpha/home/rundir"
)

CONTAINER: Final = """\
# /etc/systemd/system/baserunner-iop@.service
[Unit]
Description=Runner of iop (test site, container image, archived requests)

[Service]
User=%i
ExecStart=/opt/basestation/bin/python /usr/local/basestation3/BaseRunner.py \\
    --base_log /home/iop/baserunner.log --archive --no-queue_scripts \\
    --python_version /opt/basestation/bin/python3 \\
    --docker_image basestation:latest --docker_uid 1007 --docker_gid 1007 \\
    --docker_mount /data/models:/models:ro --use_docker_basestation \\
    "/home/iop/rundir"
CPUQuota=60%
Restart=always
"""
CONTAINER_ARGV: Final = (
    "/opt/basestation/bin/python /usr/local/basestation3/BaseRunner.py --base_log /home/iop/baserunner.log --archive"
    " --no-queue_scripts --python_version /opt/basestation/bin/python3 --docker_image basestation:latest"
    " --docker_uid 1007 --docker_gid 1007 --docker_mount /data/models:/models:ro --use_docker_basestation"
    " /home/iop/rundir"
)

PLAIN: Final = """\
# /etc/systemd/system/baserunner-train.service
[Unit]
Description=A plain unit without a jail

[Service]
User=train
Group=science
SupplementaryGroups=instruments secretive
Nice=5
ExecStart=/usr/bin/python3 "/usr/local/base station/BaseRunner.py" \\
# a comment between the lines of a command
  ; another
  --archive --no-archive '/srv/train/run dir'

# /etc/systemd/system/baserunner-train.service.d/limits.conf
[Service]
CPUQuota=250%
CPUWeight=50
MemoryHigh=2G
MemoryMax=3G
TasksMax=100
Environment="GREETING=hello there" CASE=7
Environment=CASE=8
EnvironmentFile=-/etc/default/train
Nice=
Nice=7
"""
PLAIN_ARGV: Final = "/usr/bin/python3 /usr/local/base station/BaseRunner.py --archive --no-archive /srv/train/run dir"
PLAIN_VALUES: Final = {
    "Id": "baserunner-train.service",
    "FragmentPath": "/etc/systemd/system/baserunner-train.service",
    "User": "train",
    "Group": "science",
    "SupplementaryGroups": "instruments secretive",
    "Environment": '"GREETING=hello there" CASE=8',
    "EnvironmentFiles": "/etc/default/train (ignore_errors=yes)",
    "CPUQuotaPerSecUSec": "2.500000s",
    "CPUWeight": "50",
    "MemoryHigh": "2147483648",
    "MemoryMax": "3221225472",
    "TasksMax": "100",
}
