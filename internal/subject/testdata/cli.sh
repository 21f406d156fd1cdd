#!/bin/sh
# A workspace CLI of the contract whose workspaces are folders of this machine. The test puts a value for FAULT, AGENT and
# LEAK on top; a FAULT makes it break one rule.
set -u
say() { echo "$*" >&2; }

case "$1 $2" in
"provider add")
	[ "$FAULT" = provider-add ] && { say "no such provider"; exit 1; }
	exit 0 ;;
"provider delete")
	[ "$FAULT" = provider-delete ] && { say "cannot"; exit 1; }
	exit 0 ;;
esac

verb=$2
shift 2
id= dir= command= stdio= provider= devcontainer= recreate=
while [ $# -gt 0 ]; do
	case "$1" in
	--id) id=$2; shift ;;
	--provider) provider=$2; shift ;;
	--command) command=$2; shift ;;
	--devcontainer) devcontainer=$2; shift ;;
	--ide | --result-format | --provider-option) shift ;;
	--stdio) stdio=1 ;;
	--recreate) recreate=1 ;;
	--ignore-not-found | --force) ;;
	*) if [ "$verb" = up ]; then dir=$1; else id=$1; fi ;;
	esac
	shift
done
home=$DEVSY_HOME
[ "$FAULT" = shared ] && home=$LEAK
ws=$home/ws/$id
present() { [ -e "$ws/state" ]; }

case "$verb" in
up)
	if grep -q no-such-image "$dir/.devcontainer/devcontainer.json"; then
		[ "$FAULT" = up-lies ] && { echo '{"outcome":"success","containerId":"c","remoteUser":"root","remoteWorkspaceFolder":"/"}'; exit 0; }
		[ "$FAULT" = up-text ] && { say "image not found"; exit 1; }
		echo '{"outcome":"error","message":"image not found"}'
		exit 1
	fi
	[ "$FAULT" = up-log ] && echo "10:00:00 info creating"
	mkdir -p "$ws" && echo Running >"$ws/state" && echo "$provider" >"$ws/provider"
	# The test reads these files in MicroSandbox's place.
	created=$DEVSY_HOME/created-$id
	{ [ -e "$created" ] && [ "$FAULT" != anew ]; } || date --rfc-3339=ns | tr ' ' T >"$created"
	echo Running >"$DEVSY_HOME/machine-$id"
	[ "$FAULT" = no-machine ] && rm "$DEVSY_HOME/machine-$id"
	[ "$FAULT" = entered ] && echo "$home" >"$LEAK/home"
	[ "$FAULT" = up-nothing ] && rm -r "$ws"
	echo '{"outcome":"success","containerId":"devsy-u-1","remoteUser":"root","remoteWorkspaceFolder":"/workspaces/x"}' ;;
status)
	if ! present; then
		[ "$FAULT" = not-75 ] && exit 1
		exit 75
	fi
	state=$(cat "$ws/state")
	[ "$FAULT" = never-stopped ] && state=Running
	printf '{"id":"%s","context":"default","provider":"%s","state":"%s"}\n' "$id" "$(cat "$ws/provider")" "$state" ;;
list)
	[ "$FAULT" = list-null ] && { echo null; exit; }
	entries=
	for d in "$home"/ws/*; do
		[ -e "$d/state" ] || continue
		uid=u-1
		[ "$FAULT" = no-uid ] && uid=
		[ "$FAULT" = new-uid ] && uid=u-$$
		entries="$entries${entries:+,}{\"id\":\"${d##*/}\",\"uid\":\"$uid\",\"provider\":{\"name\":\"$(cat "$d/provider")\",\"options\":{}},\"source\":{},\"creationTimestamp\":\"2026-01-02T03:04:05Z\"}"
	done
	echo "[$entries]" ;;
ssh)
	[ "$FAULT" = entered ] && ws=$(cat "$LEAK/home")/ws/$id
	[ "$FAULT" = dead-after-stop ] && [ -e "$home/stopped-$id" ] && { say "the machine does not answer"; exit 1; }
	present || { say "no such workspace"; exit 1; }
	if [ -n "$stdio" ]; then
		[ "$FAULT" = banner ] && echo "Welcome!"
		[ "$FAULT" = hang ] && exec sleep 1000
		[ "$FAULT" = dies ] && { say "the connection was refused"; exit 1; }
		[ "$FAULT" = lingers ] && { "$AGENT" ssh --stdio; exec sleep 1000; }
		exec "$AGENT" ssh --stdio
	fi
	[ "$FAULT" = merged ] && exec 2>&1
	/bin/sh -c "$command"
	code=$?
	[ "$FAULT" = exit-1 ] && [ $code -ne 0 ] && exit 1
	exit $code ;;
stop)
	present || exit 1
	: >"$home/stopped-$id"
	[ "$FAULT" = stop-said ] || echo Stopped >"$DEVSY_HOME/machine-$id"
	echo Stopped >"$ws/state" ;;
delete)
	[ "$FAULT" = keeps ] || rm -rf "$ws"
	[ "$FAULT" = leaves-machine ] || rm -f "$DEVSY_HOME/machine-$id"
	[ "$FAULT" = delete-twice ] && [ -e "$home/deleted-$id" ] && exit 1
	: >"$home/deleted-$id" ;;
*)
	say "unknown verb $verb"
	exit 2 ;;
esac
