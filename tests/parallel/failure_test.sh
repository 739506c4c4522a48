#!/usr/bin/env bash
# Breaks a job of several ranks in many ways: failure_test.sh PROBE mpirun|tcprun
# Each time the whole job must end by itself, non-zero and in time, say once what happened (rank, host, step, collective),
# and leave no process behind.
set -uo pipefail
probe=$1
launcher=$2
run=$(dirname "$0")/../support/$launcher.sh
ranks=4
timeout=3          # of a collective, seconds
marker=probe_$$_$RANDOM
output=$(mktemp)
trap 'rm -f "$output"' EXIT
failures=0

complain() {
  echo "FAILED: $name: $1"
  sed 's/^/    /' "$output"
  failures=$((failures + 1))
}

left_over() { pgrep -f "^[^ ]*failure_probe $marker " >/dev/null; }

# check NAME EXIT_CODES SECONDS PATTERN...: the job ended with one of the codes within the seconds, its output has one
# line for each pattern, and reports one error.
check() {
  local codes=$2 seconds=$3 pattern
  name=$1
  shift 3
  [[ " $codes " == *" $code "* ]] || complain "exit code $code, expected $codes"
  ((elapsed <= seconds)) || complain "took $elapsed s, more than $seconds"
  for pattern in "$@"; do
    grep -qE "$pattern" "$output" || complain "nothing like '$pattern' in the output"
  done
  if [[ $# -gt 0 && $(grep -c '^trainer: ' "$output") -ne 1 ]]; then complain "not exactly one report"; fi
  for _ in {1..20}; do left_over && sleep 0.1; done
  if left_over; then complain "processes are left"; fi
  echo "$name: exit code $code after $elapsed s"
}

# run_probe ROUNDS EXIT_CODE [FAULT]
run_probe() {
  local start=$SECONDS
  TRAINER_FAULT=${3:-} timeout --signal=KILL 60 "$run" $ranks "$probe" "$marker" $timeout "$1" "$2" >"$output" 2>&1
  code=$?
  elapsed=$((SECONDS - start))
}

endless=1000000
at20="rank=1,step=20,site=collective,action"
here="step 20: all_reduce number 20 of group 'dp' \(40028 bytes\)"
host=$(hostname)

run_probe 50 0
check "undisturbed" 0 10
run_probe 50 75
check "a code that all ranks return" 75 10

run_probe $endless 0 "$at20=kill"
check "SIGKILL" "137 7" 10 "^trainer: .*\(host $host\): $here: .* for rank 1 \(host $host, has ended\)"
run_probe $endless 0 "$at20=exit:1"
check "exit(1)" "1 7" 10 "^trainer: .*\(host $host\): $here: .* for rank 1 \(host $host, has ended\)"
run_probe $endless 0 "$at20=exit:0"
check "exit(0) too early" "1 7" 10 "^trainer: .*\(host $host\): $here: .* for rank 1 \(host $host, has ended\)"
run_probe $endless 0 "$at20=stop"
check "SIGSTOP" "137 7" $((timeout + 5)) "^trainer: .*\(host $host\): $here: .* for rank 1 \(host $host, stopped\): longer than"
run_probe $endless 0 "$at20=count"
check "a wrong count" 7 10 "^trainer: .*\(host $host\): $here: the ranks disagree: .*rank 1 \(host $host\)" \
  "all_reduce of 10007 float32" "all_reduce of 10006 float32"
run_probe $endless 0 "$at20=throw"
check "a throw" 1 10 "^trainer: rank 1 of $ranks \(host $host\): step 20: fault planned for rank 1 step 20" \
  "last collective: all_reduce number 19 of group 'dp'"
run_probe $endless 0 "step=20,site=collective,action=throw"
check "a throw on all ranks at once" 1 10 "^trainer: rank [0-3] of $ranks \(host $host\): step 20: fault planned"

if [[ $launcher == mpirun ]]; then
  # The launcher itself dies: nobody is left to end the ranks but they themselves.
  "$run" $ranks "$probe" "$marker" $timeout $endless 0 >"$output" 2>&1 &
  job=$!
  sleep 2
  start=$SECONDS
  kill -KILL $job
  wait $job 2>/dev/null
  while left_over && ((SECONDS - start < 30)); do sleep 0.2; done
  code=0
  elapsed=$((SECONDS - start))
  check "SIGKILL of mpirun" 0 15
fi

if ((failures > 0)); then
  echo "$failures failed"
  exit 1
fi
