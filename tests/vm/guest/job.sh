# What the tests' jobs are; bash is their sites' interpreter. The request's argument --act= says what this one does.
printf 'job %s pid %s\n' "$RUNNER_JOB_ID" $$
for word; do
  if [[ $word == --act=* ]]; then act=${word#--act=}; fi
done
case $act in
wait) # until somebody says with which status to end
  read -r status <go
  exit "$status"
  ;;
identity)
  cat /proc/$$/status
  echo "cgroup $(cat /proc/$$/cgroup)"
  echo "mounts $(readlink /proc/$$/ns/mnt)"
  env -0 | tr '\0\n' '\n ' | sed 's/^/env /'
  ;;
burn) until [[ -e stop ]]; do :; done ;;
eat) exec tail /dev/zero ;;
fork) # until it may not
  while :; do sleep infinity & done
  ;;
look)
  echo "sees" /home/*/* /srv/* /tmp/*
  echo "processes" /proc/[0-9]*
  cat /proc/self/status
  ;;
sandbox) exec bwrap --ro-bind / / --proc /proc --dev /dev --unshare-all --die-with-parent echo inside ;;
esac
