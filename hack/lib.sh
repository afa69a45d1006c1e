# Shared by the scripts of hack/: where things are, and how progress is told.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
OUT=$ROOT/out
export ROOT OUT

# shellcheck source=hack/versions.sh
. "$ROOT/hack/versions.sh"

say() { printf '%s\n' "$*" >&2; }

die() {
	say "error: $*"
	exit 1
}

# retry N COMMAND: up to N tries with a growing pause, for what the network may fail.
retry() {
	local n=$1 i
	shift
	for ((i = 1; ; i++)); do
		"$@" && return 0
		((i == n)) && return 1
		say "  again in $((i * 3)) s: $*"
		sleep $((i * 3))
	done
}

# progress NAME COMMAND: runs it with a line every 20 s, so that a long build is
# seen to be alive; its output is shown only when it fails.
progress() {
	local name=$1 log pid start=$SECONDS waited=0 rc=0
	shift
	mkdir -p "$OUT/log"
	log=$OUT/log/$(tr -c 'a-zA-Z0-9\n' - <<<"$name").log
	say "$name …"
	"$@" >"$log" 2>&1 &
	pid=$!
	while kill -0 "$pid" 2>/dev/null; do
		sleep 0.2
		waited=$((waited + 1))
		((waited % 100 == 0)) && say "  $name: $((SECONDS - start)) s"
	done
	wait "$pid" || rc=$?
	if ((rc != 0)); then
		tail -n 60 "$log" >&2
		die "$name ended with $rc after $((SECONDS - start)) s; all of it is in $log"
	fi
	say "$name: done in $((SECONDS - start)) s"
}

# built_from TARGET HASH: whether TARGET was built from inputs of this hash.
built_from() { [[ -e $1 && -e $1.from && $(cat "$1.from") == "$2" ]]; }

# debian_sources prints the Debian archives that this machine itself uses, as lines of a sources.list; none is named here.
debian_sources() {
	apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)' 'Identifier: Packages' |
		awk -F'|' '$1 == "Debian" {print "deb", $2, $3, $4}' | sort -u
}
