#!/bin/sh
# Installs a .deb into a fresh Debian without Python, compilers and, once installed, network, and uses it as a new user.
# Arguments: the .deb. Linux, as root; needs debootstrap. Screenshots and logs: build/try. Keeps the fresh system in .cache/rootfs.
set -eu
deb=$(realpath "$1")
out=$PWD/build/try
base=$PWD/.cache/rootfs
model=${MODEL:-$HOME/.local/share/elsewise/models/smollm2/source.gguf}
command -v debootstrap >/dev/null || { echo "debootstrap is needed: apt-get install debootstrap" >&2; exit 1; }
test -f "$model" || { echo "a GGUF file of SmolLM2 is needed: MODEL=path" >&2; exit 1; }
if [ ! -e "$base/etc/debian_version" ]; then
  mkdir -p "$base"
  debootstrap --variant=minbase --include=ca-certificates bookworm "$base" >/dev/null
  cp /etc/apt/sources.list.d/*.sources "$base/etc/apt/sources.list.d/" 2>/dev/null && rm -f "$base/etc/apt/sources.list"
  chroot "$base" apt-get update -qq
fi
mkdir -p "$out"
mount --bind "$base" "$base"  # so that what is mounted below ends with it
trap 'umount -R "$base"' EXIT
mount -t proc proc "$base/proc"
mount -t tmpfs tmpfs "$base/dev/shm"
cp "$deb" "$base/elsewise.deb"
install -m 644 "$model" "$base/model.gguf"
chroot "$base" env DEBIAN_FRONTEND=noninteractive sh -c '
  apt-get install -y -qq --no-install-recommends /elsewise.deb xvfb xdotool procps fonts-dejavu-core >/dev/null
  id reader >/dev/null 2>&1 || useradd --create-home --home-dir /srv/reader reader'
rm "$base/elsewise.deb"
if chroot "$base" sh -c 'command -v python3 || command -v python || command -v cc'; then
  echo "the fresh system has a Python or a compiler: this would show nothing" >&2
  exit 1
fi
cat > "$base/steps.sh" <<'STEPS'
set -eu
cd "$HOME"
step() { echo "-- $*"; "$@" > last.log 2>&1 || { cat last.log; echo "FAILED: $*"; exit 1; }; }
step elsewise --version
for command in ask bench chat doctor embed models score serve sessions window; do step elsewise $command --help; done
for group in models sessions; do
  for command in $(elsewise $group --help | sed -n '/^Commands:/,$ s/^  \([a-z-]*\)  .*/\1/p'); do step elsewise $group $command --help; done
done
step elsewise models import /model.gguf --name smollm2
step elsewise doctor
for backend in hf mlx; do
  step elsewise --backend $backend ask "Name three colours." --max-tokens 12 --session colours-$backend --alternatives 2
  tail -n 3 last.log
done
step elsewise ask "Is water wet?" --regex "(yes|no)" --max-tokens 4
cat last.log
echo "The quick brown fox jumps over the lazy dog." > fox.txt
step elsewise score fox.txt
step elsewise sessions export colours-hf colours.elsewise --portable --with-kv
echo "-- the window"
Xvfb :77 -screen 0 1440x900x24 -fbdir "$HOME" >/dev/null 2>&1 &
screen=$!
export DISPLAY=:77
sleep 2
elsewise --verbose > window.log 2>&1 &
window=$!
engine() { pgrep -P $window -f 'runtime[.]transport' | tail -n 1; }
waited=0
until first=$(engine) && [ -n "$first" ]; do
  waited=$((waited + 1))
  [ $waited -lt 90 ] || { cat window.log; pgrep -a elsewise; echo "FAILED: no engine"; exit 1; }
  sleep 1
done
sleep 15
cp Xvfb_screen0 1-start.xwd
echo "engine: $(tr '\0' ' ' < /proc/$first/cmdline)"
xdotool key ctrl+n; sleep 2; xdotool type "Name a river."; sleep 1; xdotool key Return; sleep 20
cp Xvfb_screen0 2-answer.xwd
kill -9 "$first"; sleep 2
xdotool type "And a lake?"; sleep 1; xdotool key Return; sleep 30
cp Xvfb_screen0 3-engine-killed.xwd
test "$(engine)" != "$first" || { echo "FAILED: no second engine"; exit 1; }
kill -TERM $window; wait $window || { cat window.log; echo "FAILED: the window's end"; exit 1; }
elsewise --verbose > window.log 2>&1 &
window=$!
sleep 12
cp Xvfb_screen0 4-reopened.xwd
kill -TERM $window; wait $window || { cat window.log; exit 1; }
kill $screen
step elsewise sessions list
cat last.log
STEPS
chmod 644 "$base/steps.sh"
unshare --net --ipc --pid --fork --mount-proc="$base/proc" chroot --userspec=reader:reader "$base" env -i HOME=/srv/reader PATH=/usr/bin:/bin LANG=C.UTF-8 sh /steps.sh
for picture in "$base"/srv/reader/*.xwd; do
  convert "xwd:$picture" "$out/$(basename "$picture" .xwd).png" || cp "$picture" "$out"
done
chroot "$base" sh -c 'DEBIAN_FRONTEND=noninteractive dpkg --remove elsewise >/dev/null && ! command -v elsewise && test -s /srv/reader/.local/share/elsewise/sessions.db'
rm -rf "$base/srv/reader" "$base/model.gguf"
chroot "$base" userdel reader
echo "passed: without Python, compilers and network; pictures in $out"
