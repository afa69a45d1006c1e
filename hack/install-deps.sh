#!/usr/bin/env bash
# Installs what the builds, tests and demonstrations need from Debian, only what
# is absent, and says what and why. Needs root. etcd is not installed but taken
# apart into out/tools, because its package starts a service.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

# package | how to tell that it is there | why
WANTED="
clang-$CLANG_VERSION|command -v clang-$CLANG_VERSION|compiles the BPF programs
llvm-$CLANG_VERSION|command -v llvm-strip-$CLANG_VERSION|strips them
libbpf-dev|test -e /usr/include/bpf/bpf_helpers.h|headers of the BPF programs
linux-libc-dev|test -e /usr/include/linux/bpf.h|kernel headers of the BPF programs
gcc|command -v gcc|the race detector
libc6-dev|test -e /usr/include/stdlib.h|the race detector
iproute2|command -v ip|makes the lab's network
nftables|command -v nft|shows rules in tests and when a test fails
iptables|command -v iptables|the reference plugins portmap and ptp
util-linux|command -v nsenter|enters the lab's nodes
ethtool|command -v ethtool|switches offloads of the lab's links
wireguard-tools|command -v wg|an independent view of tunnels in tests
iperf3|command -v iperf3|measures in benchmarks
wrk|command -v wrk|measures requests and connections a second, in benchmarks
sockperf|command -v sockperf|measures round trips, in benchmarks
e2fsprogs|command -v mkfs.ext4|tools of ext4, for tests and the image of the CSI driver
xfsprogs|command -v mkfs.xfs|tools of xfs, for tests and the image of the CSI driver
qemu-utils|command -v qemu-io|writes logs of writes as its machines do, for a test
tcpdump|command -v tcpdump|an independent capture for people
ca-certificates|test -e /etc/ssl/certs/ca-certificates.crt|fetching modules
"

missing=()
while IFS='|' read -r package test why; do
	[[ -z $package ]] && continue
	if ! sh -c "$test" >/dev/null 2>&1; then
		missing+=("$package")
		say "will install $package: $why"
	fi
done <<<"$WANTED"

etcd=$OUT/tools/etcd
if ((${#missing[@]})) || [[ ! -x $etcd ]]; then
	[[ $(id -u) == 0 ]] || die "not root: run this as root, or install by hand: ${missing[*]:-etcd-server}"
	command -v apt-get >/dev/null || die "no apt-get: install by hand: ${missing[*]:-} etcd"
	export DEBIAN_FRONTEND=noninteractive
	progress "update the package lists" retry 3 apt-get update -q
fi
if ((${#missing[@]})); then
	progress "install ${missing[*]}" retry 3 apt-get install -q -y --no-install-recommends "${missing[@]}"
fi

# fetch_etcd puts Debian's etcd at out/tools/etcd without installing it.
fetch_etcd() {
	local dir=$OUT/tools/etcd.tmp
	rm -rf "$dir"
	mkdir -p "$dir"
	# apt drops to its own user for downloads, which must be able to write here.
	chmod 0777 "$dir"
	(cd "$dir" && retry 3 apt-get download -q etcd-server)
	dpkg-deb -x "$dir"/etcd-server_*.deb "$dir/x"
	dpkg --compare-versions "$(dpkg-deb -f "$dir"/etcd-server_*.deb Version)" ge "$ETCD_MIN_VERSION"
	mv "$dir/x/usr/bin/etcd" "$etcd"
	rm -rf "$dir"
}
if [[ ! -x $etcd ]]; then
	say "will fetch etcd-server into out/tools (not installed): the store of the lab's API server"
	progress "fetch etcd" fetch_etcd
fi
command -v go >/dev/null || die "no go: install Go $(awk '$1 == "go" {print $2}' "$ROOT/go.mod") or later from https://go.dev/dl"
