#!/bin/bash
# Runs scripts that come on the serial line: 8 digits, the script's length, and the script; answers with a line of exit
# status and lengths, and with what the script wrote. `head` reads exactly what is asked of it, bash's `read` would not.
exec 3<>/dev/ttyS0
stty raw -echo <&3
printf 'READY\n' >&3
cd /root || exit
while length=$(head -c 8 <&3) && [ -n "$length" ]; do
  head -c "$length" <&3 >/run/agent.script
  bash /run/agent.script >/run/agent.stdout 2>/run/agent.stderr </dev/null 3>&-
  status=$?
  printf '%d %d %d\n' "$status" "$(stat -c %s /run/agent.stdout)" "$(stat -c %s /run/agent.stderr)" >&3
  cat /run/agent.stdout /run/agent.stderr >&3
done
