#!/bin/sh
# The system packages that are needed and missing on a bare Debian: installed as root, otherwise named with the exact line.
set -eu
test "$(uname -s)" = Linux || exit 0
command -v dpkg-query >/dev/null 2>&1 || exit 0

installed() {
  dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'install ok installed'
}

# Of "a|b", the first that this system knows.
known() {
  for name in $(echo "$1" | tr '|' ' '); do
    if apt-cache show "$name" >/dev/null 2>&1; then echo "$name"; return; fi
  done
  echo "${1%%|*}"
}

find_missing() {
  missing=
  for package in $QT_PACKAGES ${EXTRA_PACKAGES:-} $python; do
    found=
    for name in $(echo "$package" | tr '|' ' '); do
      if installed "$name"; then found=yes; fi
    done
    test -n "$found" || missing="$missing $(known "$package")"
  done
}

# Debian cuts venv out of Python; other Pythons (pyenv, own builds) include it.
python=
if "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.prefix != "/usr")' 2>/dev/null; then
  "${PYTHON:-python3}" -c 'import ensurepip' 2>/dev/null || python=python3-venv
elif ! command -v "${PYTHON:-python3}" >/dev/null 2>&1; then
  python="python3 python3-venv"
fi

find_missing
test -n "$missing" || exit 0
if test "$(id -u)" = 0; then
  apt-get update -qq >&2
  find_missing
  echo "installing system packages:$missing" >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
  echo "Some system packages are not here. Install them, then run make again:" >&2
  echo "  sudo apt-get install$missing" >&2
  exit 1
fi
