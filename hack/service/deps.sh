#!/usr/bin/env bash
# Fetches haproxy, which `make bench-service` needs beyond hack/install-deps.sh, and installs its libraries, only what is absent. Needs root. haproxy is not
# installed but taken apart into out/tools, because its package starts a service.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

# package | how to tell that it is there | why
WANTED="
liblua5.3-0|ldconfig -p \| grep -q liblua5.3.so.0|haproxy needs it
libopentracing-c-wrapper0|ldconfig -p \| grep -q libopentracing-c-wrapper|haproxy needs it
libpcre2-8-0|ldconfig -p \| grep -q libpcre2-8.so|haproxy needs it
"

missing=()
while read -r line; do
	[[ -z $line ]] && continue
	package=${line%%|*} why=${line##*|} test=${line#*|}
	test=${test%|*}
	if ! sh -c "${test//\\|/|}" >/dev/null 2>&1; then
		missing+=("$package")
		say "will install $package: $why"
	fi
done <<<"$WANTED"

haproxy=$OUT/tools/haproxy
if ((${#missing[@]})) || [[ ! -x $haproxy ]]; then
	[[ $(id -u) == 0 ]] || die "not root: run this as root, or install by hand: ${missing[*]:-haproxy}"
	command -v apt-get >/dev/null || die "no apt-get: install by hand: ${missing[*]:-} haproxy"
	export DEBIAN_FRONTEND=noninteractive
	progress "update the package lists" retry 3 apt-get update -q
fi
if ((${#missing[@]})); then
	progress "install ${missing[*]}" retry 3 apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

# fetch_haproxy puts Debian's haproxy at out/tools/haproxy without installing it.
fetch_haproxy() {
	local dir=$OUT/tools/haproxy.tmp
	rm -rf "$dir"
	mkdir -p "$dir"
	# apt drops to its own user for downloads, which must be able to write here.
	chmod 0777 "$dir"
	(cd "$dir" && retry 3 apt-get download -q haproxy)
	dpkg-deb -x "$dir"/haproxy_*.deb "$dir/x"
	"$dir/x/usr/sbin/haproxy" -v
	mv "$dir/x/usr/sbin/haproxy" "$haproxy"
	rm -rf "$dir"
}
if [[ ! -x $haproxy ]]; then
	say "will fetch haproxy into out/tools (not installed): a side of the comparison"
	progress "fetch haproxy" fetch_haproxy
fi
