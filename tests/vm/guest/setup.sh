# Installs the package, and makes two sites: alpha with tight limits, and beta, whose rundir is in /home.
set -eu
if [[ -e /in/runner ]]; then /in/runner install; else dpkg -i /in/package.deb; fi
systemctl is-enabled baserunner-exec baserunner-watch >/var/tmp/enabled || true
systemctl is-active baserunner-exec baserunner-watch >/var/tmp/active || true

mkdir -p /opt/scripts
for script in Base.py Boxed.py; do cp /in/job.sh "/opt/scripts/$script"; done
groupadd --system extra
groupadd --system withheld
for site in alpha:/srv/alpha beta:/home/beta; do
  name=${site%%:*} top=${site#*:}
  groupadd --system "$name"
  useradd --system --no-create-home --groups "$name,extra,withheld" "runner-$name"
  usermod -aG "$name" baserunner
  mkdir -p "$top/rundir" "$top/missions"
  chown "runner-$name:$name" "$top" "$top/rundir" "$top/missions"
  chmod 2770 "$top" "$top/rundir" "$top/missions"
done
cat >/etc/baserunner/sites.yaml <<EOF
alpha:
  watch_dir: /srv/alpha/rundir
  jail_root: /srv/alpha
  jailed: false
  runner_user: runner-alpha
  groups: [alpha, extra]
  python_version: /bin/bash
  basestation_dir: /opt/scripts
  applications: [base]
  cpu_quota_pct: 20
  cpu_weight: 50
  memory_max_mb: 64
  tasks_max: 40
beta:
  watch_dir: /home/beta/rundir
  jail_root: /home/beta
  jailed: false
  runner_user: runner-beta
  groups: [beta]
  memory_high_mb: 200
  python_version: /bin/bash
  basestation_dir: /opt/scripts
  applications: [base, boxed]
EOF
cat >/etc/baserunner/applications.yaml <<EOF
applications:
  - name: boxed
    scripts: [Boxed.py]
    mode: sandbox
EOF
# The watcher's log as JSON, for the tests to read.
mkdir -p /etc/systemd/system/baserunner-watch.service.d
cat >/etc/systemd/system/baserunner-watch.service.d/log.conf <<EOF
[Service]
ExecStart=
ExecStart=/usr/bin/runner watch --base-log /var/log/baserunner/watch.log --log-format json
EOF
systemctl daemon-reload
systemctl enable --now baserunner-exec.service baserunner-watch.service
