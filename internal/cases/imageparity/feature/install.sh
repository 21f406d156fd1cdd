#!/bin/sh
# Leaves a file that says what the Feature's install was given.
set -e
mkdir -p /usr/local/share/parity
printf 'word=%s id=%s remote=%s:%s container=%s:%s\n' "$WORD" "$(id -u)" \
	"$_REMOTE_USER" "$_REMOTE_USER_HOME" "$_CONTAINER_USER" "$_CONTAINER_USER_HOME" >/usr/local/share/parity/feature
