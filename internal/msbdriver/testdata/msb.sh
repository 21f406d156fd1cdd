#!/bin/sh
# A stand-in for msb whose machines are folders, and whose guests are this machine's programs under another root, in a mount namespace:
# for tests of what drives msb, where no KVM is. It answers as MicroSandbox 0.7.2 does. $MSB_HOME/log has the commands that it got;
# while $MSB_HOME/hang is there, a create writes its record and then hangs.
set -eu
mkdir -p "$MSB_HOME/m"
echo "$*" >>"$MSB_HOME/log"
die() { echo "error: $*" >&2; exit 1; }

verb=$1
shift
name= copies= force=
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	case "$1" in
	--name) name=$2; shift ;;
	--copy-file) copies=$2; shift ;;
	--cpus | --max-cpus | --memory | --max-memory | --root-disk | --idle-timeout | --workdir | --env | --label | --user | --net-default-egress | --format) shift ;;
	--force) force=1 ;;
	-*) ;;
	*) last=$1 ;;
	esac
	shift
done
[ "$verb" = create ] || name=$last
m=$MSB_HOME/m/$name
[ "$verb" = create ] || [ -d "$m" ] || die "sandbox not found: $name"

case "$verb" in
create)
	[ ! -d "$m" ] || die "sandbox already exists: $name"
	case "$last" in
	*no-such-image*) die "failed to pull $last" ;;
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
	printf '{"name":"%s","status":"%s","created_at":"%s","updated_at":"%s","config":{},"active_config":null}\n' \
		"$name" "$(cat "$m/status")" "$(cat "$m/created")" "$(cat "$m/created")" ;;
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
