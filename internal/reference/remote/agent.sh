# What a remote machine is asked to do: sh -c "$this" sh MODE PATH SHA256 ARCH URL STALL ARGUMENT...
#
#   launch   become the agent at PATH, with the arguments, if it is the wanted one
#   fetch    put the agent at PATH, from below the URL; standard input stays open as long as somebody waits for it
#   receive  put the agent at PATH, from standard input
#
# The first line of standard output is the answer, in JSON. Messages for people go to standard error. It needs no more than a POSIX sh,
# mktemp and sha256sum.
set -u
mode=$1 path=$2 sum=$3 arch=$4 url=$5 stall=$6
shift 6
exec 3<&0 </dev/null
new=

answer() { printf '{"agent":"%s","why":"%s"}\n' "$1" "${2:-}"; }
die() { printf '%s: %s\n' "$(uname -n)" "$*" >&2; exit 1; }

# right tells whether a file has the SHA-256.
right() { [ "$(sha256sum <"$1")" = "$sum  -" ]; }

# good tells whether a file is the wanted agent. Somebody else's is not: he could change it at any time.
good() { [ -f "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] && [ -x "$1" ] && right "$1"; }

# begin makes the temporary file, which goes when the script ends early.
begin() {
	for tool in mktemp sha256sum; do
		command -v "$tool" >/dev/null ||
			die "there is no $tool, which is needed to put the agent at $path: install coreutils or busybox"
	done
	case "$(uname -m)" in
	x86_64 | amd64) here=amd64 ;;
	aarch64 | arm64) here=arm64 ;;
	*) here=$(uname -m) ;;
	esac
	[ "$here" = "$arch" ] ||
		die "this machine is of the architecture $here, and the agent for $arch: use a CLI that was built for $here, or another remote"
	dir=$(dirname "$path")
	mkdir -p "$dir" ||
		die "the folder of the agent, $dir, cannot be made: set agent.path in provider.yaml to where $(id -un) may write"
	[ ! -d "$path" ] ||
		die "expected a file at $path, or nothing, seen a folder: remove it, or set agent.path in provider.yaml to another path"
	trap '[ -z "$new" ] || rm -f "$new"' EXIT
	trap 'exit 1' HUP INT TERM PIPE
	new=$(mktemp "$path.XXXXXX") ||
		die "no file can be made in $dir: set agent.path in provider.yaml to where $(id -un) may write, or free space there"
}

# attended runs a command that is ended when nobody waits for it any more.
attended() {
	"$@" &
	running=$!
	(read -r _ <&3; kill "$running") >/dev/null 2>&1 &
	watching=$!
	wait "$running"
	code=$?
	kill "$watching" 2>/dev/null
	[ "$code" -lt 128 ] || exit 1
	return "$code"
}

# download fetches into the temporary file, or says why that cannot be done.
download() {
	if [ -z "$url" ]; then
		why="there is no URL to download it from"
		return 1
	fi
	if command -v curl >/dev/null; then
		tool=curl
		attended curl -fsSL --connect-timeout "$stall" --speed-limit 1 --speed-time "$stall" --proto =http,https -o "$new" --url "$url"
	elif command -v wget >/dev/null; then
		tool=wget once=
		! wget --version >/dev/null 2>&1 || once=--tries=1 # GNU's, which tries 20 times if it is not told
		attended wget -q $once -T "$stall" -O "$new" "$url"
	else
		why="there is neither curl nor wget"
		return 1
	fi
	code=$?
	if [ "$code" != 0 ]; then
		why="$tool ended with code $code"
	elif ! right "$new"; then
		why="what came is another file, by its SHA-256"
	else
		return 0
	fi
	return 1
}

# place puts the temporary file where the agent belongs, once it was seen to run.
place() {
	chmod 0755 "$new" || die "the agent at $new cannot be made executable"
	said=$("$new" "$@" --probe 2>&1)
	case $? in
	0) ;;
	126) die "the agent cannot be run in $dir: is its file system mounted noexec? Set agent.path in provider.yaml to a path on another one. $said" ;;
	*) die "the agent does not run: expected exit code 0 of \`$new $* --probe\`, seen $said" ;;
	esac
	mv -f "$new" "$path" ||
		die "the agent cannot be put at $path, which may be somebody else's: set agent.path in provider.yaml to another path"
	new=
	answer placed
}

case $mode in
launch)
	good "$path" 2>/dev/null || { answer missing; exit 0; }
	exec "$path" "$@" <&3 3<&-
	;;
fetch)
	begin
	if good "$path"; then answer kept
	elif download; then place "$@"
	else answer send "$why"
	fi
	;;
receive)
	begin
	cat <&3 >"$new" ||
		die "the agent cannot be written to $dir: is its disk full? $(df -Pk "$dir" | tail -n 1)." \
			"Free space there, or set agent.path in provider.yaml to a path on another one"
	right "$new" ||
		die "the agent did not come whole: expected SHA-256 $sum, seen $(wc -c <"$new") bytes with another; was the connection cut?"
	place "$@"
	;;
esac
