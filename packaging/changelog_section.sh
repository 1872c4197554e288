#!/bin/sh
# Prints the changelog's section of the version given as $1, without its heading; fails where there is none.
set -eu
cd "$(dirname "$0")/.."
awk -v version="$1" '
  /^## / { inside = index($0, "## [" version "]") == 1; found += inside; next }
  inside
  END { exit !found }
' CHANGELOG.md
