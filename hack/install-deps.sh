#!/usr/bin/env bash
# Installs what the builds, tests and demonstrations need from Debian, only what
# is absent, and says what and why. Needs root.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

# package | how to tell that it is there | why
WANTED="
clang-$CLANG_VERSION|command -v clang-$CLANG_VERSION|compiles the BPF programs
llvm-$CLANG_VERSION|command -v llvm-strip-$CLANG_VERSION|strips them
clang-format-$CLANG_VERSION|command -v clang-format-$CLANG_VERSION|says whether they are formatted
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
haproxy|command -v haproxy|a pair of TLS proxies to measure beside, in benchmarks
wrk|command -v wrk|measures requests and connections a second, in benchmarks
sockperf|command -v sockperf|measures round trips, in benchmarks
e2fsprogs|command -v mkfs.ext4|tools of ext4, for tests and the image of the CSI driver
xfsprogs|command -v mkfs.xfs|tools of xfs, for tests and the image of the CSI driver
qemu-utils|command -v qemu-io|writes logs of writes as its machines do, for a test
tcpdump|command -v tcpdump|an independent capture for people
ca-certificates|test -e /etc/ssl/certs/ca-certificates.crt|fetching modules
"

install_debian "$WANTED"
wanted=$(awk '$1 == "go" {print $2}' "$ROOT/go.mod")
command -v go >/dev/null || die "no go: install Go $wanted or later from https://go.dev/dl"
