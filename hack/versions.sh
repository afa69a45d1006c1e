# Every version that is not pinned by a go.mod is pinned here, once.
# Sourced by the other scripts; sets variables and does nothing else.
#
# Pinned by modules instead:
#   the product, the reference CNI plugins          go.mod
#   Kubernetes                                      hack/tools/kubernetes/go.mod
#   CoreDNS                                         hack/tools/coredns/go.mod
#   the tests of ClusterNetworkPolicy               hack/tools/network-policy-api/go.mod
#   cyclonus, which NetworkPolicy is compared with  hack/tools/cyclonus/go.mod
#   promtool, which tests the alerts                hack/tools/promtool/go.mod
#   kustomize, which renders releases               hack/tools/kustomize/go.mod
#   Helm, which tests the chart                     hack/tools/helm/go.mod
#   etcd for streaming lists                        hack/tools/etcd/go.mod

# The compiler of the BPF programs: Debian 12's.
CLANG_VERSION=14

# Debian's etcd, taken apart into out/tools and never installed: installing it
# would start a service. Any 3.4 or later serves the API server of the lab.
ETCD_MIN_VERSION=3.4

# `go install` builds these by their own go.mod, and checks sums by Go's checksum database. None of
# them is in an image.
GOLANGCI_LINT_VERSION=v2.15.0
GOVULNCHECK_VERSION=v1.8.0
CONTAINERD_VERSION=v2.4.2
