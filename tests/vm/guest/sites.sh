# sites.sh COUNT TOP: make sites with accounts and directories below TOP, each with a request that waits.
set -eu
count=$1 top=$2
mkdir "$top"
for ((n = 1; n <= count; n++)); do
  site=many$n
  cat >>/run/sysusers.conf <<EOF
g $site -
u runner-$site -:$site "" $top/$site
m baserunner $site
EOF
  cat >>/etc/baserunner/sites.yaml <<EOF
$site:
  watch_dir: $top/$site/rundir
  jail_root: $top/$site
  jailed: false
  runner_user: runner-$site
  groups: [$site]
  python_version: /bin/bash
  basestation_dir: /opt/scripts
EOF
done
systemd-sysusers /run/sysusers.conf
for ((n = 1; n <= count; n++)); do
  site=many$n home=$top/many$n
  mkdir -p "$home/rundir"
  echo "$home $home $home/log Base.py --act=none" >"$home/rundir/first.run"
  chown -R "runner-$site:$site" "$home"
  chmod 2770 "$home" "$home/rundir"
  chmod 660 "$home/rundir/first.run"
done
