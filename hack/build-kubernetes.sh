#!/usr/bin/env bash
# Gets the Kubernetes programs that the labs run into out/bin, and etcd into out/tools.
#   hack/build-kubernetes.sh          kube-apiserver and kube-proxy, all that the namespace lab
#                                     needs: those of KUBEBUILDER_ASSETS, else of the path, else built
#   hack/build-kubernetes.sh all      every program of the VM lab, always built; 3 minutes more
#   hack/build-kubernetes.sh NAME...  those, built; also of the upstream tests, e2e.test and
#                                     the programs of its images by the images' names
#   hack/build-kubernetes.sh etcd-streams
#                                     etcd 3.6 into out/tools, for labs with streaming lists
# Programs are built from their Go module: about 5 minutes on two cores when nothing is cached,
# skipped when neither the module nor the Go version has changed since.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

module=$ROOT/hack/tools/kubernetes
version=$(cd "$module" && GOFLAGS='' go list -m -f '{{.Version}}' k8s.io/kubernetes)
from=$(cat "$module/go.mod" "$module/go.sum" <(go env GOVERSION GOARCH) | sha256sum | cut -d' ' -f1)
# What `kubectl version` and the API's /version answer; Go modules do not set it.
pkg=k8s.io/component-base/version
IFS=. read -r major minor _ <<<"${version#v}"
stamp="-X $pkg.gitVersion=$version -X $pkg.gitMajor=$major -X $pkg.gitMinor=$minor"

stale=()

build() {
	local packages=() program
	cd "$module"
	mkdir -p "$OUT/bin/.new"
	export CGO_ENABLED=0 GOFLAGS=
	for program in "${stale[@]}"; do
		case $program in
		e2e.test) go test -c -buildvcs=false -ldflags "-s -w $stamp" -o "$OUT/bin/.new/e2e.test" k8s.io/kubernetes/test/e2e ;;
		agnhost | regression-issue-74839) packages+=("k8s.io/kubernetes/test/images/$program") ;;
		*) packages+=("k8s.io/kubernetes/cmd/$program") ;;
		esac
	done
	((${#packages[@]} == 0)) || go build -buildvcs=false -ldflags "-s -w $stamp" -o "$OUT/bin/.new/" "${packages[@]}"
	for program in "${stale[@]}"; do
		mv "$OUT/bin/.new/$program" "$OUT/bin/$program"
		echo "$from" >"$OUT/bin/$program.from"
	done
}

# use PROGRAM DESTINATION PINNED: links one that this machine has, says which, and whether it is
# another version than the pinned one.
use() {
	local path found
	path=$(there "$1") || return
	found=$("$path" --version 2>&1 | grep -Eom1 '[0-9]+\.[0-9]+\.[0-9]+[^ ]*' || echo unknown)
	if [[ v$found == "$3" ]]; then
		say "use $path ($3)"
	else
		say "use $path: version $found, not the pinned $3"
	fi
	rm -f "$2.from"
	ln -sfn "$path" "$2"
}

# etcd is fetched and not installed: Debian's package would start a service.
get_etcd() {
	local etcd=$OUT/tools/etcd path
	mkdir -p "$OUT/tools"
	if path=$(there etcd); then
		say "use $path"
		ln -sfn "$path" "$etcd"
	elif [[ ! -x $etcd ]]; then
		say "will fetch etcd-server into out/tools (not installed): the store of the lab's API server"
		install_debian "" "$etcd"
		progress "fetch etcd" unpack_debian etcd-server usr/bin/etcd "$etcd" "$ETCD_MIN_VERSION"
	fi
}

# Debian's etcd is too old for streaming lists. Only benchmarks need this one, so it is built apart.
build_etcd() {
	cd "$ROOT/hack/tools/etcd"
	CGO_ENABLED=0 GOFLAGS='' go build -buildvcs=false -trimpath -ldflags "-s -w" -o "$1" \
		go.etcd.io/etcd/server/v3
}

get_streaming_etcd() {
	local etcd=$OUT/tools/etcd-streams from
	from=$(cat "$ROOT"/hack/tools/etcd/go.{mod,sum} <(go env GOVERSION GOARCH) | sha256sum)
	from=${from%% *}
	built_from "$etcd" "$from" && return
	progress "build etcd" build_etcd "$etcd.new"
	mv "$etcd.new" "$etcd"
	echo "$from" >"$etcd.from"
}

wanted=("$@")
mkdir -p "$OUT/bin"
case "${wanted[*]}" in
"")
	get_etcd
	for program in kube-apiserver kube-proxy; do
		use "$program" "$OUT/bin/$program" "$version" || wanted+=("$program")
	done
	;;
etcd-streams)
	get_streaming_etcd
	exit
	;;
all)
	get_etcd
	wanted=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl)
	;;
esac
for program in "${wanted[@]}"; do
	built_from "$OUT/bin/$program" "$from" || stale+=("$program")
done
((${#stale[@]} == 0)) || progress "build Kubernetes $version: ${stale[*]}" build
