#!/usr/bin/env bash
# mpirun for a training job; takes mpirun's own arguments.
#   launch/mpirun.sh -np 8 trainer --config 8b.yaml
# SIGUSR1, SIGTERM, SIGHUP (a closed terminal) and Ctrl-C let all ranks finish the step, save and end with 75; a second
# one ends the job at once.
# (mpirun itself answers SIGTERM by killing the ranks a second later. Its odls_base_sigkill_timeout gives them more time,
# but mpirun then sleeps twice that long whenever a job ends with an error.)
set -uo pipefail

refuse() {
  echo "mpirun.sh: $1" >&2
  exit 2
}

ranks=1 program=false
arguments=("$@")
(($# > 0)) || refuse "nothing to start; for example: launch/mpirun.sh -np 8 trainer --config 8b.yaml"
for argument in "${arguments[@]}"; do
  if [[ $argument != -* ]] && command -v -- "$argument" > /dev/null; then program=true; fi
done
$program || refuse "no program in '$*': right would be one on the PATH (cmake --install puts trainer there) or its path"
for ((i = 0; i + 1 < $#; ++i)); do
  case ${arguments[i]} in
    -np | --np | -n | -c) ranks=${arguments[i + 1]} && break ;;
  esac
done
[[ $ranks =~ ^[1-9][0-9]{0,17}$ ]] || refuse "-np $ranks: right would be a number of ranks"

# Whether the caller, or a batch system that Open MPI asks, says which hosts there are and how many ranks each takes.
hosts_given=false
for argument in "${arguments[@]}"; do
  case $argument in
    -H | -host | --host | -hostfile | --hostfile | -machinefile | --machinefile | -default-hostfile | --default-hostfile)
      hosts_given=true
      ;;
  esac
done
[[ -z ${SLURM_JOB_NODELIST-}${PBS_NODEFILE-}${LSB_DJOB_HOSTFILE-}${PE_HOSTFILE-}${OMPI_MCA_orte_default_hostfile-} ]] ||
  hosts_given=true

# More ranks than cores are for small tests. Beyond, mpirun counts the slots of given hosts and refuses more.
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc) # nproc obeys these
most=$((cores > 4 ? 4 * cores : 16))
if ! $hosts_given && ((ranks > most)); then
  refuse "-np $ranks: right would be at most $cores on this machine, one rank a core, or up to $most for a small test on the CPU; for several hosts name them (--host a:8,b:8)"
fi

# Threads of a rank: this machine's cores dealt out, unless the caller says. More threads than cores cost far more than
# they give, because every collective waits for the slowest rank.
threads=$((cores / ranks))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}

flags=(
  --quiet                                    # our own message about an exit code is enough
  --bind-to none                             # the default pins a rank with all its threads to one core or socket
  --mca btl_vader_single_copy_mechanism none # containers forbid reading another process's memory
)
if ! $hosts_given && ((ranks > cores)); then
  flags+=(--oversubscribe --mca mpi_yield_when_idle 1)
fi
# Only named variables travel to other nodes; mpirun itself reads those of Open MPI (OMPI_MCA_...) and hands them on.
for name in $(compgen -e); do
  case $name in
    OMP_* | OPENBLAS_* | TRAINER_* | CUDA_* | NCCL_* | UCX_* | LD_LIBRARY_PATH | XDG_CACHE_HOME) flags+=(-x "$name") ;;
  esac
done
if [[ $(id -u) -eq 0 ]]; then
  # Usual in containers; Open MPI asks for a confirmation.
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# A session of its own: Ctrl-C reaches this script only.
setsid mpirun "${flags[@]}" "$@" < /dev/null &
job=$!
asked=false
stop() {
  if $asked; then kill -TERM "$job"; else kill -USR1 "$job"; fi
  asked=true
}
trap stop USR1 TERM INT HUP

# A signal ends `wait` early, with a status above 128: wait again until mpirun is gone.
while true; do
  wait $job
  status=$?
  if [[ $status -le 128 ]]; then break; fi
  if ! kill -0 $job 2> /dev/null; then
    wait $job
    status=$?
    break
  fi
done
if $hosts_given && ((status == 1)); then
  # --quiet keeps back what mpirun says of that, too.
  echo "mpirun.sh: if no rank says why it ended: have the hosts slots for $ranks ranks (--host a:8,b:8, or slots=8 in a hostfile)?" >&2
fi
exit "$status"
