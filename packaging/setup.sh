#!/bin/sh
# Makes the virtual environment given as $1 from requirements.lock, with torch apart (see docs/cuda.md).
set -eu
venv=$1
sh packaging/system.sh
"$PYTHON" - <<'PY'
import sys
if sys.version_info < (3, 11):
    sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}: make run PYTHON=python3.11")
PY
test -x "$venv/bin/python" || "$PYTHON" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet "uv==$UV_VERSION"
"$venv/bin/uv" pip install --quiet --compile-bytecode --python "$venv/bin/python" --no-deps --require-hashes -r requirements.lock
# pip, not uv: it follows the user's own settings for where torch's wheel comes from. $TORCH may hold pip options.
last=$(cat "$venv/.torch" 2>/dev/null || true)
if [ -z "$last" ] && ! "$venv/bin/python" -m pip show --quiet torch 2>/dev/null; then
  last=$TORCH  # none is there
fi
if [ "$TORCH_ORIGIN" = "command line" ] && [ "$last" != "$TORCH" ]; then  # maybe a wheel of the same version
  rm -f "$venv/.ready"
  "$venv/bin/python" -m pip install --quiet --no-deps --force-reinstall $TORCH
  last=$TORCH
fi
"$venv/bin/python" -m pip install --quiet $TORCH
echo "${last:-$TORCH}" > "$venv/.torch"
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --editable .
