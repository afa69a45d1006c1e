#!/usr/bin/env bash
# Builds what the nodes of the VM lab have beside Kubernetes and Debian: containerd 2 and CoreDNS, each from a module of
# its own (hack/tools/…), into out/bin. 2 minutes on two cores when nothing is cached; skipped for a module when neither it nor the
# Go version has changed since.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

# build MODULE ARGUMENTS...: go build there, static.
build() {
	local module=$1 new=$OUT/bin/.new-$1
	shift
	cd "$ROOT/hack/tools/$module"
	rm -rf "$new"
	mkdir -p "$new"
	CGO_ENABLED=0 GOFLAGS= nice go build -buildvcs=false -o "$new/" "$@"
	mv "$new"/* "$OUT/bin/"
	rmdir "$new"
	echo "$from" >"$OUT/bin/$module.from"
}

# need MODULE ARGUMENTS...: builds it when its inputs have changed; one of its programs has its name.
need() {
	local module=$ROOT/hack/tools/$1
	from=$(cat "$module"/* <(go env GOVERSION GOARCH) <(echo "$@") | sha256sum | cut -d' ' -f1)
	built_from "$OUT/bin/$1" "$from" || progress "build $1" build "$@"
}

mkdir -p "$OUT/bin"
version=$(awk '$1 == "github.com/containerd/containerd/v2" {print $2}' "$ROOT/hack/tools/containerd/go.mod")
# Snapshotters that need C libraries or tools of the host are left out.
need containerd -tags=no_btrfs,no_zfs,no_devmapper -ldflags="-s -w -X github.com/containerd/containerd/v2/version.Version=$version" tool
need coredns -ldflags="-s -w" .
