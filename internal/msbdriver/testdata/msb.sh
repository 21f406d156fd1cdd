#!/bin/sh
# A stand-in for msb whose machines are folders, and whose guests are this machine's programs under another root, in a mount namespace:
# for tests of what drives msb, where no KVM is. It answers as MicroSandbox 0.7.2 does. $MSB_HOME/log has the commands that it got;
# while $MSB_HOME/hang is there, a create writes its record and then hangs. Its image store has image:1, image:2, image:3 and fails-late:1, and
# what is loaded: a file in $MSB_HOME/images each.
set -eu
mkdir -p "$MSB_HOME/m" "$MSB_HOME/images"
echo "$*" >>"$MSB_HOME/log"
die() { echo "error: $*" >&2; exit 1; }

verb=$1
shift
name= copies= force= input= tag= user=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	case "$1" in
	--name) name=$2; shift ;;
	--copy-file) copies=$2; shift ;;
	--input) input=$2; shift ;;
	--tag) tag=$2; shift ;;
	--user) user=$2; shift ;;
	--pull | --cpus | --max-cpus | --memory | --max-memory | --root-disk | --idle-timeout | --workdir | --env | --label | --net-default-egress | --format) shift ;;
	--force) force=1 ;;
	-*) ;;
	*) last=$1 ;;
	esac
	shift
done
case "$verb" in
create | load) ;;
image)
	case "$last" in # inspect
	image:[123] | fails-late:1) echo '{"digest":"sha256:0","config":{"user":null}}' ;;
	*) cat "$MSB_HOME/images/$(echo "$last" | tr / _)" 2>/dev/null || die "image not found: $last" ;;
	esac
	exit ;;
*) name=$last ;;
esac
m=$MSB_HOME/m/$name
[ -z "$name" ] || [ "$verb" = create ] || [ -d "$m" ] || die "sandbox not found: $name"

case "$verb" in
load)
	[ -s "$input" ] || die "cache error at $input: no archive"
	cp "$input" "$MSB_HOME/loaded.tar"
	printf '{"digest":"sha256:%s","config":{"user":"dev:users"}}' "$(sha256sum <"$input" | cut -c-64)" \
		>"$MSB_HOME/images/$(echo "$tag" | tr / _)" ;;
create)
	[ ! -d "$m" ] || die "sandbox already exists: $name"
	case "$last" in
	image:[123] | fails-late:1) ;;
	*) [ -e "$MSB_HOME/images/$(echo "$last" | tr / _)" ] || die "image error: $last is not in the image store" ;;
	esac
	mkdir "$m" "$m/root"
	date -u +%Y-%m-%dT%H:%M:%S.%NZ >"$m/created"
	echo Stopped >"$m/status"
	if [ -e "$MSB_HOME/hang" ]; then
		echo $$ >"$MSB_HOME/hanging"
		exec sleep 1000
	fi
	case "$last" in
	*fails-late*) die "boot failed" ;;
	esac
	mkdir "$m/bin"
	[ -z "$user" ] || echo "$user" >"$m/user"
	[ -z "$copies" ] || cp "${copies%%:*}" "$m/bin/parity-agent"
	echo Running >"$m/status" ;;
start)
	grep -q Stopped "$m/status" || exit 1
	echo Running >"$m/status" ;;
stop)
	grep -q Running "$m/status" || exit 1
	echo Stopped >"$m/status" ;;
remove)
	[ -n "$force" ] || grep -q Stopped "$m/status" || die "$name is running"
	rm -rf "$m" ;;
inspect)
	[ ! -e "$m/user" ] || user="\"$(cat "$m/user")\""
	printf '{"name":"%s","status":"%s","created_at":"%s","updated_at":"%s","config":{"runtime":{"user":%s}},"active_config":null}\n' \
		"$name" "$(cat "$m/status")" "$(cat "$m/created")" "$(cat "$m/created")" "${user:-null}" ;;
exec)
	shift # --
	exec unshare --mount /bin/sh -euc '
		m=$1; shift
		mount -t tmpfs none "$m/root"
		for d in bin lib lib64 usr dev proc; do
			[ -e "/$d" ] && mkdir "$m/root/$d" && mount --rbind "/$d" "$m/root/$d"
		done
		mount --bind "$m/bin" "$m/root/usr/local/bin"
		exec chroot "$m/root" "$@"' sh "$m" "$@" ;;
*)
	die "unknown command $verb" ;;
esac
