#!/usr/bin/env bash
# Builds what the nodes of the VM lab have beside Kubernetes and Debian, into out/bin: containerd 2
# by its own go.mod, and CoreDNS from the module hack/tools/coredns. With the argument coredns, only
# that. 2 minutes on two cores when
# nothing is cached; what was built from the same versions of itself and of Go is not built again.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

# need NAME INPUTS: builds it by the function of its name, unless that and the inputs are unchanged.
need() {
	from=$({ go env GOVERSION GOARCH; declare -f "$1"; echo "$2"; } | sha256sum | cut -d' ' -f1)
	built_from "$OUT/bin/$1" "$from" || progress "build $1" build "$1"
}

# build NAME: puts the programs of its function into out/bin.
build() {
	local new=$OUT/bin/.new-$1
	rm -rf "$new"
	mkdir -p "$new"
	CGO_ENABLED=0 GOFLAGS= GOBIN=$new "$1"
	mv "$new"/* "$OUT/bin/"
	rmdir "$new"
	echo "$from" >"$OUT/bin/$1.from"
}

containerd() {
	local module=github.com/containerd/containerd/v2 program programs=()
	for program in containerd containerd-shim-runc-v2 ctr; do
		programs+=("$module/cmd/$program@$CONTAINERD_VERSION")
	done
	# Snapshotters that need C libraries or tools of the host are left out.
	nice go install -buildvcs=false -tags=no_btrfs,no_zfs,no_devmapper \
		-ldflags="-s -w -X $module/version.Version=$CONTAINERD_VERSION" "${programs[@]}"
}

coredns() {
	cd "$ROOT/hack/tools/coredns"
	nice go install -buildvcs=false -ldflags="-s -w" .
}

mkdir -p "$OUT/bin"
[[ ${1:-} == coredns ]] || need containerd "$CONTAINERD_VERSION"
need coredns "$(cat "$ROOT"/hack/tools/coredns/*)"
