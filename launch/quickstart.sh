#!/usr/bin/env bash
# From a fresh machine to a trained model: installs what is missing, builds, prepares the King James Bible as training
# text, trains a small model on four CPU ranks (data parallel 2 x tensor parallel 2), stops the job half-way with a
# signal and goes on where it stopped.
#   launch/quickstart.sh           about three minutes of training on two cores
#   launch/quickstart.sh --quick   a few steps only, to see that everything works
set -euo pipefail
cd "$(dirname "$0")/.."

run=runs/tiny
text=runs/kjv
stop_at=400 # the first checkpoint of configs/tiny.yaml
settings=()
case ${1:-} in
  "") ;;
  --quick)
    run=runs/tiny-quick
    stop_at=10
    settings=(--set train.train_steps=20 --set lr_scheduler.warmup_steps=5 --set checkpoint.save_interval=10
      --set eval.interval=10 --set eval.batches=2)
    ;;
  *)
    echo "quickstart.sh: unknown argument '$1' (known: --quick)" >&2
    exit 2
    ;;
esac

say() { printf '\n== %s\n' "$*"; }
die() {
  echo "quickstart.sh: $*" >&2
  exit 1
}
# Runs a command whose output matters only when it fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" > "$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "failed: $*"
  fi
  rm -f "$log"
}

say "Packages"
launch/install.sh
echo "everything is installed"

say "Build (in build/release; with CUDA where a toolkit is found)"
quietly cmake --preset release
quietly cmake --build build/release --target trainer -j "$(env -u OMP_NUM_THREADS nproc)"
trainer=build/release/launch/trainer
$trainer --version

say "Text: the King James Bible, one verse a line; a byte is a token, the last 5 % are held out"
if [[ ! -e $text/train-00000.h5 ]]; then
  mkdir -p $text
  bible -f ge1:1-re22:21 < /dev/null > $text/kjv.txt
  [[ $(stat -c %s $text/kjv.txt) -gt 4000000 ]] || die "the program 'bible' wrote less than the whole text to $text/kjv.txt"
  $trainer data prepare --input $text/kjv.txt --output-dir $text --validation-fraction 0.05
fi
ls -l $text

job=""
trap '[[ -z $job ]] || kill -TERM $job 2> /dev/null || true' EXIT
train=(launch/mpirun.sh -np 4 $trainer --config configs/tiny.yaml --set train.output_dir=$run "${settings[@]}")

say "Training on 4 CPU ranks, until the checkpoint of step $stop_at is there"
rm -rf $run
echo "${train[*]}"
"${train[@]}" &
job=$!
checkpoint=$run/checkpoints/$(printf 'step_%08d' $stop_at)
while [[ ! -d $checkpoint ]]; do
  kill -0 $job 2> /dev/null || { wait $job || die "training ended early with exit code $?"; break; }
  sleep 0.2
done

say "SIGUSR1 to mpirun: finish the step, save, exit with 75 (start me again)"
kill -USR1 $job
status=0
wait $job || status=$?
job=""
[[ $status -eq 75 ]] || die "expected exit code 75 of the stopped job, got $status"
echo "exit code 75"

say "The same command again: it goes on from the newest checkpoint"
"${train[@]}"

say "What was learnt"
awk -F '[,{}]' '
  { for (i = 1; i <= NF; ++i) { split($i, pair, ":"); value[pair[1]] = pair[2] } }
  NR == 1 { first = value["\"loss\""] }
  END {
    last = value["\"eval_loss\""]
    printf "first recorded training loss %.2f, held-out loss at the end %.2f bits a byte\n", first / log(2), last / log(2)
    exit !(last > 0 && last < first)
  }' $run/metrics.jsonl || die "the loss did not fall; see $run/metrics.jsonl"

cat << EOF

Where to look next
  $run/metrics.jsonl          one line a step
  $run/tb                     curves: tensorboard --logdir $run/tb
  $run/logs                   one log a rank
  $run/checkpoints            what a later run starts from
  $run/config.resolved.yaml   every setting of this run
  configs/tiny.yaml, docs/config.md, docs/operations.md
EOF
