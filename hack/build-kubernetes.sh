#!/usr/bin/env bash
# Builds the Kubernetes programs that the labs run, from their Go module, into
# out/bin. About 5 minutes on two cores when nothing is cached; skipped when
# neither the module nor the Go version has changed since.
#   hack/build-kubernetes.sh          kube-apiserver, all that the namespace lab needs
#   hack/build-kubernetes.sh all      every program of the VM lab, 3 minutes more
#   hack/build-kubernetes.sh NAME...  those
set -euo pipefail
. "$(dirname "$0")/lib.sh"

module=$ROOT/hack/tools/kubernetes
version=$(awk '$1 == "k8s.io/kubernetes" {print $2}' "$module/go.mod")
from=$(cat "$module/go.mod" "$module/go.sum" <(go env GOVERSION GOARCH) | sha256sum | cut -d' ' -f1)
# What `kubectl version` and the API's /version answer; Go modules do not set it.
pkg=k8s.io/component-base/version
IFS=. read -r major minor _ <<<"${version#v}"
stamp="-X $pkg.gitVersion=$version -X $pkg.gitMajor=$major -X $pkg.gitMinor=$minor"

stale=()

build() {
	cd "$module"
	mkdir -p "$OUT/bin/.new"
	CGO_ENABLED=0 GOFLAGS= go build -buildvcs=false -ldflags "-s -w $stamp" -o "$OUT/bin/.new/" "${stale[@]/#/k8s.io/kubernetes/cmd/}"
	for program in "${stale[@]}"; do
		mv "$OUT/bin/.new/$program" "$OUT/bin/$program"
		echo "$from" >"$OUT/bin/$program.from"
	done
}

wanted=("${@:-kube-apiserver}")
if [[ ${wanted[*]} == all ]]; then
	wanted=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl)
fi
mkdir -p "$OUT/bin"
for program in "${wanted[@]}"; do
	built_from "$OUT/bin/$program" "$from" || stale+=("$program")
done
((${#stale[@]} == 0)) || progress "build Kubernetes $version: ${stale[*]}" build
