# Says what a long command is at. Sourced by ./dev; for sh.
#
# step WHAT COMMAND...: runs it, with what it says in a file. Says on standard error how far it is: on a terminal one line that is
# rewritten, else a line every OOMPLAN_PROGRESS_S (8) seconds; nothing of a command that is done in less than a second. Shows what it
# said when it failed, and of a command that did not, the lines that match $shows.
shows=
may_fail=  # not empty: a failure shows nothing
log=
ticker=

# The last thing that a log tells: n of m files of ninja, the percentage of make, the package of apt-get and pip, the test.
at() {
  tail -n 40 "$1" 2>/dev/null | awk '
    /^\[[0-9]+\/[0-9]+\]/ { split(substr($1, 2), n, /[\/\]]/); said = n[1] " of " n[2] " files, " int(100 * n[1] / n[2]) " %"; next }
    /^\[ *[0-9]+%\]/ { said = $0; sub(/\].*/, "", said); sub(/\[ */, "", said); next }
    /^(Get:|I: |Unpacking |Setting up |Selecting |Collecting |Downloading |Installing |-- )/ { said = $0; next }
    /^[0-9]+: +[0-9.]+ s: / { said = $0; sub(/^[0-9]+: +[0-9.]+ s: +/, "", said); next }
    END { print substr(said, 1, 90) }'
}
tick() {  # WHAT, log: until it is killed, or nothing is left to tell about
  began=$(date +%s)
  told=$began
  every=${OOMPLAN_PROGRESS_S:-8}
  sleep 1
  [ -t 2 ] || { echo "$1 ..." >&2; }
  while kill -0 $$ 2>/dev/null; do
    now=$(date +%s)
    said=$(at "$2")
    line="$1: $((now - began)) s${said:+, $said}"
    if [ -t 2 ]; then
      printf '\r\033[K%s' "$line" >&2
    elif [ $((now - told)) -ge "$every" ]; then
      echo "$line" >&2
      told=$now
    fi
    sleep 1
  done
}
hush() {
  if [ -n "$ticker" ]; then
    kill "$ticker" 2>/dev/null || true
    wait "$ticker" 2>/dev/null || true
    if [ -t 2 ]; then printf '\r\033[K' >&2; fi
  fi
  ticker=
  if [ -n "$log" ]; then rm -f "$log"; fi
  log=
}
trap hush EXIT

step() {
  what=$1
  shift
  log=$(mktemp)
  tick "$what" "$log" &
  ticker=$!
  status=0
  "$@" >"$log" 2>&1 || status=$?
  [ ! -t 2 ] || printf '\r\033[K' >&2
  if [ $status -ne 0 ]; then
    [ -n "$may_fail" ] || cat "$log" >&2
  elif [ -n "$shows" ]; then
    grep -E "$shows" "$log" || true
  fi
  hush
  return $status
}
