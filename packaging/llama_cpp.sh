#!/bin/sh
# Makes a virtual environment with llama.cpp's server for a CPU, apart from the application's own: `make test-llama`.
# Arguments: the folder of the environment. The server comes inside the wheel xllamacpp (MIT); gguf (MIT) writes a file for it.
set -eu
venv=$1
version=2026.10.11549
if [ -e "$venv/.ready-$version" ]; then
  exit 0
fi
echo "This fetches xllamacpp $version (llama.cpp's server, MIT) and gguf: 0.2 GB under $venv."
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/python" -m pip --disable-pip-version-check -q install "xllamacpp==$version" "gguf>=0.17,<1"
touch "$venv/.ready-$version"
