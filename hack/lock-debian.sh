#!/usr/bin/env bash
# Writes hack/image/debian.lock: version, SHA-256 and path of the Debian packages whose programs
# images have, for each architecture. It takes the packages that the lock lists; to add one, append
# a line with two fields, such as "amd64 iperf3". apt checks the signatures of the archives that
# this machine itself uses. Needs no root, and leaves the machine's own lists as they are.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

lock=$ROOT/hack/image/debian.lock
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
debian_sources >"$work/sources.list"
[[ -s $work/sources.list ]] || die "apt has no list of a Debian archive: run \`apt-get update\`"

# locked ARCH prints the lines of an architecture, from the newest packages of the archives.
locked() {
	local arch=$1 dir=$work/$1 packages options
	mapfile -t packages < <(awk -v a="$arch" '$1 == a {print $2}' "$lock" | sort -u)
	mkdir -p "$dir/state/lists/partial" "$dir/cache/archives/partial"
	: >"$dir/status"
	options=(-q -o "Dir::State=$dir/state" -o "Dir::State::status=$dir/status" -o "Dir::Cache=$dir/cache"
		-o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
		-o "APT::Architecture=$arch" -o "APT::Architectures=$arch" -o "APT::Architectures::=$arch")
	retry 3 apt-get "${options[@]}" update >&2
	# 'URI' NAME_VERSION_ARCH.deb SIZE SHA256:SUM
	apt-get "${options[@]}" --print-uris download "${packages[@]}" | sort |
		awk -v a="$arch" '{
			uri = $1; gsub(/\x27/, "", uri); sub(/.*\/pool\//, "pool/", uri)
			split($2, part, "_"); sub(/^SHA256:/, "", $4)
			print a, part[1], part[2], $4, uri
		}' | sort
}

for arch in $(awk '!/^#/ {print $1}' "$lock" | sort -u); do
	locked "$arch" >>"$work/lock"
done
awk 'NF && !/^#/ && NF != 5 {exit 1}' "$work/lock" || die "apt printed no sum for a package"
{
	grep '^#' "$lock"
	cat "$work/lock"
} >"$lock.new"
mv "$lock.new" "$lock"
