#!/usr/bin/env bash
# Installs what is missing, builds, runs the tests. The last line is "N passed, N failed, N skipped"; the exit status is
# 0 when nothing failed.
#   tests/run.sh                the unit and dist tests (build/release)
#   tests/run.sh --asan         also the unit tests and the two-rank dist tests under the address and
#                               undefined-behaviour sanitizers (build/asan-ubsan)
#   tests/run.sh --slow         also the slow tests
#   tests/run.sh --format       also the format of every source file
#   tests/run.sh --lint         also clang-tidy over every source file (long)
#   tests/run.sh --quickstart   also launch/quickstart.sh --quick
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

asan=false slow=false format=false lint=false quickstart=false
for argument in "$@"; do
  case $argument in
    --asan) asan=true ;;
    --slow) slow=true ;;
    --format) format=true ;;
    --lint) lint=true ;;
    --quickstart) quickstart=true ;;
    *)
      echo "run.sh: unknown argument '$argument' (known: --asan, --slow, --format, --lint, --quickstart)" >&2
      exit 2
      ;;
  esac
done

# The models of the tests are tiny: more threads only wait for each other, for minutes where the cores are shared. Tests
# about threads set their own number.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

passed=0 failed=0 skipped=0
jobs=$(env -u OMP_NUM_THREADS nproc) # nproc obeys it
logs=build/test-logs
mkdir -p $logs

finish() {
  echo "$passed passed, $failed failed, $skipped skipped"
  [[ $failed -eq 0 ]]
  exit
}

# part TEXT: the head of a part, with the seconds since the start.
part() { echo "== [$SECONDS s] $*"; }

# check NAME COMMAND...: a command that counts as one test.
check() {
  local name=$1
  shift
  part "$name"
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    echo "FAILED: $name"
  fi
}

# ctest_in PRESET CTEST_ARGUMENTS...: runs tests and counts their cases (a test without cases counts as one).
ctest_in() {
  local preset=$1 log=$logs/$1.log
  shift
  part "ctest, $preset: $*"
  ctest --test-dir "build/$preset" -V -j "$jobs" "$@" > "$log" 2>&1
  # What a reader wants to see: a line a test, the reasons of skips, everything that a failed test wrote.
  awk -v counts="$logs/counts" '
    match($0, /^[0-9]+: /) {
      id = substr($0, 1, RLENGTH - 2); text = substr($0, RLENGTH + 1)
      output[id] = output[id] text "\n"
      if (text ~ /^\[  PASSED  \] [0-9]+ test/) { split(text, word, " +"); cases_passed[id] = word[4] }
      if (text ~ /^\[  FAILED  \] [0-9]+ test/) { split(text, word, " +"); cases_failed[id] = word[4] }
      if (text ~ /^\[  SKIPPED \] [0-9]+ test/) { split(text, word, " +"); cases_skipped[id] = word[4] }
      if (text ~ /^SKIPPED: /) print "   " text
      if (reason_follows[id]) print "   SKIPPED: " text
      reason_follows[id] = (text ~ /: Skipped$/)
      next
    }
    match($0, /Test +#[0-9]+: /) {
      print
      split(substr($0, RSTART, RLENGTH), part, /[#:]/); id = part[2]
      p = cases_passed[id] + 0; f = cases_failed[id] + 0; s = cases_skipped[id] + 0
      if ($0 ~ / Passed /) { if (p + s == 0) p = 1 }
      else if ($0 ~ /\*\*\*Skipped/) { if (s == 0) s = 1 }
      else { if (f == 0) f = 1; printf "%s", output[id] }
      passed += p; failed += f; skipped += s
    }
    END { print passed + 0, failed + 0, skipped + 0 > counts }' "$log"
  local counts
  read -r -a counts < $logs/counts
  if [[ $((counts[0] + counts[1] + counts[2])) -eq 0 ]]; then
    tail -5 "$log"
    counts[1]=1 # nothing ran: that is a failure
  fi
  passed=$((passed + counts[0])) failed=$((failed + counts[1])) skipped=$((skipped + counts[2]))
}

# build PRESET [TARGET...]: everything, or the targets; a failure is counted and ends the use of the preset.
build() {
  local preset=$1 log=$logs/build-$1.log
  shift
  part "build, $preset"
  if ! cmake --preset "$preset" -DTRAINER_CUDA_ARCHITECTURES="${TRAINER_CUDA_ARCHITECTURES:-}" > "$log" 2>&1 ||
    ! cmake --build "build/$preset" -j "$jobs" ${1:+--target "$@"} >> "$log" 2>&1; then
    tail -60 "$log"
    failed=$((failed + 1))
    echo "FAILED: build of $preset"
    return 1
  fi
}

sources() {
  find core kernels parallel optim data launch tests -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh'
}

if $format || $lint; then launch/install.sh --lint; else launch/install.sh; fi || {
  failed=1
  finish
}

if $format; then check "clang-format" clang-format-14 --dry-run -Werror $(sources); fi
if build release; then
  ctest_in release -L 'unit|dist|gpu'
  if $slow; then ctest_in release -L slow; fi
  if $lint; then
    check "clang-tidy" bash -c 'printf "%s\n" "${@:2}" | xargs -P "$1" -n 1 clang-tidy-14 -p build/release --quiet' \
      tidy "$jobs" $(sources | grep '\.cc$')
  fi
fi
if $quickstart; then check "quick start" launch/quickstart.sh --quick; fi
# Under the sanitizers: what runs inside the test's own process, so neither the binary nor the tests that start it.
if $asan && build asan-ubsan $(find tests -mindepth 2 -name CMakeLists.txt -not -path 'tests/launch/*' -printf '%h/all\n'); then
  # MPI keeps memory until the process ends, so leaks are looked for in single processes only.
  # Finite differences of whole models run the same code thousands of times, and the bytes on the wire are counted in
  # steps that the layouts take as well: too slow here, and nothing new to see.
  ctest_in asan-ubsan -L unit -E 'test_train_gradient|bench_host|test_launch'
  ASAN_OPTIONS=detect_leaks=0 ctest_in asan-ubsan -L dist -R '\.2$' -E test_train_traffic
fi
finish
