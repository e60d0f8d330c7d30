# What each script of the tests has at hand.

# wait_for COMMAND: evaluate it until it succeeds, for a minute.
wait_for() {
  local end=$((SECONDS + 60))
  until eval "$1"; do
    if ((SECONDS >= end)); then
      echo "waited in vain for: $1" >&2
      return 1
    fi
    sleep 0.05
  done
}

# main_pid UNIT
main_pid() { systemctl show -P MainPID "$1.service"; }

# active UNIT [NOT_PID]: it has told that it is ready, and its main process is another one than NOT_PID
active() { [[ $(systemctl is-active "$1.service") == active && $(main_pid "$1") != "${2:-0}" ]]; }

# event FILE WORD...: print the first line of a daemon's log in which each word is
event() {
  local found file=$1
  shift
  found=$(cat "$file" "$file".1 2>/dev/null)
  for word; do found=$(grep -F -- "$word" <<<"$found"); done
  [[ -n $found ]] && head -n 1 <<<"$found"
}
