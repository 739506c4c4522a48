#!/usr/bin/env bash
# Does the CUDA backend compile for Volta? Device code of kernels/cuda and tests/gpu by CUDA 11.8's nvcc for sm_70 as
# C++17, and the C++ files that include CUDA headers. Nothing is linked or run.
#
#   tests/volta_build.sh                        nvcc of CUDA 11.8 to 12.9 on PATH
#   tests/volta_build.sh --toolkit DIR          the same toolkit elsewhere: DIR/bin/nvcc
#   tests/volta_build.sh --fetch DIR            on Debian 12: unpacks nvidia-cuda-toolkit and g++-11 (about 0.9 GB, from
#                                               the machine's own mirror, section non-free) below DIR, which is kept
# JOBS: files at a time, 2 unless set.
set -euo pipefail
cd "$(dirname "$0")/.."

toolkit='' root=''
while [ $# -gt 0 ]; do
  case "$1" in
    --toolkit) toolkit=$2; shift 2 ;;
    --fetch) root=$2; shift 2 ;;
    *) sed -n '2,10p' "$0"; exit 2 ;;
  esac
done

fetch() {  # of Debian's packages only those that compiling takes, beside whatever is installed
  mkdir -p "$root/apt/lists/partial" "$root/apt/sources.list.d" "$root/debs"
  sed 's/^Components:.*/Components: main contrib non-free/' /etc/apt/sources.list.d/debian.sources \
    > "$root/apt/sources.list.d/debian.sources"
  local apt=(apt-get -q -o Dir::State::Lists="$root/apt/lists" -o Dir::Etc::SourceList=/dev/null
             -o Dir::Etc::SourceParts="$root/apt/sources.list.d" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
  "${apt[@]}" update
  (cd "$root/debs" && "${apt[@]}" download nvidia-cuda-toolkit nvidia-cuda-dev libnvvm4 libthrust-dev libcub-dev \
    libcu++-dev nvidia-profiler g++-11 gcc-11 cpp-11 gcc-11-base libgcc-11-dev libstdc++-11-dev)
  for package in "$root"/debs/*.deb; do dpkg-deb -x "$package" "$root"; done
  local home=$root/usr/lib/nvidia-cuda-toolkit  # the packages' nvcc.profile names the places of an installed toolkit
  rm -f "$home/bin/nvcc.profile"
  printf '%s\n' "NVVMIR_LIBRARY_DIR = $home/libdevice" "PATH += $home/bin:$root/usr/bin:" \
    "INCLUDES += \"-isystem\" \"$root/usr/include\"" > "$home/bin/nvcc.profile"
}

# nvcc, what its own C++ compiler is, and where the toolkit's headers are
host_compiler=()
if [ -n "$root" ]; then
  mkdir -p "$root"
  root=$(cd "$root" && pwd)
  [ -e "$root/usr/lib/nvidia-cuda-toolkit/bin/nvcc.profile" ] || fetch
  nvcc=$root/usr/lib/nvidia-cuda-toolkit/bin/nvcc
  headers=$root/usr/include
  host_compiler=(-ccbin "$root/usr/bin/g++-11")
else
  nvcc=${toolkit:+$toolkit/bin/nvcc}
  nvcc=$(readlink -f "${nvcc:-$(command -v nvcc)}") || { echo "no nvcc on PATH: see the head of $0" >&2; exit 2; }
  headers=$(dirname "$(dirname "$nvcc")")/include
fi
version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
"$nvcc" --list-gpu-arch | grep -qx compute_70 || { echo "CUDA $version cannot compile for sm_70" >&2; exit 2; }

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

compile() {  # FILE: prints one line and the compiler's messages
  local file=$1 object=$out/${1//\//_}.o verdict=ok start=$SECONDS
  local command=(g++ -std=c++20 -O1 -Wall -Wextra -I. -isystem "$headers" -c "$file" -o "$object")
  if [[ $file == *.cu ]]; then
    local fmad=true  # as in CMakeLists.txt
    grep -q "$(basename "$file").*--fmad=false" "$(dirname "$file")/CMakeLists.txt" && fmad=false
    command=("$nvcc" "${host_compiler[@]}" -std=c++17 -arch=sm_70 -O3 --fmad=$fmad -Xcompiler=-Wall,-Wextra
             -Wno-deprecated-gpu-targets -I. -c "$file" -o "$object")
  fi
  "${command[@]}" > "$object.log" 2>&1 || verdict=FAILED
  [ $verdict = ok ] && [ -s "$object.log" ] && verdict='ok, with warnings'
  echo "$file: $verdict ($((SECONDS - start)) s)"
  cat "$object.log"
  echo "$verdict" > "$object.verdict"
}

echo "CUDA $version, sm_70:"
# cuDNN's attention wants sm_80: without it CMake takes attention_cudnn_none.cc, as here.
files=$(ls core/runtime/*_cuda.cc kernels/cuda/*.cc kernels/cuda/*.cu tests/gpu/*.cu | grep -v /attention_cudnn.cc)
[ -e "$headers/nccl.h" ] && files+=" $(ls parallel/nccl_*.cc 2> /dev/null || true)"
running=0
for file in $files; do
  if [ $running -ge "${JOBS:-2}" ]; then wait -n; else running=$((running + 1)); fi
  compile "$file" &
done
wait
sort "$out"/*.verdict | uniq -c | sed "s|^ *|  |"
! grep -q FAILED "$out"/*.verdict
