#!/usr/bin/env bash
# Runs a test binary on several ranks of this machine: mpirun.sh RANKS BINARY [ARGUMENT...]
# More ranks than cores, root (CI containers), one OpenMP thread a rank.
set -euo pipefail
ranks=$1
shift
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# MPI leaves memory of plug-ins that it has unloaded, which a leak report can neither name nor suppress. Tests without MPI
# look for leaks.
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
# ob1 over shared memory is all that one machine needs: no probing of fabrics, and no reading of another process's
# memory, which containers forbid.
exec mpirun -np "$ranks" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca pml ob1 --mca btl self,vader \
  --mca btl_vader_single_copy_mechanism none "$@"
