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

# there PROGRAM: prints where this machine has one already, in KUBEBUILDER_ASSETS or on the path.
there() {
	local path=${KUBEBUILDER_ASSETS:-}/$1
	if [[ -n ${KUBEBUILDER_ASSETS:-} && -x $path ]]; then
		realpath "$path"
	else
		type -P "$1"
	fi
}

# built_from TARGET HASH: whether TARGET was built from inputs of this hash.
built_from() { [[ -e $1 && -e $1.from && $(cat "$1.from") == "$2" ]]; }

# install_debian LIST [FILE…]: installs from Debian the packages of LIST that are absent, and prints
# which and why. A line of LIST is PACKAGE|COMMAND|REASON; the command succeeds where the package is
# installed, and may have bars. The lists of packages are updated also for a FILE that is absent:
# unpack_debian fetches it.
install_debian() {
	local list=$1 line package test file missing=() fetch=()
	shift
	while read -r line; do
		[[ -z $line ]] && continue
		package=${line%%|*} test=${line#*|}
		if ! sh -c "${test%|*}" >/dev/null 2>&1; then
			missing+=("$package")
			say "will install $package: ${line##*|}"
		fi
	done <<<"$list"
	for file in "$@"; do
		[[ -x $file ]] || fetch+=("${file##*/}")
	done
	((${#missing[@]} + ${#fetch[@]})) || return 0
	[[ $(id -u) == 0 ]] ||
		die "not root: run this as root, or install by hand: ${missing[*]} ${fetch[*]}"
	command -v apt-get >/dev/null || die "no apt-get: install by hand: ${missing[*]} ${fetch[*]}"
	export DEBIAN_FRONTEND=noninteractive
	progress "update the package lists" retry 3 apt-get update -q
	if ((${#missing[@]})); then
		progress "install ${missing[*]}" \
			retry 3 apt-get install -q -y --no-install-recommends "${missing[@]}"
	fi
}

# unpack_debian PACKAGE PROGRAM FILE [VERSION]: puts the program at that path of Debian's package,
# of at least that version, at FILE. Nothing is installed.
unpack_debian() {
	local package=$1 program=$2 file=$3 least=${4:-} dir=$3.tmp
	rm -rf "$dir"
	mkdir -p "$dir"
	# apt drops to its own user for downloads, which must be able to write here.
	chmod 0777 "$dir"
	(cd "$dir" && retry 3 apt-get download -q "$package")
	dpkg-deb -x "$dir/$package"_*.deb "$dir/x"
	[[ -z $least ]] ||
		dpkg --compare-versions "$(dpkg-deb -f "$dir/$package"_*.deb Version)" ge "$least"
	# It must start: its libraries may be absent.
	"$dir/x/$program" --version || "$dir/x/$program" -v
	mv "$dir/x/$program" "$file"
	rm -rf "$dir"
}

# debian_sources prints the Debian archives that this machine itself uses, as lines of a
# sources.list. None is named here.
debian_sources() {
	apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)|$(RELEASE)|$(COMPONENT)' \
		'Identifier: Packages' |
		awk -F'|' '$1 == "Debian" {print "deb", $2, $3, $4}' | sort -u
}
