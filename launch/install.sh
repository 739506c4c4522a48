#!/usr/bin/env bash
# Installs what the build needs and this machine lacks, on Debian 12 and Ubuntu 24.04.
#   launch/install.sh           build, tests and quick start; beside a CUDA toolkit also cuDNN's header-only frontend, in .deps/
#   launch/install.sh --lint    also clang-format and clang-tidy, in the version that the repository's style is for
#   launch/install.sh --check   installs nothing; says what is missing and fails if anything is
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config
  libfmt-dev libspdlog-dev libcli11-dev nlohmann-json3-dev libyaml-cpp-dev libxxhash-dev libhdf5-dev
  libopenblas-openmp-dev libopenmpi-dev openmpi-bin
  libgtest-dev
  bible-kjv # the text of the quick start
)

die() {
  echo "install.sh: $*" >&2
  exit 1
}

check_only=false
for argument in "$@"; do
  case $argument in
    --lint) packages+=(clang-format-14 clang-tidy-14) ;;
    --check) check_only=true ;;
    *) die "unknown argument '$argument' (known: --lint, --check)" ;;
  esac
done

frontend=.deps/cudnn-frontend
frontend_version=1.32.0
needs_frontend=false
cd "$(dirname "$0")/.."
if { command -v nvcc || [[ -x /usr/local/cuda/bin/nvcc ]]; } > /dev/null && [[ ! -e $frontend/include/cudnn_frontend.h ]]; then
  needs_frontend=true
  python3 -m pip --version > /dev/null 2>&1 || packages+=(python3-pip)
fi

# The headers come in a Python package. Without them the build falls back on our own attention kernels, which are slower.
install_frontend() {
  local folder
  folder=$(mktemp -d)
  if python3 -m pip download -q --no-deps -d "$folder" "nvidia-cudnn-frontend==$frontend_version" &&
    python3 -m zipfile -e "$folder"/nvidia_cudnn_frontend-*.whl "$folder/wheel"; then
    mkdir -p $frontend
    rm -rf $frontend/include
    mv "$folder/wheel/include" $frontend/include
  else
    echo "install.sh: no cudnn-frontend $frontend_version to be had: the build will use its own attention kernels only" >&2
  fi
  rm -rf "$folder"
}

command -v apt-get > /dev/null && command -v dpkg-query > /dev/null ||
  die "this is no Debian or Ubuntu machine; install the equivalents of: ${packages[*]}"

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  $check_only && $needs_frontend && die "missing: cudnn-frontend $frontend_version"
  $needs_frontend && ! $check_only && install_frontend
  exit 0
fi
$check_only && die "missing: ${missing[*]}"

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo > /dev/null ||
    die "these packages are missing, and installing them needs root or sudo: ${missing[*]}"
  as_root=(sudo)
fi
echo "install.sh: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq || die "apt-get update failed; is this machine online?"
for package in "${missing[@]}"; do
  apt-cache show "$package" > /dev/null 2>&1 ||
    die "no package '$package' in this machine's sources (on Ubuntu the component 'universe' must be enabled)"
done
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
  > /dev/null || die "apt-get could not install: ${missing[*]}"
if $needs_frontend; then install_frontend; fi
