#!/usr/bin/env bash
# Runs a program on several ranks of this machine that meet through a folder, without a launcher:
#   tcprun.sh RANKS BINARY [ARGUMENT...]
# Returns the highest exit code, as srun does. Signals go to the ranks themselves.
set -uo pipefail
ranks=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMP_NUM_THREADS=1 TRAINER_WORLD_SIZE=$ranks
export TRAINER_RENDEZVOUS=$folder TRAINER_RENDEZVOUS_TIMEOUT=${TRAINER_RENDEZVOUS_TIMEOUT:-30}
for ((rank = 0; rank < ranks; ++rank)); do
  TRAINER_RANK=$rank "$@" < /dev/null &
done
status=0
for pid in $(jobs -p); do
  wait "$pid"
  code=$?
  if ((code > status)); then status=$code; fi
done
exit "$status"
