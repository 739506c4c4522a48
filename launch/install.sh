#!/usr/bin/env bash
# Installs what the build needs and this machine lacks, on Debian 12 and Ubuntu 24.04.
#   launch/install.sh           build, tests and quick start
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

command -v apt-get > /dev/null && command -v dpkg-query > /dev/null ||
  die "this is no Debian or Ubuntu machine; install the equivalents of: ${packages[*]}"

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2> /dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0
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
