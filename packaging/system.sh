#!/bin/sh
# The system libraries that Qt needs and a bare Debian lacks: installed as root, otherwise named with the exact line.
set -eu
test "$(uname -s)" = Linux || exit 0
command -v dpkg-query >/dev/null 2>&1 || exit 0
missing=
for package in $QT_PACKAGES ${EXTRA_PACKAGES:-}; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing="$missing $package"
done
test -n "$missing" || exit 0
if test "$(id -u)" = 0; then
  echo "installing system libraries:$missing" >&2
  apt-get update -qq >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
  echo "Qt needs system libraries that are not here. Install them, then run make again:" >&2
  echo "  sudo apt-get install$missing" >&2
  exit 1
fi
