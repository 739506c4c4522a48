#!/usr/bin/env bash
# mpirun with the flags that a training job needs; takes mpirun's own arguments.
#   launch/mpirun.sh -np 8 trainer --config 8b.yaml
# Signals reach mpirun itself, because this script becomes it: SIGUSR1 lets all ranks save and exit with 75.
set -euo pipefail

ranks=1
arguments=("$@")
for ((i = 0; i + 1 < $#; ++i)); do
  case ${arguments[i]} in
    -np | --np | -n | -c) ranks=${arguments[i + 1]} && break ;;
  esac
done

# Threads of a rank: this machine's cores dealt out, unless the caller says. More threads than cores cost far more than
# they give, because every collective waits for the slowest rank.
cores=$(nproc)
threads=$((cores / ranks))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}

flags=(
  --bind-to none                           # the default pins a rank with all its threads to one core or socket
  --mca odls_base_sigkill_timeout 120      # after SIGTERM: time to save; the default is one second
  --mca btl_vader_single_copy_mechanism none # quiet in containers, which forbid reading another process's memory
)
if ((ranks > cores)); then
  flags+=(--oversubscribe --mca mpi_yield_when_idle 1)
fi
# Only named variables travel to other nodes.
for name in $(compgen -e); do
  case $name in
    OMP_* | OPENBLAS_* | TRAINER_* | CUDA_* | NCCL_* | LD_LIBRARY_PATH) flags+=(-x "$name") ;;
  esac
done
if [[ $(id -u) -eq 0 ]]; then
  # Usual in containers; Open MPI asks for a confirmation.
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
exec mpirun "${flags[@]}" "$@"
